from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom

from fenchel.comparing.comparison import Interval, difference, median_ranks

ERROR = 0.1
REPETITIONS = 400
COUNT = 41


@pytest.mark.parametrize("error", [0.2, 0.05, 1e-4])
def test_the_ranks_hold_what_they_promise_and_no_narrower_ones_would(error: float) -> None:
    for count in range(1, 200):
        ranks = median_ranks(count, error)
        missed_by = [2 * binom.cdf(rank - 1, count, 0.5) for rank in range(1, count // 2 + 1)]
        kept = [rank for rank, missed in enumerate(missed_by, start=1) if missed <= error]
        assert ranks == ((kept[-1], count + 1 - kept[-1]) if kept else None)


def test_too_few_numbers_tell_nothing() -> None:
    assert median_ranks(0, 0.05) is None
    assert median_ranks(5, 0.05) is None
    assert median_ranks(6, 0.05) == (1, 6)


def interval(values: torch.Tensor, error: float, inwards: int = 0) -> Interval:
    ordered = values.sort().values.tolist()
    ranks = median_ranks(values.numel(), error)
    assert ranks is not None
    return Interval(ordered[ranks[0] + inwards - 1], ordered[ranks[1] - inwards - 1])


SHAPES = {
    "skewed": (lambda noise: torch.exp(1.5 * noise - 2), math.exp(-2)),
    "a quarter infinite": (lambda noise: torch.where(noise > 0.6745, math.inf, noise.exp()), 1.0),
    "few values": (lambda noise: (2 * noise.clamp(-1, 1)).round() / 4 + 0.5, 0.5),
}


def covered(shape: str, dependence: float, inwards: int) -> float:
    """How often the interval of a difference holds the true one, where the second sample leans on the first."""
    make, median = SHAPES[shape]
    draw = torch.Generator().manual_seed(0)
    hits = 0
    for _ in range(REPETITIONS):
        first, own = torch.randn(2, COUNT, generator=draw, dtype=torch.float64)
        second = dependence * first + math.sqrt(1 - dependence**2) * own
        found = difference(
            interval(make(first), ERROR / 2, inwards), interval(2 * make(second), ERROR / 2, inwards)
        )
        hits += found.low <= 2 * median - median <= found.high
    return hits / REPETITIONS


@pytest.mark.parametrize("dependence", [0.0, 0.95, -0.95])
@pytest.mark.parametrize("shape", list(SHAPES))
def test_the_difference_of_medians_is_covered(shape: str, dependence: float) -> None:
    # Three standard errors of a share of REPETITIONS.
    slack = 3 * math.sqrt(ERROR * (1 - ERROR) / REPETITIONS)
    assert covered(shape, dependence, 0) >= 1 - ERROR - slack


def test_the_simulation_sees_intervals_that_are_too_narrow() -> None:
    assert covered("skewed", -0.95, 6) < 1 - ERROR - 0.05


def test_a_difference_lies_between_the_farthest_ends() -> None:
    assert difference(Interval(1, 2), Interval(5, 7)) == Interval(3, 6)
    assert difference(Interval(1, math.inf), Interval(5, 7)) == Interval(-math.inf, 6)
    assert difference(Interval(1, 2), Interval(math.inf, math.inf)) == Interval(math.inf, math.inf)
    assert difference(Interval(math.inf, math.inf), Interval(1, 2)).high == -math.inf
    assert difference(Interval(math.inf, math.inf), Interval(1, math.inf)) == Interval(-math.inf, math.inf)


def test_what_an_interval_says() -> None:
    assert [Interval(*ends).direction for ends in ((1, 2), (-2, -1), (-1, 1), (0, 1))] == [1, -1, 0, 0]
    assert [Interval(*ends).least for ends in ((1, 2), (-2, -1), (-1, 1))] == [1, 1, 0]
