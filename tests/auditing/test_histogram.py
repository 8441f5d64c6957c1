from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fenchel.auditing import histogram as histogram_module
from fenchel.auditing.histogram import NUM_BINS, FloatHistograms
from fenchel.errors import InputError, ProblemError

non_negative = st.floats(min_value=0.0, width=32, allow_nan=False, allow_infinity=False)
ordinary = st.floats(min_value=2.0**-58, max_value=2.0**23, width=32)


def filled(*rows: list[float]) -> FloatHistograms:
    histograms = FloatHistograms(len(rows))
    histograms.add(torch.tensor(rows, dtype=torch.float32))
    return histograms


def same(left: FloatHistograms, right: FloatHistograms) -> bool:
    ours, theirs = left.to_state(), right.to_state()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@given(st.lists(non_negative, min_size=1, max_size=60))
@settings(deadline=None)
def test_mean_is_the_correctly_rounded_exact_mean(values: list[float]) -> None:
    exact = sum(Fraction(value) for value in values) / len(values)
    assert filled(values).mean([0]) == float(exact)


@given(st.lists(ordinary, min_size=1, max_size=200), st.floats(0, 1))
@settings(deadline=None)
def test_quantiles_are_within_a_fifth_of_a_percent_of_numpy(values: list[float], fraction: float) -> None:
    [found] = filled(values).quantiles([0], [fraction])
    expected = float(np.quantile(np.array(values, dtype=np.float64), fraction))
    assert found == pytest.approx(expected, rel=0.002)


def test_quantile_check_rejects_the_neighbouring_order_statistic() -> None:
    values = [1.0, 1.01, 1.02]
    [found] = filled(values).quantiles([0], [0.5])
    assert found == pytest.approx(1.01, rel=0.002)
    assert found != pytest.approx(1.02, rel=0.002)


@given(st.lists(non_negative, min_size=1, max_size=40))
@settings(deadline=None)
def test_the_top_quantile_and_the_maximum_are_exact(values: list[float]) -> None:
    histograms = filled(values)
    assert histograms.maximum([0]) == max(values)
    assert histograms.quantiles([0], [1.0]) == [max(values)]


def test_numbers_below_the_grid_count_as_zero_and_above_it_as_the_largest() -> None:
    histograms = filled([0.0, 2.0**-61, 2.0**30, 2.0**31])
    assert histograms.quantiles([0], [0.0, 1 / 3, 2 / 3, 1.0]) == [0.0, 0.0, 2.0**31, 2.0**31]
    assert histograms.mean([0]) == float(Fraction(2) ** -61 / 4 + (2**30 + 2**31) // 4)


def test_infinite_numbers_are_counted_apart() -> None:
    histograms = filled([1.0, 2.0, math.inf], [1.0, 2.0, 3.0])
    assert histograms.unbounded([0]) == 1
    assert histograms.unbounded([1]) == 0
    assert histograms.unbounded([0, 1]) == 1
    assert histograms.mean([0]) == math.inf
    assert histograms.mean([1]) == 2.0
    assert histograms.maximum([0]) == math.inf
    assert histograms.quantiles([0], [0.0, 0.5, 0.51]) == [pytest.approx(1.0, rel=0.002), 2.0, math.inf]


def test_negative_zero_is_zero_and_subnormals_are_summed_exactly() -> None:
    smallest = 2.0**-149
    histograms = filled([-0.0, smallest, smallest])
    assert histograms.quantiles([0], [0.0]) == [0.0]
    assert histograms.maximum([0]) == smallest
    assert histograms.total([0]) == 3


def test_an_empty_row_has_no_mean() -> None:
    histograms = FloatHistograms(1)
    histograms.add(torch.zeros(1, 0))
    assert histograms.total([0]) == 0
    assert math.isnan(histograms.mean([0]))
    assert math.isnan(histograms.maximum([0]))
    assert math.isnan(histograms.quantiles([0], [0.5])[0])


@given(st.lists(st.lists(non_negative, min_size=1, max_size=9), min_size=1, max_size=5), st.randoms())
@settings(deadline=None)
def test_adding_in_any_parts_and_any_order_gives_the_same_bits(
    parts: list[list[float]], random: object
) -> None:
    whole = filled([value for part in parts for value in part])
    shuffled = list(parts)
    random.shuffle(shuffled)  # pyright: ignore[reportAttributeAccessIssue]
    merged = FloatHistograms(1)
    for part in shuffled:
        merged.merge(filled(part))
    assert same(whole, merged)
    restored = FloatHistograms.from_state(1, whole.to_state())
    assert same(whole, restored)


def test_the_comparison_of_histograms_sees_a_difference() -> None:
    assert not same(filled([1.0, 2.0]), filled([1.0, 2.0000002]))
    assert not same(filled([1.0]), filled([1.0, 1.0]))


def test_merging_leaves_the_other_as_it_was() -> None:
    other = filled([1.0])
    before = other.to_state()
    total = FloatHistograms(1)
    total.merge(other)
    total.merge(other)
    assert all(torch.equal(before[name], other.to_state()[name]) for name in before)
    assert total.total([0]) == 2


def test_counts_between_edges_take_everything_above_into_the_last() -> None:
    histograms = filled([0.0, 0.1, 0.1, 0.3, 0.7, 5.0, math.inf])
    assert histograms.counts_between([0], [0.0, 0.2, 0.5, 1.0]) == [3, 1, 3]
    assert histograms.counts_between([0], [0.2, 0.5, 1.0]) == [1, 3]
    assert sum(histograms.counts_between([0], [0.0, 1.0])) == histograms.total([0])


@pytest.mark.parametrize("edges", [[0.0], [0.0, 0.0], [1.0, 0.5], [0.0, math.inf]])
def test_edges_must_rise(edges: list[float]) -> None:
    with pytest.raises(ProblemError, match="increasing order"):
        filled([1.0]).counts_between([0], edges)


def test_rows_are_apart_and_can_be_taken_together() -> None:
    histograms = filled([1.0, 1.0], [3.0, 3.0])
    assert (histograms.mean([0]), histograms.mean([1]), histograms.mean([0, 1])) == (1.0, 3.0, 2.0)
    assert histograms.quantiles([0, 1], [0.5]) == [pytest.approx(2.0, rel=0.002)]


def test_counts_grow_to_64_bits_when_a_row_needs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histogram_module, "_LARGEST_INT32", 3)
    histograms = filled([1.0, 2.0])
    assert histograms._counts.dtype == torch.int32
    histograms.merge(filled([1.0, 2.0]))
    assert histograms._counts.dtype == torch.int64
    histograms.add(torch.tensor([[5.0]]))
    assert histograms.total([0]) == 5
    assert histograms.counts_between([0], [0.0, 1.5, 4.0]) == [2, 3]


def test_more_numbers_than_the_sums_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histogram_module, "LARGEST_COUNT", 3)
    histograms = filled([1.0, 2.0])
    with pytest.raises(InputError, match="4 queries of one head"):
        histograms.merge(filled([1.0, 2.0]))


def test_histograms_of_other_rows_are_refused() -> None:
    with pytest.raises(ProblemError, match="histograms of 2 rows into 1"):
        filled([1.0]).merge(filled([1.0], [2.0]))


def _without(state: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    return {key: tensor for key, tensor in state.items() if key != name}


def test_a_damaged_state_is_refused() -> None:
    state = filled([1.0, 2.0]).to_state()
    with pytest.raises(InputError, match="damaged: tensor counts is missing"):
        FloatHistograms.from_state(1, _without(state, "counts"))
    with pytest.raises(InputError, match="damaged"):
        FloatHistograms.from_state(1, {**state, "bins": state["bins"] + NUM_BINS})
    with pytest.raises(InputError, match="counts that add up"):
        FloatHistograms.from_state(1, {**state, "counts": state["counts"] + 1})


@given(st.lists(st.one_of(non_negative, st.just(math.inf)), min_size=1, max_size=40), st.data())
@settings(deadline=None)
def test_every_order_statistic_lies_between_its_bounds(values: list[float], data: st.DataObject) -> None:
    rank = data.draw(st.integers(1, len(values)))
    [(low, high)] = filled(values).rank_bounds([0], [rank])
    exact = sorted(values)[rank - 1]
    assert low <= exact <= high
    if 2.0**-58 < exact < 2.0**23:
        assert high <= low * (1 + 1 / 256)
    if rank == len(values) or math.isinf(exact):
        assert low == high == exact


def test_order_statistics_are_those_of_all_rows_together_and_no_others() -> None:
    histograms = filled([1.0, 5.0], [3.0, 7.0])
    assert [low for low, _ in histograms.rank_bounds([0, 1], [1, 2, 3, 4])] == [1.0, 3.0, 5.0, 7.0]
    for rank in (0, 5):
        with pytest.raises(ProblemError, match=f"rank {rank} is not one of 4 numbers; expected 1 to 4"):
            histograms.rank_bounds([0, 1], [rank])
