"""Means from samples of windows: unbiased, with standard errors that cover, and no trace of the order."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fenchel.auditing.exact_sums import ExactSums
from fenchel.auditing.sampled_means import SampledMeans
from fenchel.io.schema import Mismatch

SIZES = (40, 90, 17, 5, 60, 60, 30)


def windows(seed: int = 0) -> list[Tensor]:
    """Skewed values of one head's queries, each window with a mean of its own: (1, N) a window."""
    draw = torch.Generator().manual_seed(seed)
    return [
        (1 + place) * torch.rand(1, size, generator=draw, dtype=torch.float64) ** 2
        for place, size in enumerate(SIZES)
    ]


def sampled(every: list[Tensor], most: int, draw: torch.Generator) -> SampledMeans:
    means = SampledMeans(1, 1)
    parts = [
        values[:, torch.randperm(values.shape[1], generator=draw)[: min(most, values.shape[1])]]
        for values in every
    ]
    means.add([torch.cat(parts, 1)], [part.shape[1] for part in parts], [values.shape[1] for values in every])
    return means


def test_the_mean_is_unbiased_and_its_standard_error_covers() -> None:
    every, most = windows(), 8
    truth = float(torch.cat(every, 1).mean())
    draw = torch.Generator().manual_seed(1)
    found = [sampled(every, most, draw) for _ in range(3000)]
    estimates = torch.tensor([means.mean(0, 0) for means in found])
    errors = torch.tensor([means.standard_error(0, 0, math.nan) for means in found])
    spread = float(estimates.std())
    assert abs(float(estimates.mean()) - truth) < 4 * spread / 3000**0.5
    assert float(errors.square().mean()) == pytest.approx(spread**2, rel=0.1)
    covered = float(((estimates - truth).abs() <= 1.96 * errors).double().mean())
    assert 0.90 < covered < 0.97
    # What it would be without the correction for finite windows is seen to be wrong here.
    assert float(errors.square().mean()) < 0.9 * float(
        torch.tensor([v.var(1) * v.shape[1] ** 2 / min(most, v.shape[1]) for v in every]).sum()
        / sum(SIZES) ** 2
    )


def test_one_query_a_window_has_the_variance_of_all() -> None:
    every = windows()
    truth = float(torch.cat(every, 1).mean())
    draw = torch.Generator().manual_seed(1)
    found = [sampled(every, 1, draw) for _ in range(3000)]
    estimates = torch.tensor([means.mean(0, 0) for means in found])
    assert float(estimates.mean()) == pytest.approx(truth, abs=4 * float(estimates.std()) / 3000**0.5)
    pooled = float(torch.cat(every, 1).var())
    assert float(estimates.std()) < found[0].standard_error(0, 0, pooled)
    assert found[0].standard_error(0, 0, math.nan) == math.inf


def test_windows_taken_whole_have_no_error() -> None:
    means = sampled(windows(), 1000, torch.Generator())
    assert means.mean(0, 0) == pytest.approx(float(torch.cat(windows(), 1).mean()), rel=1e-11)
    assert means.standard_error(0, 0, math.nan) == 0.0
    assert math.isnan(SampledMeans(1, 1).mean(0, 0))


def test_heads_together_have_the_error_of_their_average() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.rand(2, 30, generator=draw, dtype=torch.float64)
    means = SampledMeans(1, 2)
    means.add([values], [30], [300])
    expected = (values.mean(0).var() * (1 - 30 / 300) / 30) ** 0.5
    assert means.standard_error(0, None, math.nan) == pytest.approx(float(expected), rel=1e-9)
    assert means.mean(0, None) == pytest.approx(float(values.mean()), rel=1e-9)


def test_infinite_values_are_said() -> None:
    means = SampledMeans(1, 1)
    means.add([torch.tensor([[1.0, math.inf, 2.0]])], [3], [9])
    assert means.mean(0, 0) == math.inf
    assert means.standard_error(0, 0, math.nan) == math.inf


def test_order_and_parts_leave_no_trace_and_states_come_back() -> None:
    every = [values[:, :4] for values in windows()]
    together, reverse, one, other = (SampledMeans(1, 1) for _ in range(4))
    together.add([torch.cat(every, 1)], [4] * 7, list(SIZES))
    reverse.add([torch.cat(every[::-1], 1)], [4] * 7, list(SIZES[::-1]))
    one.add([every[2]], [4], [SIZES[2]])
    rest = [3, 0, 1, 6, 5, 4]
    other.add([torch.cat([every[place] for place in rest], 1)], [4] * 6, [SIZES[place] for place in rest])
    one.merge(other)
    states = [means.to_state() for means in (together, reverse, one)]
    for state in states[1:]:
        assert all(torch.equal(state[name], tensor) for name, tensor in states[0].items())
    again = SampledMeans.from_state(1, torch.tensor([28]), states[0])
    assert again.mean(0, 0) == together.mean(0, 0)
    assert again.standard_error(0, 0, 1.0) == together.standard_error(0, 0, 1.0)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("sampled.population", torch.tensor([3])),
        ("sampled.totals.places", torch.tensor([10**6])),
        ("sampled.other", torch.tensor([1])),
        ("sampled.other.places", torch.tensor([1])),
        ("sampled.totals.mantissas", torch.tensor([-1])),
    ],
)
def test_damaged_states_are_refused(name: str, tensor: Tensor) -> None:
    means = SampledMeans(1, 1)
    means.add([torch.full((1, 4), 0.5)], [4], [9])
    state = means.to_state() | {name: tensor}
    if name == "sampled.totals.places":
        state["sampled.totals.mantissas"] = torch.tensor([1])
    with pytest.raises(Mismatch):
        SampledMeans.from_state(1, torch.tensor([4]), state)


def test_sums_are_exact_over_every_size() -> None:
    sums = ExactSums(2)
    sums.add(
        torch.tensor([[2.0**-100, 2.0**100, 0.0, 3.0], [0.0, 2.0**-200, math.inf, 1.0]], dtype=torch.float64)
    )
    assert sums.value(0) == 2.0**100 + 3
    assert sums.value(1) == math.inf
    assert ExactSums.from_state(2, sums.to_state()).value(0) == sums.value(0)
    third = ExactSums(1)
    third.add(torch.tensor([[1 / 3]], dtype=torch.float64))
    assert third.value(0) == pytest.approx(1 / 3, rel=2.0**-37, abs=0)
