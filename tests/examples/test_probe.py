"""examples/probe.py."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import probe
from fenchel.errors import InputError
from tests.pages import ROOT, page

WORD = "{}\tw\t_\t{}\t_\t_\t{}\t_\t_\t_"


def block(*heads: int, tags: str = "") -> str:
    tags = tags or "X" * len(heads)
    rows = (
        WORD.format(number, "PUNCT" if tag == "." else "NOUN", head)
        for number, (head, tag) in enumerate(zip(heads, tags, strict=True), start=1)
    )
    return "# text\n" + "\n".join(rows) + "\n"


def one(*heads: int, tags: str = "") -> probe.Sentence:
    (found,) = probe.sentences(block(*heads, tags=tags), "here")
    return found


def cheapest(distances: np.ndarray) -> set[frozenset[int]]:
    """The spanning tree of least weight, of all sets of edges."""
    count = len(distances)
    best: tuple[float, Any] = (np.inf, None)
    for edges in itertools.combinations(itertools.combinations(range(count), 2), count - 1):
        reached = {0}
        for _ in range(count):
            reached |= {b for pair in edges for a, b in (pair, pair[::-1]) if a in reached}
        weight = sum(distances[a, b] for a, b in edges)
        if len(reached) == count and weight < best[0]:
            best = weight, {frozenset(pair) for pair in edges}
    return best[1]


def test_edges_are_those_of_an_independent_spanning_tree_without_punctuation() -> None:
    draw, some = np.random.default_rng(0), one(2, 0, 5, 5, 2, 2, tags="XXXXX.")
    assert some.distances[0].tolist() == [0, 1, 3, 3, 2, 2]
    assert probe.depth(some).tolist() == [1, 0, 2, 2, 1, 1]
    for _ in range(5):
        distances = draw.random((6, 6))
        distances += distances.T
        np.fill_diagonal(distances, 0)
        found = probe.scores(distances, draw.random(6), some)
        gold = {frozenset(pair) for pair in ((0, 1), (2, 4), (3, 4), (4, 1))}
        assert (found["right"], found["edges"]) == (len(cheapest(distances[:5, :5]) & gold), 4)
        rows: list[Any] = [spearmanr(*rows)[0] for rows in zip(distances, some.distances, strict=True)]
        expected = np.mean(rows)
        assert found["dspr"] == pytest.approx(expected)
    perfect = probe.scores(some.distances, probe.depth(some), some)
    assert perfect == {"right": 4, "edges": 4, "dspr": pytest.approx(1), "root": 1}
    rows = [perfect, {"right": 1, "edges": 2, "dspr": np.nan, "root": 0}]
    assert probe.summary(rows)["uuas"][0] == pytest.approx(5 / 6)
    assert probe.summary(rows)["dspr"][0] == pytest.approx(1)


def test_squares_are_distances_and_norms() -> None:
    states = torch.randn(2, 5, 3, dtype=torch.double)
    distances, norms = probe.squares(states)
    assert torch.allclose(distances, torch.cdist(states, states) ** 2)
    assert torch.allclose(norms, states.norm(dim=-1) ** 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (block(2, 0) + "\n" + block(0, 3, 2), "line 7: word 2 does not lead"),
        (block(2, 1), "line 2: no word has the head 0"),
        (block(0, 0), "line 3: the head of word 2 is 0"),
        (block(2, 7, 0), "line 3: the head of word 2 is 7"),
        (block(1), "line 2: the head of word 1 is 1"),
        (block(0).replace("\t0", "\tq"), "line 2: .*q.*CoNLL-U"),
        ("1\ta\n", "line 1: .*CoNLL-U"),
    ],
)
def test_trees_that_are_none_are_refused_with_the_line(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as caught:
        list(probe.sentences(text, "here"))
    assert "\n" not in str(caught.value)


def test_files_are_read_and_missing_ones_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"UniversalDependencies.*--data toy"):
        probe.read(probe.Options(data=str(tmp_path)))
    text = block(2, 0) + "2-3\twx\t_\t_\t_\t_\t_\t_\t_\t_\n" + "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n"
    for name in ("train", "dev"):
        (tmp_path / f"en-{name}.conllu").write_text(f"{text}\n{block(0)}")
    with gzip.open(tmp_path / "en-test.conllu.gz", "wt") as file:
        file.write(block(0, 1, 2))
    found = probe.read(probe.Options(data=str(tmp_path)))
    assert [[len(one.words) for one in some] for some in found] == [[2], [2], [3]]


def test_maps_find_trees_that_are_in_the_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word's state is the sum of the directions of the edges to the root, so that squares are distances."""
    some = [*probe.sentences(probe.toy("here", 60), "toy")]
    inputs = []
    for sentence in some:
        paths = torch.zeros(len(sentence.words), 40)
        for word in range(len(sentence.words)):
            at = word
            while at >= 0:
                paths[word, at] = float(sentence.heads[at] >= 0)
                at = sentence.heads[at]
        inputs.append(torch.cat((paths, torch.randn(len(paths), 8)), -1)[None])
    told = probe.Options(rank=48, epochs=80)
    maps = probe.fitted(inputs, some, told)
    (found,) = probe.tested(maps, inputs, some)
    assert found["uuas"][0] > 0.95
    assert found["dspr"][0] > 0.95
    assert found["root"][0] == 1
    with pytest.raises(InputError, match="rank is 49 and states have 48"):
        probe.fitted(inputs, some, probe.Options(rank=49))


def test_states_are_means_of_pieces_and_exact_inference_changes_them() -> None:
    model, tokenizer, _ = probe.load_model("demo")
    words = ["unbelievable", "owls", "sing"]
    some = probe.Sentence(words, np.array([2, 2, -1]), np.ones(3, bool), np.zeros((3, 3)))
    (found,) = probe.states(model, tokenizer, [some])
    batch = tokenizer([words], is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        layers = torch.stack(model(**batch, output_hidden_states=True).hidden_states)[:, 0]
    for word in range(3):
        pieces = [at for at, owner in enumerate(batch.word_ids(0)) if owner == word]
        assert torch.allclose(found[:, word].float(), layers[:, pieces].mean(1), atol=2e-3)
    (exact,) = probe.states(model, tokenizer, [some], "exact")
    assert torch.equal(exact[0], found[0])
    assert (exact[1] - found[1]).abs().max() > 1e-3


def test_the_page_shows_what_was_recorded() -> None:
    found = json.loads((ROOT / "docs" / "results" / "probe.json").read_text())
    text = page("docs/probe.md")
    for line in probe.printed(found):
        assert line in text
