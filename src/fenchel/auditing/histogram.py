"""Counts, exact sums and maxima of non-negative float32 numbers, the same whatever order they come in.

A bin is the top bits of the number's own pattern: eight bits of exponent and the eight highest of the
mantissa, so an octave [2ᵏ, 2ᵏ⁺¹) is cut into 256 equal bins and no logarithm is taken. The bins reach from
2⁻⁶⁰ to 2²⁴; one below takes what is smaller, zero included, and one above what is larger, infinity included.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from fenchel.auditing.bins import (
    EXPONENT_BIAS,
    EXPONENTS,
    GRID,
    INFINITE,
    LARGEST_COUNT,
    MANTISSA_BITS,
    NUM_BINS,
    bin_edges,
    bin_midpoints,
    bins_of,
)
from fenchel.auditing.saved_statistics import check_histograms
from fenchel.errors import InputError, ProblemError
from fenchel.io.schema import Mismatch

__all__ = ["GRID", "NUM_BINS", "FloatHistograms"]

_BLOCK = 1 << 15
_LARGEST_INT32 = 2**31 - 1


class FloatHistograms:
    """One histogram a row, and what the exact mean, the exact maximum and quantiles within 0.2 % need.

    Sums are kept as one 64-bit integer per binary exponent, the sum of the 24-bit mantissas that had it, so
    nothing is ever rounded: adding numbers one by one, in batches, or in parts that are merged gives the same
    bits.

    Args:
        num_rows: Number of histograms.

    Example:
        >>> histograms = FloatHistograms(1)
        >>> histograms.add(torch.tensor([[0.5, 1.0, 3.0]]))
        >>> histograms.mean([0]), histograms.maximum([0])
        (1.5, 3.0)
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        # 32 bits until a row holds 2³¹ numbers: half the memory, and memory is what a thousand heads are
        # short of.
        self._counts = torch.zeros(num_rows, NUM_BINS, dtype=torch.int32)
        self._mantissas = torch.zeros(num_rows, EXPONENTS, dtype=torch.int64)
        self._maxima = torch.zeros(num_rows, dtype=torch.float32)
        self._totals = torch.zeros(num_rows, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Count new numbers.

        Args:
            values: (rows, count), float32, CPU, contiguous, non-negative, not NaN (the caller has checked).
        """
        rows, count = values.shape
        if count == 0:
            return
        self._make_room(count)
        # Blocks of this size stay in the cache and on one core: sharing so little work costs more than it.
        step = max(1, _BLOCK // count)
        for start in range(0, rows, step):
            block = slice(start, min(start + step, rows))
            self._add_block(values[start : start + step], block)

    def _add_block(self, values: Tensor, rows: slice) -> None:
        patterns = values.view(torch.int32) & 0x7FFFFFFF  # -0.0 is 0
        exponents = patterns >> MANTISSA_BITS
        implicit_bit = (exponents > 0).int() << MANTISSA_BITS
        mantissas = (patterns & ((1 << MANTISSA_BITS) - 1)) | implicit_bit
        bins = bins_of(patterns)
        ones = torch.ones((), dtype=self._counts.dtype).expand(bins.shape)
        self._counts[rows].scatter_add_(1, bins.long(), ones)
        self._mantissas[rows].scatter_add_(1, exponents.long(), mantissas.long())
        self._totals[rows] += values.shape[1]
        largest = values.amax(dim=1)
        if torch.isinf(largest).any():
            largest = values.masked_fill(torch.isinf(values), 0.0).amax(dim=1)
        self._maxima[rows] = torch.maximum(self._maxima[rows], largest)

    def merge(self, other: FloatHistograms) -> None:
        """Count everything that ``other`` counted."""
        if other.num_rows != self.num_rows:
            raise ProblemError(f"cannot merge histograms of {other.num_rows} rows into {self.num_rows} rows.")
        self._make_room(int(other._totals.max()) if other.num_rows else 0)
        self._counts += other._counts
        self._mantissas += other._mantissas
        self._totals += other._totals
        torch.maximum(self._maxima, other._maxima, out=self._maxima)

    def _make_room(self, count: int) -> None:
        most = count + (int(self._totals.max()) if self.num_rows else 0)
        if most > LARGEST_COUNT:
            raise InputError(
                f"{most} queries of one head do not fit its exact sums, which hold {LARGEST_COUNT}. "
                "Audit a part of the text, or keep the parts unmerged."
            )
        if most > _LARGEST_INT32 and self._counts.dtype == torch.int32:
            self._counts = self._counts.long()

    def total(self, rows: Sequence[int]) -> int:
        """How many numbers the rows hold together."""
        return int(self._totals[list(rows)].sum())

    def unbounded(self, rows: Sequence[int]) -> int:
        """How many of them are infinite."""
        return int(self._mantissas[list(rows), INFINITE].sum()) >> MANTISSA_BITS

    def mean(self, rows: Sequence[int]) -> float:
        """The mean of all numbers in the rows, correctly rounded; NaN if there is none."""
        total = self.total(rows)
        if total == 0:
            return math.nan
        if self.unbounded(rows):
            return math.inf
        # Rows are added as Python integers: their sum may pass 63 bits.
        units = sum(
            mantissa << max(exponent, 1)
            for row in self._mantissas[list(rows)].tolist()
            for exponent, mantissa in enumerate(row)
            if mantissa
        )
        return units / (total << (EXPONENT_BIAS + MANTISSA_BITS))

    def variance(self, rows: Sequence[int]) -> float:
        """The variance of all numbers in the rows, over one less than their number, each taken for its bin's middle.

        Returns:
            Infinite where a number lies in the highest bin; NaN if there are fewer than two.
        """
        total = self.total(rows)
        if total < 2:
            return math.nan
        counts = self._counts[list(rows)].sum(dim=0, dtype=torch.int64)
        held = counts.nonzero().flatten()
        numbers, middles = counts[held].double(), bin_midpoints()[held]
        if not bool(middles.isfinite().all()):
            return math.inf
        away = middles - (numbers @ middles) / total
        return float(numbers @ away.square()) / (total - 1)

    def maximum(self, rows: Sequence[int]) -> float:
        """The largest number in the rows, exact; NaN if there is none."""
        if self.total(rows) == 0:
            return math.nan
        return math.inf if self.unbounded(rows) else float(self._maxima[list(rows)].max())

    def quantiles(self, rows: Sequence[int], fractions: Sequence[float]) -> list[float]:
        """Quantiles of all numbers in the rows, as ``numpy.quantile`` defines them.

        The number of rank q(N - 1) lies between two order statistics. Each is known to its bin, of which the
        middle is taken, and the two are interpolated linearly. The error is at most 1/512 of the result, and
        2⁻⁶⁰ where that is larger; what lies in the highest bin is taken for the largest finite number.

        Args:
            rows: Histograms to take together.
            fractions: Each in [0, 1].

        Returns:
            One number for each fraction: infinite where the numbers of that rank are, NaN if there is none.
        """
        total = self.total(rows)
        if total == 0:
            return [math.nan for _ in fractions]
        cumulative = self._counts[list(rows)].sum(dim=0, dtype=torch.int64).cumsum(dim=0)
        num_finite = total - self.unbounded(rows)
        largest = float(self._maxima[list(rows)].max())
        midpoints = bin_midpoints()

        def order_statistic(rank: int) -> float:
            if rank >= num_finite:
                return math.inf
            if rank == num_finite - 1:
                return largest
            return min(float(midpoints[torch.searchsorted(cumulative, rank, right=True)]), largest)

        results: list[float] = []
        for fraction in fractions:
            rank = fraction * (total - 1)
            below, part = math.floor(rank), rank - math.floor(rank)
            lower = order_statistic(below)
            results.append(lower if part == 0 else _interpolate(lower, order_statistic(below + 1), part))
        return results

    def rank_bounds(self, rows: Sequence[int], ranks: Sequence[int]) -> list[tuple[float, float]]:
        """Two numbers between which each order statistic of all numbers in the rows lies, whatever the bins hide.

        Args:
            rows: Histograms to take together.
            ranks: Each from 1, the smallest number, to ``total(rows)``, the largest.

        Returns:
            For each rank the edges of its bin, the upper one at most the exact maximum; both infinite where that
            number is.

        Raises:
            ProblemError: If there is no number of such a rank.
        """
        total = self.total(rows)
        if wrong := [rank for rank in ranks if not 1 <= rank <= total]:
            raise ProblemError(f"rank {wrong[0]} is not one of {total} numbers; expected 1 to {total}.")
        cumulative = self._counts[list(rows)].sum(dim=0, dtype=torch.int64).cumsum(dim=0)
        num_finite = total - self.unbounded(rows)
        largest = float(self._maxima[list(rows)].max())
        edges = bin_edges()
        bounds = []
        for rank in ranks:
            if rank > num_finite:
                bounds.append((math.inf, math.inf))
                continue
            place = int(torch.searchsorted(cumulative, rank))
            low = largest if rank == num_finite else float(edges[place])
            bounds.append((low, min(float(edges[place + 1]), largest)))
        return bounds

    def counts_between(self, rows: Sequence[int], edges: Sequence[float]) -> list[int]:
        """How many numbers lie in [edges[i], edges[i + 1]), the last interval being open above.

        A bin that an edge cuts is counted where its middle lies.

        Args:
            rows: Histograms to take together.
            edges: At least two numbers in increasing order.

        Returns:
            ``len(edges) - 1`` counts.

        Raises:
            ProblemError: If the edges are fewer than two, not finite or not increasing.
        """
        rising = all(low < high for low, high in pairwise(edges))
        if len(edges) < 2 or not rising or not all(math.isfinite(edge) for edge in edges):
            raise ProblemError(f"edges {list(edges)} must be two or more finite numbers in increasing order.")
        counts = self._counts[list(rows)].sum(dim=0, dtype=torch.int64)
        starts = torch.searchsorted(bin_midpoints(), torch.tensor(edges, dtype=torch.float64)).tolist()
        starts[-1] = NUM_BINS
        return [int(counts[low:high].sum()) for low, high in pairwise(starts)]

    def to_state(self) -> dict[str, Tensor]:
        """Everything that was counted, without the empty bins; ``from_state`` inverts it exactly."""
        bins = self._counts.flatten().nonzero().flatten()
        exponents = self._mantissas.flatten().nonzero().flatten()
        return {
            "bins": bins,
            "counts": self._counts.flatten()[bins].long(),
            "exponents": exponents,
            "mantissas": self._mantissas.flatten()[exponents],
            "maxima": self._maxima.clone(),
            "totals": self._totals.clone(),
        }

    @classmethod
    def from_state(cls, num_rows: int, state: dict[str, Any]) -> FloatHistograms:
        """Rebuild what ``to_state`` gave.

        Raises:
            InputError: If the tensors are not those of ``num_rows`` histograms of this grid, or contradict each other.
        """
        try:
            check_histograms(num_rows, state)
        except Mismatch as error:
            raise InputError(f"the saved histograms are damaged: {error}.") from error
        self = cls(num_rows)
        self._make_room(int(state["totals"].max()) if num_rows else 0)
        self._counts.view(-1)[state["bins"]] = state["counts"].to(self._counts.dtype)
        self._mantissas.view(-1)[state["exponents"]] = state["mantissas"]
        self._maxima.copy_(state["maxima"])
        self._totals.copy_(state["totals"])
        return self


def _interpolate(lower: float, upper: float, part: float) -> float:
    return math.inf if math.isinf(upper) else lower + (upper - lower) * part
