"""What an audit keeps of millions of queries: per head, integers that can be added in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.auditing.heads import KINDS, METRICS, HeadKey, Kind
from fenchel.auditing.histogram import GRID, FloatHistograms
from fenchel.auditing.saved_statistics import (
    HISTOGRAM_SCHEMA,
    STATISTICS_SCHEMA,
    check_layer,
    tensors_by_layer,
)
from fenchel.errors import InputError, ProblemError
from fenchel.storage.schema import Mismatch

if TYPE_CHECKING:
    from fenchel.auditing.measure import Measures

__all__ = ["RECORD_QUANTILES", "AuditStatistics"]

RECORD_QUANTILES: dict[str, float] = {"p50": 0.50, "p95": 0.95}
"""The quantiles in a head's record and the suffixes of their names."""


@dataclass
class _LayerStatistics:
    """One layer of one kind."""

    heads: tuple[int, ...]
    histograms: FloatHistograms  # row metric * len(heads) + head
    queries: Tensor  # (heads,) int64, as are the two below
    newton_steps: Tensor
    not_converged: Tensor

    @classmethod
    def empty(cls, heads: tuple[int, ...]) -> _LayerStatistics:
        def zeros() -> Tensor:
            return torch.zeros(len(heads), dtype=torch.int64)

        return cls(heads, FloatHistograms(len(METRICS) * len(heads)), zeros(), zeros(), zeros())

    @classmethod
    def from_state(cls, heads: tuple[int, ...], parts: dict[str, Tensor]) -> _LayerStatistics:
        counters = check_layer(len(heads), parts)
        histograms = FloatHistograms.from_state(
            len(METRICS) * len(heads), {name: parts[name] for name in HISTOGRAM_SCHEMA}
        )
        return cls(heads, histograms, *(tensor.clone() for tensor in counters))

    def merge(self, other: _LayerStatistics) -> None:
        self.histograms.merge(other.histograms)
        self.queries += other.queries
        self.newton_steps += other.newton_steps
        self.not_converged += other.not_converged


class AuditStatistics:
    r"""Distribution of every metric over the queries of every head, without keeping a query.

    Per head and metric: a histogram whose quantiles are within 0.2 %, the exact sum, the exact maximum and the number
    of infinite values; per head also the number of queries, of Newton steps and of queries whose solve did not
    converge. All are integers or maxima, so ``merge`` is commutative and associative bit for bit, and the batches in
    which queries arrive leave no trace.

    Memory: 528 kB a head (12 heads in each of 12 layers: 76 MB; 1,024 heads: 541 MB), allocated when a layer is first
    seen.

    Example:
        >>> AuditStatistics().keys()
        []
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[Kind, int], _LayerStatistics] = {}

    def add(self, kind: Kind, layer: int, heads: Sequence[int], measures: Measures, counted: Tensor) -> None:
        """Count the queries of one attention call.

        Args:
            kind: How the layer attends.
            layer: Its number within the kind, from 1.
            heads: Numbers of the H heads that were measured, from 1, the same at every call of a layer.
            measures: Each metric (B, H, m), float32, non-negative; infinity is counted apart.
            counted: (B, m) bool, False for padding and for overlap counted before.

        Raises:
            ProblemError: If a metric of a counted query is NaN or negative, or shapes do not match; nothing
                is counted then.
        """
        queries = _CountedQueries(kind, layer, heads, counted)
        values = [queries.metric(name, measures.values[name]) for name in METRICS]
        steps, converged = queries.select(measures.newton_steps), queries.select(measures.converged)
        statistics = self._layers.get((kind, layer))
        if statistics is None:
            statistics = self._layers[kind, layer] = _LayerStatistics.empty(tuple(heads))
        if statistics.heads != tuple(heads):
            raise ProblemError(
                f"{kind} layer {layer} was measured for heads {list(statistics.heads)} before "
                f"and for {list(heads)} now."
            )
        for number, numbers in enumerate(values):
            statistics.histograms.add(numbers, number * len(heads))
        statistics.queries += steps.shape[1]
        statistics.newton_steps += steps.sum(dim=1, dtype=torch.int64)
        statistics.not_converged += (~converged).sum(dim=1, dtype=torch.int64)

    def merge(self, other: AuditStatistics) -> None:
        """Count everything that ``other`` counted; ``other`` is left as it is.

        Raises:
            ProblemError: If a layer was measured for other heads.
        """
        for (kind, layer), theirs in other._layers.items():
            ours = self._layers.get((kind, layer))
            if ours is not None and ours.heads != theirs.heads:
                raise ProblemError(
                    f"{kind} layer {layer} has heads {list(ours.heads)} here and {list(theirs.heads)} there; "
                    "merge audits of the same model with the same choice of heads."
                )
        for site, theirs in other._layers.items():
            self._layers.setdefault(site, _LayerStatistics.empty(theirs.heads)).merge(theirs)

    def keys(self) -> list[HeadKey]:
        """Every head, ordered by kind (as in ``KINDS``), layer and number."""
        return [
            HeadKey(kind, layer, head)
            for kind, layer in self.layers()
            for head in sorted(self._layers[kind, layer].heads)
        ]

    def layers(self) -> list[tuple[Kind, int]]:
        """Every layer, ordered by kind (as in ``KINDS``) and number."""
        return sorted(self._layers, key=lambda site: (KINDS.index(site[0]), site[1]))

    def queries(self, key: HeadKey) -> int:
        """How many queries of this head were counted."""
        statistics, columns = self._columns(key.kind, key.layer, key.head)
        return int(statistics.queries[columns].sum())

    def newton_steps(self, kind: Kind, layer: int, head: int | None = None) -> int:
        """Newton steps of all queries of a head, or of a layer."""
        statistics, columns = self._columns(kind, layer, head)
        return int(statistics.newton_steps[columns].sum())

    def not_converged(self, kind: Kind, layer: int, head: int | None = None) -> int:
        """Queries of a head, or of a layer, that the exact solver left above the tolerance."""
        statistics, columns = self._columns(kind, layer, head)
        return int(statistics.not_converged[columns].sum())

    def unbounded(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> int:
        """Queries of a head, or of a layer, for which the metric is infinite."""
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.unbounded(rows)

    def mean(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> float:
        """Mean over the queries of a head, or of all heads of a layer: the exact mean, correctly rounded.

        Infinite if the metric of one query is; NaN if no query was counted.
        """
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.mean(rows)

    def maximum(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> float:
        """Largest value over the queries of a head, or of a layer, exact."""
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.maximum(rows)

    def quantile(
        self, metric: str, fraction: float, kind: Kind, layer: int, head: int | None = None
    ) -> float:
        """Quantile over the queries of a head, or of a layer, as ``numpy.quantile`` defines it, within 0.2 %.

        Raises:
            ProblemError: If ``fraction`` is outside [0, 1].
        """
        if not 0.0 <= fraction <= 1.0:
            raise ProblemError(f"quantile fraction {fraction} must lie between 0 and 1.")
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.quantiles(rows, [fraction])[0]

    def rank_bounds(
        self, metric: str, ranks: Sequence[int], kind: Kind, layer: int, head: int | None = None
    ) -> list[tuple[float, float]]:
        """Between which two numbers the queries' values of given ranks lie, the smallest having rank 1.

        Raises:
            ProblemError: If a rank is not one of 1, 2, ..., the number of queries.
        """
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.rank_bounds(rows, ranks)

    def histogram(
        self, metric: str, kind: Kind, layer: int, head: int | None = None, *, edges: Sequence[float]
    ) -> list[int]:
        """Counts of the queries of a head, or of a layer, between edges; the last interval is open above.

        Args:
            metric: One of ``METRICS``.
            kind: How the layer attends.
            layer: Its number within the kind, from 1.
            head: Its number from 1, or None for all heads of the layer.
            edges: Increasing numbers; what lies below the first is not counted.

        Returns:
            ``len(edges) - 1`` counts, exact but for bins of relative width 1/256 that an edge cuts.
        """
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.counts_between(rows, edges)

    @staticmethod
    def record_keys() -> tuple[str, ...]:
        """The keys of ``record``, in their order."""
        suffixes = ("mean", *RECORD_QUANTILES, "max")
        metrics = (f"{metric}_{suffix}" for metric in METRICS for suffix in suffixes)
        last = ("certificate_unbounded", "newton_steps_mean", "not_converged")
        return ("kind", "layer", "head", "queries", *metrics, *last)

    def record(self, key: HeadKey) -> dict[str, float | int | str | None]:
        """The head's entry in ``heads.json``.

        Returns:
            ``kind``, ``layer``, ``head``, ``queries``, then ``NAME_mean``, ``NAME_p50``, ``NAME_p95``,
            ``NAME_max`` for each metric, ``certificate_unbounded``, ``newton_steps_mean`` and
            ``not_converged``. A number that would be infinite is None.
        """
        kind, layer, head = key
        queries = self.queries(key)
        values: list[float | int | str | None] = [kind, layer, head, queries]
        for metric in METRICS:
            histograms, rows = self._rows(metric, kind, layer, head)
            quantiles = histograms.quantiles(rows, list(RECORD_QUANTILES.values()))
            found = (histograms.mean(rows), *quantiles, histograms.maximum(rows))
            values += [value if math.isfinite(value) else None for value in found]
        values.append(self.unbounded("certificate", kind, layer, head))
        values.append(self.newton_steps(kind, layer, head) / queries if queries else None)
        values.append(self.not_converged(kind, layer, head))
        return dict(zip(self.record_keys(), values, strict=True))

    def to_state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything that was counted, to be saved.

        Returns:
            Tensors by name, without the empty bins, and what describes them, ready for JSON.
        """
        tensors: dict[str, Tensor] = {}
        sites: list[dict[str, Any]] = []
        for kind, layer in self.layers():
            statistics = self._layers[kind, layer]
            sites.append({"kind": kind, "layer": layer, "heads": list(statistics.heads)})
            parts = statistics.histograms.to_state()
            parts["queries"] = statistics.queries.clone()
            parts["newton_steps"] = statistics.newton_steps.clone()
            parts["not_converged"] = statistics.not_converged.clone()
            tensors.update({f"{kind}.{layer}.{name}": tensor for name, tensor in parts.items()})
        return tensors, {"grid": GRID, "metrics": list(METRICS), "layers": sites}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], description: dict[str, Any]) -> AuditStatistics:
        """Rebuild what ``to_state`` gave, bit for bit.

        Raises:
            InputError: If the state was written with other bins or metrics, or is damaged.
        """
        if description.get("grid") != GRID or description.get("metrics") != list(METRICS):
            raise InputError(
                f"the saved statistics have bins {description.get('grid')} and metrics "
                f"{description.get('metrics')}; this version of fenchel reads bins {GRID} and metrics "
                f"{list(METRICS)}. Audit again, or use the version that wrote them."
            )
        self = cls()
        try:
            STATISTICS_SCHEMA(description, "statistics")
            parts = tensors_by_layer(tensors, description["layers"])
        except Mismatch as error:
            raise InputError(f"the saved statistics are damaged: {error}.") from error
        for site in description["layers"]:
            kind, layer, heads = site["kind"], site["layer"], tuple(site["heads"])
            try:
                self._layers[kind, layer] = _LayerStatistics.from_state(heads, parts[kind, layer])
            except Mismatch as error:
                message = f"the saved statistics of {kind} layer {layer} are damaged: {error}."
                raise InputError(message) from error
        return self

    def _columns(self, kind: Kind, layer: int, head: int | None) -> tuple[_LayerStatistics, list[int]]:
        statistics = self._layers.get((kind, layer))
        if statistics is None:
            known = sorted(f"{kind} {layer}" for kind, layer in self._layers)
            raise InputError(f"{kind} layer {layer} was not audited; audited layers: {', '.join(known)}.")
        if head is None:
            return statistics, list(range(len(statistics.heads)))
        if head not in statistics.heads:
            raise InputError(
                f"head {head} of {kind} layer {layer} was not audited; "
                f"audited heads: {list(statistics.heads)}."
            )
        return statistics, [statistics.heads.index(head)]

    def _rows(
        self, metric: str, kind: Kind, layer: int, head: int | None
    ) -> tuple[FloatHistograms, list[int]]:
        if metric not in METRICS:
            raise InputError(f"metric {metric!r} is not measured; expected one of {', '.join(METRICS)}.")
        statistics, columns = self._columns(kind, layer, head)
        first = METRICS.index(metric) * len(statistics.heads)
        return statistics.histograms, [first + column for column in columns]


class _CountedQueries:
    """Takes the counted queries of one attention call out of (B, H, m), to (H, N) on the CPU."""

    def __init__(self, kind: Kind, layer: int, heads: Sequence[int], counted: Tensor) -> None:
        self._name = f"{kind} layer {layer}"
        self._heads = heads
        self._counted = counted
        self._columns = None if bool(counted.all()) else counted.flatten().nonzero().flatten()

    def select(self, tensor: Tensor) -> Tensor:
        by_head = tensor.detach().transpose(0, 1).flatten(1)
        if self._columns is not None:
            by_head = by_head.index_select(1, self._columns.to(by_head.device))
        return by_head.cpu().contiguous()

    def metric(self, name: str, tensor: Tensor) -> Tensor:
        """The values of a metric, float32; refuses NaN and negative numbers."""
        batch, count = self._counted.shape
        if tuple(tensor.shape) != (batch, len(self._heads), count):
            raise ProblemError(
                f"{name} of {self._name} has shape {tuple(tensor.shape)}, but counted {(batch, count)} and "
                f"{len(self._heads)} heads ask for {(batch, len(self._heads), count)}."
            )
        values = self.select(tensor).float()
        # The least of numbers with a NaN among them is NaN, which is not at least 0.
        if values.numel() and not bool(values.amin() >= 0):
            wrong = ~(values >= 0)
            row = int(wrong.any(dim=1).nonzero()[0])
            raise ProblemError(
                f"{name} is {float(values[row][wrong[row]][0])} for {int(wrong[row].sum())} of "
                f"{values.shape[1]} queries of {self._name} head {self._heads[row]}; it must be a "
                "non-negative number. Check the model for NaN weights, or audit with dtype float32."
            )
        return values
