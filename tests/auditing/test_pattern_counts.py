"""What moved, as integers: the same bits in any order, whatever makes room for what."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fenchel.auditing import pattern_counts
from fenchel.auditing.pattern import KEY_CLASSES, MOVES, TOKEN_TYPES, PatternSums
from fenchel.auditing.pattern_counts import UNIT, PatternCounts
from fenchel.io.schema import Mismatch

HEADS = 3


def drawn(seed: int, *, ids: bool = True) -> PatternSums:
    """Sums of two sequences of five queries on six keys each."""
    draw = torch.Generator().manual_seed(seed)
    first, exact = torch.rand(2, 2, HEADS, 5, 6, generator=draw, dtype=torch.float64).unbind()
    first, exact = first / first.sum(-1, keepdim=True), exact / exact.sum(-1, keepdim=True)
    types = torch.nn.functional.one_hot(
        torch.randint(len(TOKEN_TYPES), (2, 5), generator=draw), len(TOKEN_TYPES)
    )
    keys = torch.nn.functional.one_hot(
        torch.randint(len(KEY_CLASSES), (2, 6), generator=draw), len(KEY_CLASSES)
    )
    moves = torch.stack([first, (first - exact).clamp(min=0), (exact - first).clamp(min=0)], -1)
    classes = torch.einsum("bhqnm,bqt,bnc->bhtcm", moves, types.double(), keys.double())
    numbers = torch.randint(0, 20, (2, 6), generator=draw) if ids else None
    return PatternSums(classes, moves[..., 1:].sum(2), types.sum((0, 1)), numbers)


def counting(*seeds: int) -> PatternCounts:
    counts = PatternCounts(HEADS)
    for seed in seeds:
        counts.add(drawn(seed))
    return counts


def frozen(counts: PatternCounts) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in counts.to_state().items()}


def test_counts_are_sums() -> None:
    counts, parts = counting(0, 1), [drawn(0), drawn(1)]
    classes = torch.stack([part.classes.sum(0) for part in parts]).sum(0)
    assert torch.allclose(counts.class_sums.double() * UNIT, classes, atol=4 * UNIT)
    assert torch.equal(counts.type_queries, parts[0].queries + parts[1].queries)
    for place, number in enumerate(counts.token_ids.tolist()):
        expected = torch.zeros(HEADS, 2, dtype=torch.float64)
        for part in parts:
            assert part.key_ids is not None
            expected += (part.columns * (part.key_ids == number)[:, None, :, None]).sum((0, 2))
        assert torch.allclose(counts.token_moves[:, place].double() * UNIT, expected, atol=24 * UNIT)


@given(st.permutations([0, 1, 2, 3, 4]), st.integers(1, 4), st.sampled_from([3, 7, 10_000]))
@settings(deadline=None, max_examples=30)
def test_any_order_gives_the_same_bits(order: list[int], cut: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pattern_counts, "MOST_TOKENS", most)
        whole = counting(0, 1, 2, 3, 4)
        left, right = counting(*order[:cut]), counting(*order[cut:])
        right.merge(left)
        assert frozen(right) == frozen(whole)
        assert len(whole.token_ids) <= most


def test_tokens_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = counting(0, 1)
    monkeypatch.setattr(pattern_counts, "MOST_TOKENS", 4)
    some = counting(0, 1)
    assert some.token_ids.tolist() == everything.token_ids[:4].tolist()
    assert torch.equal(some.token_moves, everything.token_moves[:, :4])
    assert torch.equal(some.rarer_moves, everything.token_moves[:, 4:].sum(1))


def test_a_state_is_inverted_exactly() -> None:
    counts = counting(0, 1)
    queries = counts.type_queries.sum().expand(HEADS)
    assert frozen(PatternCounts.from_state(queries, counts.to_state())) == frozen(counts)
    assert frozen(counts) != frozen(counting(0, 2))


def test_input_that_is_no_text_has_no_tokens() -> None:
    counts = PatternCounts(HEADS)
    counts.add(drawn(0, ids=False))
    assert len(counts.token_ids) == 0
    assert int(counts.class_sums.sum()) > 0


def test_what_no_place_is_left_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pattern_counts, "MOST_QUERIES", 25)
    with pytest.raises(pattern_counts.InputError, match="30 queries of one head do not fit"):
        counting(0, 1, 2)


WRONG: dict[str, tuple[str, str]] = {
    "more queries than there are": ("type_queries", "above the number of queries"),
    "a weight above 1": ("class_sums", "not in keeping with type_queries"),
    "tokens that move more than all": ("token_moves", "above what moved"),
    "tokens out of order": ("token_ids", "not in rising order"),
}


@pytest.mark.parametrize("name", WRONG)
def test_numbers_that_no_audit_gives_are_refused(name: str) -> None:
    counts = counting(0, 1)
    queries, state = counts.type_queries.sum().expand(HEADS), counts.to_state()
    tensor, message = WRONG[name]
    state[tensor] = state[tensor].flip(0) if tensor == "token_ids" else state[tensor] * 3
    with pytest.raises(Mismatch, match=message):
        PatternCounts.from_state(queries, state)


def test_more_that_leaves_than_is_there_is_refused() -> None:
    counts = counting(0)
    state = counts.to_state()
    state["class_sums"][..., MOVES.index("leaves")] += state["class_sums"][..., 0] + 10**9
    with pytest.raises(Mismatch, match="not a move"):
        PatternCounts.from_state(counts.type_queries.sum().expand(HEADS), state)
