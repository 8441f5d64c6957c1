"""examples/probe.py; examples/which_heads.py on a layer whose loss is linear in what its heads give."""

import gzip
import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

import probe
import which_heads
from fenchel.errors import InputError
from fenchel.nn import MultiheadAttention

WORD = "{}\tw\t_\t{}\t_\t_\t{}\t_\t_\t_"


def block(*heads: int) -> str:
    """A tree whose last word is punctuation."""
    tags = [*["NOUN"] * (len(heads) - 1), "PUNCT"]
    rows = [
        WORD.format(place, tag, head) for place, (tag, head) in enumerate(zip(tags, heads, strict=True), 1)
    ]
    return "# text\n" + "\n".join(rows) + "\n"


def test_edges_are_those_of_an_independent_spanning_tree_without_punctuation() -> None:
    draw, (some,) = np.random.default_rng(0), probe.sentences(block(2, 0, 5, 5, 2, 2), "here")
    assert some.distances[0].tolist() == [0, 1, 3, 3, 2, 2]
    assert probe.depth(some).tolist() == [1, 0, 2, 2, 1, 1]
    for _ in range(5):
        distances = draw.random((6, 6))
        distances += distances.T
        np.fill_diagonal(distances, 0)
        found = probe.scores(distances, draw.random(6), some)
        tree = networkx.minimum_spanning_edges(networkx.from_numpy_array(distances[:5, :5]), data=False)
        cheapest = {frozenset(pair) for pair in tree}
        gold = {frozenset(pair) for pair in ((0, 1), (2, 4), (3, 4), (4, 1))}
        assert (found["right"], found["edges"]) == (len(cheapest & gold), 4)
        rows: list[Any] = [spearmanr(*rows)[0] for rows in zip(distances, some.distances, strict=True)]
        assert found["dspr"] == pytest.approx(np.mean(rows))
    perfect = probe.scores(some.distances, probe.depth(some), some)
    assert perfect == {"right": 4, "edges": 4, "dspr": pytest.approx(1), "root": 1}
    rows = [perfect, {"right": 1, "edges": 2, "dspr": np.nan, "root": 0}]
    assert probe.summary(rows)["uuas"][0] == pytest.approx(5 / 6)


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
    maps = probe.fitted(inputs, some, probe.Options(rank=48, epochs=80))
    (found,) = probe.tested(maps, inputs, some)
    assert found["uuas"][0] > 0.95
    assert found["dspr"][0] > 0.95
    assert found["root"][0] == 1


def test_files_are_read_and_what_is_no_tree_is_refused_with_the_line(tmp_path: Path) -> None:
    text = block(2, 0) + "2-3\twx\t_\t_\t_\t_\t_\t_\t_\t_\n" + "2.1\tx\t_\t_\t_\t_\t_\t_\t_\t_\n"
    for name in ("train", "dev"):
        (tmp_path / f"en-{name}.conllu").write_text(text)
    (tmp_path / "en-test.conllu.gz").write_bytes(gzip.compress(block(0, 1, 2).encode()))
    found = probe.read(probe.Options(data=str(tmp_path)))
    assert [[len(one.words) for one in some] for some in found] == [[2], [2], [3]]
    with pytest.raises(InputError, match="line 7: word 2 does not lead"):
        list(probe.sentences(block(2, 0) + "\n" + block(0, 3, 2), "here"))


def load(folder: Any) -> Any:
    """The model and its batches: this file is a loader, too."""
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(4):
        states = torch.randn(50, 6, 8, generator=generator)
        padding = torch.arange(6) >= torch.randint(3, 7, (50, 1), generator=generator)
        batches.append({"inputs": {"states": states, "padding": padding}, "counted": ~padding, "loss": loss})
    return Linear(), batches


class Linear(nn.Module):
    """One layer of four heads, of which the last gives nothing."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = MultiheadAttention(8, 4, batch_first=True)
        self.attention.out_proj.weight.data[:, 6:] = 0

    def forward(self, states: Tensor, padding: Tensor) -> Tensor:
        attended = self.attention(states, states, states, key_padding_mask=padding, need_weights=False)[0]
        return attended.masked_fill(padding.unsqueeze(-1), 0)


def loss(output: Tensor) -> Tensor:
    return (output * torch.arange(8.0)).sum((1, 2))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    options = which_heads.MeasureOptions(loader=__file__, rows=100)
    return which_heads.measure(options, str(tmp_path_factory.mktemp("run")))


def by_hand(found: dict[str, Any], removed: list[int], part: int) -> Tensor:
    """The loss of each row of a half of the batches without some heads."""
    model, batches = load(None)
    for head in removed:
        model.attention.out_proj.weight.data[:, 2 * head - 2 : 2 * head] = 0
    with torch.no_grad():
        return torch.cat([loss(model(**batch["inputs"])) for batch in batches[part::2]])


def test_heads_are_removed_as_by_hand(found: dict[str, Any]) -> None:
    """And the gradient of a linear loss is the effect of removal."""
    assert found["rows"] == [100, 100]
    elsewhere, whole = by_hand(found, [], 0), by_hand(found, [], 1)
    assert found["loss"] == pytest.approx(float(whole.mean()), abs=1e-4)
    for head in found["heads"]:
        rises = by_hand(found, [head["head"]], 1) - whole
        rises_elsewhere = by_hand(found, [head["head"]], 0) - elsewhere
        assert head["zero"] == pytest.approx(float(rises.mean()), abs=1e-4)
        assert head["zero_elsewhere"] == pytest.approx(float(rises_elsewhere.mean()), abs=1e-4)
        assert head["gradient"] == pytest.approx(float(rises_elsewhere.abs().mean()), rel=1e-3, abs=1e-4)
    least = sorted(found["heads"], key=lambda head: head["entropy"])[:2]
    rise = float((by_hand(found, [head["head"] for head in least], 1) - whole).mean())
    assert found["together"]["entropy"][-1] == pytest.approx(rise, abs=1e-3)
    last = found["heads"][-1]
    assert [last[name] for name in ("map_norm", "mean_output_norm", "output_norm", "gradient")] == [0] * 4


def test_correlations_are_those_of_scipy(found: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps(found))
    files = [str(tmp_path / "run.json")] * 2
    told = which_heads.TableOptions(group=["a", "a"], out=str(tmp_path / "all.json"))
    which_heads.table(told, files)
    made = json.loads((tmp_path / "all.json").read_text())["summary"]["a"]
    zero, gradient = ([head[name] for head in found["heads"]] for name in ("zero", "gradient"))
    assert made["gradient"]["zero"]["rho"] == pytest.approx(spearmanr(zero, gradient)[0])
    random = [rises for name, rises in found["together"].items() if name.startswith("random")]
    assert made["random"]["together"] == pytest.approx(np.mean(random, 0))
    assert made["layer"]["zero"]["rho"] == 0  # of a constant
