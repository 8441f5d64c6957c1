"""Intervals of differences of medians: against a bootstrap written out, and as often right as they say."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from fenchel.bootstrap import Bootstrap, Interval
from fenchel.comparing.comparison import _Medians, median_intervals  # pyright: ignore[reportPrivateUsage]

DOCUMENTS, QUERIES, ALIKE = 30, 50, 0.3
REPETITIONS = 1000


def drawn(generator: torch.Generator, heads: int = 1, metrics: int = 1, documents: int = DOCUMENTS) -> Tensor:
    """Normal queries, (heads, metrics, documents, queries), those of a document correlated by ``ALIKE``."""
    level = math.sqrt(ALIKE) * torch.randn(heads, metrics, documents, 1, generator=generator)
    return level + math.sqrt(1 - ALIKE) * torch.randn(heads, metrics, documents, QUERIES, generator=generator)


def documents_of(values: Tensor) -> Tensor:
    return torch.arange(1, values.shape[-2] + 1).repeat_interleave(values.shape[-1])


def intervals(first: Tensor, last: Tensor, *, paired: bool, of: Tensor | None = None) -> list[list[Interval]]:
    """For each of M metrics an interval a head, of two audits (heads, M, documents, queries)."""
    units = [documents_of(values) if of is None else of for values in (first, last)]
    pairs = [
        tuple((values.flatten(1).T, own) for values, own in zip(sides, units, strict=True))
        for sides in zip(first, last, strict=True)
    ]
    return median_intervals(pairs, paired=paired)  # pyright: ignore[reportArgumentType]


def holds(found: Interval, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


@pytest.mark.parametrize("paired", [True, False])
def test_intervals_of_documents_cover_as_often_as_they_say(paired: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    covered = 0
    for _ in range(REPETITIONS // 100):
        first, own = drawn(generator, metrics=100), drawn(generator, metrics=100)
        # Where they are paired, the audits share half of what they saw.
        last = 0.2 + ((first + own) / math.sqrt(2) if paired else own)
        covered += sum(holds(found, 0.2) for (found,) in intervals(first, last, paired=paired))
    assert 0.90 <= covered / REPETITIONS <= 0.98


def test_queries_taken_for_independent_would_be_covered_far_less() -> None:
    generator = torch.Generator().manual_seed(0)
    first, last = drawn(generator, metrics=100), drawn(generator, metrics=100)
    every = torch.arange(DOCUMENTS * QUERIES)
    found = intervals(first, last, paired=False, of=every)
    assert sum(holds(interval, 0.0) for (interval,) in found) / 100 < 0.8


def test_all_heads_are_covered_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    heads, repetitions = 20, 60
    first, last = (drawn(generator, heads, repetitions) for _ in range(2))
    held = [[holds(found, 0.0) for found in metric] for metric in intervals(first, last, paired=True)]
    assert sum(map(all, held)) / repetitions >= 0.86
    assert sum(map(sum, held)) / (heads * repetitions) > 0.98


def test_pairing_sees_a_difference_that_documents_hide() -> None:
    generator = torch.Generator().manual_seed(0)
    first = drawn(generator)
    last = first + 0.1 + 0.02 * torch.randn(first.shape, generator=generator)
    pair, alone = (intervals(first, last, paired=paired)[0][0] for paired in (True, False))
    assert (pair.direction, alone.direction) == (1, 0)
    assert intervals(first, last, paired=True) == [[pair]]


def test_few_documents_give_no_interval() -> None:
    generator = torch.Generator().manual_seed(0)
    for count, known in ((1, False), (2, False), (3, True)):
        first, last = drawn(generator, documents=count), drawn(generator, documents=count)
        for paired in (True, False):
            found = intervals(first, last, paired=paired)[0][0]
            assert (found.low is not None, found.high is not None) == (known, known)


@pytest.mark.parametrize("queries", [7, 40, 3000])
def test_medians_of_resamples_are_those_of_the_drawn_queries(queries: int) -> None:
    generator = torch.Generator().manual_seed(queries)
    units = torch.randint(12, (queries,), generator=generator)
    level = torch.randn(12, 3, generator=generator)[units]
    values = (level + torch.randn(queries, 3, generator=generator)).exp()
    values[:, 2] = values[:, 2].round()
    draws = torch.randint(12, (60, 12), generator=generator)
    weights = torch.zeros(60, 12).scatter_add_(1, draws, torch.ones(60, 12))
    found = _Medians(values, units, 12)(weights)
    exact = torch.stack(
        [
            torch.from_numpy(np.median(values.repeat_interleave(row[units].long(), 0).numpy(), 0))
            for row in weights
        ]
    )
    apart = (found - exact).square().mean(0).sqrt()
    # Of many queries not all values are looked at; an interval is 0.5 % wider by what is allowed here.
    assert bool((apart <= (0.0 if queries < 100 else 0.1) * exact.std(0) + 1e-6).all())


def test_more_than_a_thousand_documents_are_drawn_in_groups() -> None:
    generator = torch.Generator().manual_seed(0)
    documents = torch.arange(2500)
    first, last = (torch.randn(1, 1, 2500, 1, generator=generator) for _ in range(2))
    ((found,),) = intervals(first, last, paired=False, of=documents)
    assert found.low is not None
    assert found.high is not None
    # Of two medians of N independent normal numbers.
    assert found.high - found.low == pytest.approx(2 * 1.96 * math.sqrt(math.pi / 2500), rel=0.15)


def test_a_number_that_is_not_always_finite_has_no_interval() -> None:
    samples = torch.randn(200, 2, generator=torch.Generator().manual_seed(0)).double()
    samples[3, 1] = math.inf
    first, second = Bootstrap.together(torch.zeros(2).double(), samples, 30)
    assert first.low is not None
    assert (second.low, second.high) == (None, None)
