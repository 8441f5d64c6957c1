r"""Means over all queries of the windows from a sample of each, with their standard errors.

Of window w, with :math:`N_w` counted queries, :math:`n_w` were drawn without replacement, every set of them as likely
as any other; :math:`\bar y_w` and :math:`s_w^2` are mean and variance (over :math:`n_w - 1`) of what was measured of
them. With :math:`N = \sum_w N_w`, the mean and its standard error are those of stratified sampling,

.. math:: \hat y = \frac1N\sum_w N_w\bar y_w, \qquad
    \mathrm{se}^2 = \frac1{N^2}\sum_w N_w^2\Bigl(1 - \frac{n_w}{N_w}\Bigr)\frac{s_w^2}{n_w}.

Both are unbiased for the mean that an audit of all queries of the same windows has, and for the variance of
:math:`\hat y` about it. A window of which all queries were taken adds nothing to the error. Nothing is said of other
texts.

From one query there is no :math:`s_w^2`: it is then that of the sample of all windows, from the middles of the
histogram's bins. It has the differences between windows in it too, so the standard error is rather too large.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fenchel.auditing.exact_sums import ExactSums
from fenchel.io.schema import Mismatch, Shown, TensorSchema, check_tensors

__all__ = ["PREFIX", "SampledMeans"]

PREFIX = "sampled."
"""How the names of saved tensors begin."""

_SIZES = {
    "population": TensorSchema((torch.int64,), (1,), least=0),
    "single": TensorSchema((torch.int64,), (1,), least=0),
}
_PARTS = ("totals", "variances")


class SampledMeans:
    """The means of one layer: of each head, and of all heads together, which answer the same queries.

    Args:
        metrics: Number of metrics.
        heads: Number of heads.

    Attributes:
        population: N, how many queries the means speak for.
    """

    def __init__(self, metrics: int, heads: int) -> None:
        self.population = 0
        self._metrics, self._heads = metrics, heads
        self._totals, self._variances = (ExactSums(metrics * (heads + 1)) for _ in range(2))
        self._single = 0  # Σ N_w (N_w - 1) over windows of which one query was drawn

    def add(self, values: Sequence[Tensor], sizes: Sequence[int], population: Sequence[int]) -> None:
        """Count the sampled queries of one attention call.

        Args:
            values: Each metric, (heads, n), window by window.
            sizes: How many queries were drawn of each window.
            population: How many there are in each.
        """
        every = torch.stack(list(values)).double()
        every = torch.cat([every, every.mean(1, keepdim=True)], 1).flatten(0, 1)
        totals, variances = [], []
        for drawn, whole, of_window in zip(sizes, population, every.split(list(sizes), 1), strict=True):
            if not drawn:
                continue
            self.population += whole
            totals.append(whole * of_window.mean(1))
            if drawn > 1 and whole > drawn:
                variance = of_window.var(1) * (whole * (whole - drawn) / drawn)
                variances.append(variance.nan_to_num(nan=math.inf, posinf=math.inf))
            elif whole > drawn:
                self._single += whole * (whole - 1)
        for sums, found in ((self._totals, totals), (self._variances, variances)):
            if found:
                sums.add(torch.stack(found, 1))

    def merge(self, other: SampledMeans) -> None:
        """Count everything that ``other`` counted."""
        self.population += other.population
        self._single += other._single
        self._totals.merge(other._totals)
        self._variances.merge(other._variances)

    def mean(self, metric: int, head: int | None) -> float:
        """The estimated mean over all queries of a head, or of all heads; NaN if no query was counted."""
        if not self.population:
            return math.nan
        return self._totals.value(self._row(metric, head)) / self.population

    def standard_error(self, metric: int, head: int | None, variance: float) -> float:
        """The standard error of ``mean``; infinite where nothing bounds it.

        Args:
            metric: Number of the metric.
            head: Number of the head; None for all together.
            variance: That of all sampled queries, for windows of which one query was drawn; NaN where there is none.
        """
        if not self.population:
            return math.nan
        found = self._variances.value(self._row(metric, head))
        if self._single:
            found += math.inf if math.isnan(variance) else variance * self._single
        return math.sqrt(found) / self.population

    def _row(self, metric: int, head: int | None) -> int:
        return metric * (self._heads + 1) + (self._heads if head is None else head)

    def to_state(self) -> dict[str, Tensor]:
        """Everything that was counted, by name."""
        tensors = {
            f"{PREFIX}{name}": torch.tensor([number])
            for name, number in (("population", self.population), ("single", self._single))
        }
        for name, sums in zip(_PARTS, (self._totals, self._variances), strict=True):
            tensors |= {f"{PREFIX}{name}.{part}": tensor for part, tensor in sums.to_state().items()}
        return tensors

    @classmethod
    def from_state(cls, metrics: int, queries: Tensor, parts: dict[str, Tensor]) -> SampledMeans:
        """Rebuild what ``to_state`` gave.

        Args:
            metrics: Number of metrics.
            queries: How many of each head were drawn, (heads,).
            parts: By name.

        Raises:
            Mismatch: If the tensors are none that a sample can have given.
        """
        named = {name.removeprefix(PREFIX): tensor for name, tensor in parts.items()}
        check_tensors({name: tensor for name, tensor in named.items() if "." not in name}, _SIZES)
        self = cls(metrics, len(queries))
        self.population, self._single = int(named["population"]), int(named["single"])
        if bool((queries > self.population).any()):
            raise Mismatch(
                "tensor sampled.population", Shown("below the number of queries"), "at least as many"
            )
        self._totals, self._variances = (
            ExactSums.from_state(
                metrics * (len(queries) + 1),
                {
                    name.removeprefix(f"{part}."): tensor
                    for name, tensor in named.items()
                    if name.startswith(f"{part}.")
                },
            )
            for part in _PARTS
        )
        if strangers := [name for name in named if "." in name and name.split(".")[0] not in _PARTS]:
            raise Mismatch(f"tensor sampled.{strangers[0]}", Shown("there"), "no tensor of that name")
        return self
