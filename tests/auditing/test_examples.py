"""Which queries and which sentence are kept of a head: the same in whatever order and grouping they come."""

import random
from dataclasses import replace

import pytest
import torch

from fenchel.auditing.example_search import Sentences, passage_around
from fenchel.auditing.examples import (
    LEAST_SHARE,
    MOST_PATTERNS,
    MOST_TOKENS,
    MOST_WINDOWS,
    AttentionMatrix,
    FarQueries,
    HeadExample,
    Packing,
    is_full,
    keep_the_farthest,
    keep_the_longest,
    packed,
    unpacked,
)
from fenchel.auditing.heads import HeadKey
from tests.auditing.report import samples

KEY = HeadKey("cross", 1, 2)


USUAL = samples.example(random.Random(0), KEY)  # noqa: S311


def example(variation: float, document: int = 1, position: int = 1, *, leaves: str = "first") -> HeadExample:
    place = {"document": document, "position": position, "pattern": ("word", leaves, "rest")}
    return replace(USUAL, total_variation=variation, **place)  # pyright: ignore[reportArgumentType]


def many_examples() -> list[HeadExample]:
    draw = random.Random(0)  # noqa: S311
    return [
        example(draw.randrange(1, 20) / 20, draw.randrange(1, 9), position, leaves=f"p{draw.randrange(9)}")
        for position in range(1, 60)
    ]


def kept_of(examples: list[HeadExample]) -> FarQueries:
    kept: FarQueries = {}
    keep_the_farthest(kept, examples)
    return kept


def test_the_farthest_of_each_pattern_and_of_some_windows_are_kept_whatever_the_order() -> None:
    """Of equals the earliest; of patterns those that are far enough."""
    examples = many_examples()
    whole = kept_of(examples)
    first = min(examples, key=lambda one: (-one.total_variation, one.document, one.position))
    assert whole[KEY][0] == first
    assert len({one.pattern for one in whole[KEY]}) >= MOST_PATTERNS
    assert len({one.document for one in whole[KEY]}) >= MOST_WINDOWS
    assert len(whole[KEY]) <= MOST_PATTERNS + MOST_WINDOWS
    for seed in range(20):
        draw = random.Random(seed)  # noqa: S311
        draw.shuffle(examples)
        together: FarQueries = {}
        for part in (kept_of(examples[i::3]) for i in range(3)):
            keep_the_farthest(together, (one for some in part.values() for one in some))
        assert together == whole
    windows = [example(0.9 - document / 100, document) for document in range(1, 9)]
    assert kept_of(windows)[KEY] == tuple(windows[:MOST_WINDOWS])
    assert (is_full(whole[KEY]), is_full(kept_of(windows)[KEY])) == (True, False)
    far, near, enough = (
        example(0.8),
        *(example(0.8 * LEAST_SHARE - less, leaves="itself") for less in (1e-6, 0.0)),
    )
    assert kept_of([near, far])[KEY] == (far,)
    assert kept_of([enough, far])[KEY] == (far, enough)


def matrix(document: int, tokens: int) -> AttentionMatrix:
    generator = torch.Generator().manual_seed(document)
    kept = list(range(min(tokens, MOST_TOKENS)))
    first_order, exact = torch.rand(2, len(kept), tokens, generator=generator).softmax(-1).unbind()
    pieces = tuple(f" w{i}" for i in range(tokens))
    return AttentionMatrix.of(KEY, (document, 1, tokens), first_order, exact, (kept, kept), (pieces, pieces))


def test_the_matrix_of_the_earliest_window_that_fills_it_is_kept() -> None:
    some = [matrix(1, 20), matrix(2, 90), matrix(3, 60), matrix(4, 30)]
    for order in (some, some[::-1]):
        kept: dict[HeadKey, AttentionMatrix] = {}
        keep_the_longest(kept, order)
        assert kept == {KEY: some[1]}
    kept = {}
    keep_the_longest(kept, [some[0], some[3]])
    assert kept == {KEY: some[3]}


def test_a_matrix_holds_the_weights_and_what_is_left_of_them() -> None:
    weights = torch.rand(3, 70, generator=torch.Generator().manual_seed(0)).softmax(-1)
    exact = weights.flip(1)
    pieces = tuple(f" w{i}" for i in range(70))
    keys = [0, *range(5, 20)]
    made = AttentionMatrix.of(KEY, (1, 1, 70), weights, exact, ([0, 4, 69], keys), (pieces, pieces))
    assert made.query_positions == (1, 5, 70)
    assert made.queries == (" w0", " w4", " w69")
    for text, whole in ((made.first_order, weights), (made.exact, exact)):
        found = torch.tensor(unpacked(text, Packing.ROUGH)).view(3, len(keys) + 1)
        torch.testing.assert_close(found[:, :-1], whole[:, keys], atol=0.002, rtol=0)
        torch.testing.assert_close(found[:, -1], 1 - whole[:, keys].sum(-1), atol=0.004, rtol=0)


@pytest.mark.parametrize(("packing", "error"), [(Packing.ROUGH, 0.004), (Packing.FINE, 1e-5)])
def test_weights_survive_packing(packing: Packing, error: float) -> None:
    weights = torch.cat((torch.linspace(0, 1, 1001), torch.logspace(-6, 0, 200)))
    found = torch.tensor(unpacked(packed(weights, packing), packing))
    assert float((found - weights).abs().max()) < error
    # Small weights keep their order of magnitude where eight equal bits would lose them.
    assert float(found[weights > 0.001].min()) > 0.0005


def test_a_passage_is_whole_sentences_or_cut_between_words() -> None:
    draw = random.Random(0)  # noqa: S311
    for _ in range(300):
        pieces = ["The"]
        while len(pieces) < 60:
            pieces += [" word", *["ish"] * draw.randrange(4)]
        most, position = draw.randrange(6, 30), draw.randrange(60)
        passage = passage_around(Sentences(pieces[:60]), position, most)
        assert position in passage
        assert len(passage) <= most
        assert passage.start == 0 or pieces[passage.start].startswith(" ")
        assert passage.stop == 60 or pieces[passage.stop].startswith(" ")
    sentences = "One two . Three four five . Six . Seven eight nine ten ."
    pieces = [word if i == 0 else f" {word}" for i, word in enumerate(sentences.split())]
    for most, expected in ((6, (3, 9)), (9, (0, 9)), (14, (0, 14))):
        assert passage_around(Sentences(pieces), 4, most) == range(*expected)
    assert passage_around(Sentences(('"', "No", '."', " She", " left", ".")), 4, 3) == range(3, 6)
    long = ["a", " d", *["o"] * 40, " end"]  # a word that does not fit is cut anywhere
    passage = passage_around(Sentences(long), 20, 5)
    assert 20 in passage
    assert len(passage) <= 5
