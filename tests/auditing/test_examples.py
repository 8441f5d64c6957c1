"""Which queries and which sentence are kept of a head: the same in whatever order and grouping they come."""

import json
import math
import random
from dataclasses import replace

import pytest
import torch

from fenchel.auditing.examples import (
    LEAST_SHARE,
    MOST_PATTERNS,
    MOST_TOKENS,
    MOST_WINDOWS,
    AttentionMatrix,
    FarQueries,
    HeadExample,
    Packing,
    Passage,
    TemplateWeight,
    examples_from_json,
    is_full,
    keep_the_farthest,
    keep_the_longest,
    packed,
    unpacked,
)
from fenchel.auditing.heads import HeadKey
from fenchel.io.storage import Mismatch

KEY = HeadKey("cross", 1, 2)


def example(variation: float, document: int = 1, position: int = 1, *, leaves: str = "first") -> HeadExample:
    weights = packed(torch.tensor([0.5, 0.25]), Packing.FINE)
    return HeadExample(
        key=KEY,
        total_variation=variation,
        relative_deviation=0.1,
        document=document,
        window=1,
        position=position,
        token="t",  # noqa: S106
        templates=(TemplateWeight(1, "a", 0.5, 0.25),),
        context="a t",
        pattern=("word", leaves, "rest"),
        context_token=(2, 3),
        passage=Passage(1, 2, ("a", " t"), weights, weights),
    )


def many_examples(count: int = 60) -> list[HeadExample]:
    draw = random.Random(0)  # noqa: S311
    return [
        example(draw.randrange(1, 20) / 20, draw.randrange(1, 9), position, leaves=f"p{draw.randrange(9)}")
        for position in range(1, count)
    ]


def kept_of(examples: list[HeadExample]) -> FarQueries:
    kept: FarQueries = {}
    keep_the_farthest(kept, examples)
    return kept


def test_the_farthest_of_each_pattern_is_kept_and_of_equals_the_earliest() -> None:
    others = [
        example(0.9, document=2),
        example(0.9, document=2, position=2),
        example(0.8, document=2, position=3),
    ]
    assert kept_of(others)[KEY] == (others[0],)
    other = example(0.6, document=2, leaves="itself")
    assert kept_of([*others, other])[KEY] == (others[0], other)


def test_the_farthest_of_different_windows_are_kept_too() -> None:
    some = [example(0.9 - document / 100, document) for document in range(1, 9)]
    assert kept_of(some)[KEY] == tuple(some[:MOST_WINDOWS])
    assert not is_full(kept_of(some)[KEY])
    assert is_full(kept_of(many_examples())[KEY])


def test_neither_order_nor_grouping_matters() -> None:
    examples = many_examples()
    whole = kept_of(examples)
    assert MOST_PATTERNS <= len(whole[KEY]) <= MOST_PATTERNS + MOST_WINDOWS
    assert len({one.pattern for one in whole[KEY]}) >= MOST_PATTERNS
    assert len({one.document for one in whole[KEY]}) >= MOST_WINDOWS
    for seed in range(20):
        draw = random.Random(seed)  # noqa: S311
        draw.shuffle(examples)
        parts = [kept_of(examples[i::3]) for i in range(3)]
        together: FarQueries = {}
        for part in parts:
            keep_the_farthest(together, (one for some in part.values() for one in some))
        assert together == whole


def test_what_is_near_is_not_kept_beside_what_is_far() -> None:
    far = example(0.8)
    near = example(0.8 * LEAST_SHARE - 1e-6, leaves="itself")
    enough = example(0.8 * LEAST_SHARE, leaves="itself")
    assert kept_of([near, far])[KEY] == (far,)
    assert kept_of([enough, far])[KEY] == (far, enough)


def test_an_example_survives_json() -> None:
    finite = example(0.3)
    infinite = replace(finite, relative_deviation=math.inf)
    silent = replace(finite, passage=None, context_token=None)
    for one in (finite, infinite, silent):
        assert HeadExample.from_json(json.loads(json.dumps(one.to_json(), allow_nan=False))) == one
    assert HeadExample.from_json(finite.to_json()) != infinite


def test_what_would_not_be_kept_was_not_kept() -> None:
    six = [example(0.9, position=i + 1, leaves=f"p{i}").to_json() for i in range(MOST_PATTERNS + 1)]
    assert len(examples_from_json(six[:-1])[KEY]) == MOST_PATTERNS
    for wrong in (six, [six[0], six[0]], six[:2][::-1]):
        with pytest.raises(
            Mismatch, match=r"examples is \d of cross layer 1 head 2; expected those that are farthest"
        ):
            examples_from_json(wrong)


def matrix(document: int, tokens: int) -> AttentionMatrix:
    generator = torch.Generator().manual_seed(document)
    kept = list(range(min(tokens, MOST_TOKENS)))
    first_order, exact = torch.rand(2, len(kept), tokens, generator=generator).softmax(-1).unbind()
    pieces = tuple(f" w{i}" for i in range(tokens))
    return AttentionMatrix.of(KEY, (document, 1, tokens), first_order, exact, (kept, kept), (pieces, pieces))


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
    assert AttentionMatrix.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_the_matrix_of_the_earliest_window_that_fills_it_is_kept() -> None:
    some = [matrix(1, 20), matrix(2, 90), matrix(3, 60), matrix(4, 30)]
    for order in (some, some[::-1], some[2:] + some[:2]):
        kept: dict[HeadKey, AttentionMatrix] = {}
        keep_the_longest(kept, order)
        assert kept == {KEY: some[1]}
    kept = {}
    keep_the_longest(kept, [some[0], some[3]])
    assert kept == {KEY: some[3]}


@pytest.mark.parametrize(("packing", "error"), [(Packing.ROUGH, 0.004), (Packing.FINE, 1e-5)])
def test_weights_survive_packing(packing: Packing, error: float) -> None:
    weights = torch.cat((torch.linspace(0, 1, 1001), torch.logspace(-6, 0, 200)))
    found = torch.tensor(unpacked(packed(weights, packing), packing))
    assert float((found - weights).abs().max()) < error
    # Small weights keep their order of magnitude where eight equal bits would lose them.
    assert float(found[weights > 0.001].min()) > 0.0005
