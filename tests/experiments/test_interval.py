"""Student's t, and what intervals must do."""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from fenchel.experiments.interval import MeanInterval, mean_interval


# t at 0.975 from Student's own table of three decimals.
@pytest.mark.parametrize(
    ("values", "quantile"), [([0.0, 2.0], 12.706), ([0.0, 1.0, 2.0], 4.303), (range(11), 2.228)]
)
def test_the_half_width_is_students_quantile_times_the_standard_error(values, quantile):
    found = mean_interval(list(values))
    assert found.half_width == pytest.approx(quantile * stats.sem(values), rel=1e-4)


@pytest.mark.parametrize("values", [[0.8, 0.9], [0.71, 0.72, 0.75], [1.0, 2.0, 4.0, 8.0, 16.0]])
def test_intervals_are_those_of_scipy(values):
    found = mean_interval(values)
    mean = sum(values) / len(values)
    low, high = stats.t.interval(0.95, len(values) - 1, loc=mean, scale=stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((mean, low, high), rel=1e-9)
    assert found.count == len(values)


def test_the_interval_holds_the_mean_in_95_of_100_samples_of_three():
    drawn = torch.randn(4000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covered = sum(not mean_interval(sample).excludes_zero for sample in drawn.tolist())
    assert covered / len(drawn) == pytest.approx(0.95, abs=0.012)


def test_a_single_value_has_no_interval():
    found = mean_interval([0.7])
    assert found == MeanInterval(0.7, None, 1)
    assert found.low is None
    assert found.high is None
    assert not found.excludes_zero


def test_zero_is_excluded_only_by_what_is_farther_than_the_half_width():
    assert MeanInterval(0.2, 0.1, 3).excludes_zero
    assert MeanInterval(-0.2, 0.1, 3).excludes_zero
    assert not MeanInterval(0.1, 0.1, 3).excludes_zero
    assert mean_interval([0.5, 0.5, 0.5]).half_width == 0
