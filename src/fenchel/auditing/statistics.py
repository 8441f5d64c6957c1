"""What an audit keeps of millions of queries: per head, integers that can be added in any order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from fenchel.auditing.counted_queries import CountedQueries
from fenchel.auditing.heads import KINDS, METRICS, HeadKey, Kind
from fenchel.auditing.histogram import GRID, FloatHistograms
from fenchel.auditing.layer_statistics import LayerStatistics
from fenchel.auditing.pattern import KEY_CLASSES, TOKEN_TYPES
from fenchel.auditing.pattern_counts import PatternCounts
from fenchel.auditing.saved_statistics import SavedStatistics, tensors_by_layer
from fenchel.errors import InputError, ProblemError
from fenchel.io.schema import Mismatch, check_json

if TYPE_CHECKING:
    from fenchel.auditing.measure import Measures

__all__ = ["RECORD_QUANTILES", "AuditStatistics"]

_READ_WHERE_THE_SAME: dict[str, list[Any]] = {
    "grid": GRID,
    "metrics": list(METRICS),
    "types": list(TOKEN_TYPES),
    "classes": list(KEY_CLASSES),
}

RECORD_QUANTILES: dict[str, float] = {"p50": 0.50, "p95": 0.95}
"""The quantiles in a head's record and the suffixes of their names."""


class AuditStatistics:
    r"""Distribution of every metric over the queries of every head, without keeping a query.

    Per head and metric: a histogram whose quantiles are within 0.2 %, the exact sum, the exact maximum and the number
    of infinite values; per head also the number of queries, of steps and of queries whose solve did not
    converge, and what moved between which tokens. All are integers or maxima, so ``merge`` is commutative and
    associative bit for bit, and the batches in which queries arrive leave no trace.

    Memory: 616 kB a head (12 heads in each of 12 layers: 89 MB; 1,024 heads: 631 MB), allocated when a layer is first
    seen, and 16 bytes a head for every token of the vocabulary that occurs, for 16,384 tokens at most.

    Attributes:
        words: The text of tokens by id, to name those that get too much and too little.

    Example:
        >>> AuditStatistics().keys()
        []
    """

    def __init__(self) -> None:
        self._layers: dict[tuple[Kind, int], LayerStatistics] = {}
        self.words: dict[int, str] = {}

    def add(
        self,
        kind: Kind,
        layer: int,
        heads: Sequence[int],
        measures: Measures,
        counted: Tensor,
        population: Tensor | None = None,
    ) -> None:
        """Count the queries of one attention call.

        Args:
            kind: How the layer attends.
            layer: Its number within the kind, from 1.
            heads: Numbers of the H heads that were measured, from 1, the same at every call of a layer.
            measures: Each metric (B, H, m), float32, non-negative; infinity is counted apart.
            counted: (B, m) bool, False for padding and for overlap counted before.
            population: (B,), of how many queries of each window those that are counted are a sample; None where
                they are all.

        Raises:
            ProblemError: If a metric of a counted query is NaN or negative, or shapes do not match; nothing
                is counted then.
        """
        queries = CountedQueries(kind, layer, heads, counted)
        values = queries.metrics(measures.values)
        steps, converged = queries.select(measures.newton_steps), queries.select(measures.converged)
        statistics = self._layers.get((kind, layer))
        if statistics is None:
            statistics = LayerStatistics.empty(tuple(heads), sampled=population is not None)
            self._layers[kind, layer] = statistics
        if statistics.heads != tuple(heads):
            raise ProblemError(
                f"{kind} layer {layer} was measured for heads {list(statistics.heads)} before "
                f"and for {list(heads)} now."
            )
        if (statistics.sampled is None) != (population is None):
            raise ProblemError(
                f"{kind} layer {layer} was measured by a sample of its queries and by all of them."
            )
        statistics.add(values, steps, converged, measures.patterns)
        if statistics.sampled is not None and population is not None:
            statistics.sampled.add(values.unbind(), counted.sum(1).tolist(), population.tolist())

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
            if ours is not None and (ours.sampled is None) != (theirs.sampled is None):
                raise ProblemError(
                    f"{kind} layer {layer} has a sample of its queries in one and all of them in the other; "
                    "merge audits of the same sample."
                )
        self.words |= other.words
        for site, theirs in other._layers.items():
            empty = LayerStatistics.empty(theirs.heads, sampled=theirs.sampled is not None)
            self._layers.setdefault(site, empty).merge(theirs)

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

    @property
    def sampled(self) -> bool:
        """Whether what was counted is a sample of each window's queries."""
        return any(layer.sampled is not None for layer in self._layers.values())

    def population(self, key: HeadKey) -> int:
        """For how many queries of this head means speak: all of the windows' of which some were counted."""
        statistics, _ = self._columns(key.kind, key.layer, key.head)
        return self.queries(key) if statistics.sampled is None else statistics.sampled.population

    def newton_steps(self, kind: Kind, layer: int, head: int | None = None) -> int:
        """Steps of all queries of a head, or of a layer."""
        statistics, columns = self._columns(kind, layer, head)
        return int(statistics.newton_steps[columns].sum())

    def not_converged(self, kind: Kind, layer: int, head: int | None = None) -> int:
        """Queries of a head, or of a layer, that the exact solver left above the tolerance."""
        statistics, columns = self._columns(kind, layer, head)
        return int(statistics.not_converged[columns].sum())

    def patterns(self, kind: Kind, layer: int) -> tuple[tuple[int, ...], PatternCounts]:
        """The heads of a layer, in the order in which they were counted, and what moved in them."""
        statistics, _ = self._columns(kind, layer, None)
        return statistics.heads, statistics.patterns

    def unbounded(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> int:
        """Queries of a head, or of a layer, for which the metric is infinite."""
        histograms, rows = self._rows(metric, kind, layer, head)
        return histograms.unbounded(rows)

    def mean(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> float:
        """Mean over the queries of a head, or of all heads of a layer: the exact mean, correctly rounded.

        Of a sample it is the estimate for all queries (:mod:`fenchel.auditing.sampled_means`), to 1e-11. Infinite if
        the metric of one query is; NaN if no query was counted.
        """
        histograms, rows = self._rows(metric, kind, layer, head)
        sampled = self._layers[kind, layer].sampled
        if sampled is not None:
            return sampled.mean(METRICS.index(metric), self._column(kind, layer, head))
        return histograms.mean(rows)

    def standard_error(self, metric: str, kind: Kind, layer: int, head: int | None = None) -> float:
        """Standard error of ``mean``, as far as it comes from not counting every query of a window.

        0 where all were counted, infinite where the mean or what is known of its error is, NaN if none was.
        """
        histograms, rows = self._rows(metric, kind, layer, head)
        sampled = self._layers[kind, layer].sampled
        if sampled is None:
            return 0.0 if histograms.total(rows) else math.nan
        variances = [histograms.variance([row]) for row in rows]
        found = sampled.standard_error(
            METRICS.index(metric), self._column(kind, layer, head), math.fsum(variances) / len(rows)
        )
        return math.inf if math.isinf(self.mean(metric, kind, layer, head)) else found

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
    def record_keys(*, sampled: bool = False) -> tuple[str, ...]:
        """The keys of ``record``, in their order, without or with those of a sample."""
        suffixes = ("mean", *(("se",) if sampled else ()), *RECORD_QUANTILES, "max")
        metrics = (f"{metric}_{suffix}" for metric in METRICS for suffix in suffixes)
        last = ("certificate_unbounded", "newton_steps_mean", "not_converged")
        first = ("kind", "layer", "head", "queries", *(("population",) if sampled else ()))
        return (*first, *metrics, *last)

    def record(self, key: HeadKey) -> dict[str, float | int | str | None]:
        """The head's entry in ``heads.json``.

        Returns:
            ``kind``, ``layer``, ``head``, ``queries``, then ``NAME_mean``, ``NAME_p50``, ``NAME_p95``,
            ``NAME_max`` for each metric, ``certificate_unbounded``, ``newton_steps_mean`` and
            ``not_converged``. Where queries were sampled, there are also ``population``, how many queries the means
            speak for, and after each mean its standard error, ``NAME_se``. A number that would be infinite is None.
        """
        kind, layer, head = key
        queries = self.queries(key)
        values: list[float | int | str | None] = [kind, layer, head, queries]
        if self.sampled:
            values.append(self.population(key))
        for metric in METRICS:
            histograms, rows = self._rows(metric, kind, layer, head)
            quantiles = histograms.quantiles(rows, list(RECORD_QUANTILES.values()))
            error = (self.standard_error(metric, kind, layer, head),) if self.sampled else ()
            found = (self.mean(metric, kind, layer, head), *error, *quantiles, histograms.maximum(rows))
            values += [value if math.isfinite(value) else None for value in found]
        values.append(self.unbounded("certificate", kind, layer, head))
        values.append(self.newton_steps(kind, layer, head) / queries if queries else None)
        values.append(self.not_converged(kind, layer, head))
        return dict(zip(self.record_keys(sampled=self.sampled), values, strict=True))

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
            parts = statistics.to_state()
            tensors.update({f"{kind}.{layer}.{name}": tensor for name, tensor in parts.items()})
        return tensors, {**_READ_WHERE_THE_SAME, "layers": sites, "words": self._words()}

    @classmethod
    def from_state(cls, tensors: dict[str, Tensor], description: dict[str, Any]) -> AuditStatistics:
        """Rebuild what ``to_state`` gave, bit for bit.

        Raises:
            InputError: If the state was written with other bins or metrics, or is damaged.
        """
        for name, expected in _READ_WHERE_THE_SAME.items():
            if description.get(name) != expected:
                what = "bins" if name == "grid" else name
                raise InputError(
                    f"the saved statistics have {what} {description.get(name)}; this version of fenchel reads {what} "
                    f"{expected}. Audit again, or use the version that wrote them."
                )
        self = cls()
        try:
            check_json(SavedStatistics, description, "statistics")
            parts = tensors_by_layer(tensors, description["layers"])
        except Mismatch as error:
            raise InputError(f"the saved statistics are damaged: {error}.") from error
        for site in description["layers"]:
            kind, layer, heads = site["kind"], site["layer"], tuple(site["heads"])
            try:
                self._layers[kind, layer] = LayerStatistics.from_state(heads, parts[kind, layer])
            except Mismatch as error:
                message = f"the saved statistics of {kind} layer {layer} are damaged: {error}."
                raise InputError(message) from error
        self.words = dict(description["words"])
        return self

    def _words(self) -> list[list[int | str]]:
        """Id and text of every token that is counted by itself."""
        ids = {number for layer in self._layers.values() for number in layer.patterns.token_ids.tolist()}
        return [[number, self.words[number]] for number in sorted(ids) if number in self.words]

    def _columns(self, kind: Kind, layer: int, head: int | None) -> tuple[LayerStatistics, list[int]]:
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

    def _column(self, kind: Kind, layer: int, head: int | None) -> int | None:
        """The place of a head in its layer; None for all of them."""
        return None if head is None else self._layers[kind, layer].heads.index(head)

    def _rows(
        self, metric: str, kind: Kind, layer: int, head: int | None
    ) -> tuple[FloatHistograms, list[int]]:
        if metric not in METRICS:
            raise InputError(f"metric {metric!r} is not measured; expected one of {', '.join(METRICS)}.")
        statistics, columns = self._columns(kind, layer, head)
        first = METRICS.index(metric) * len(statistics.heads)
        return statistics.histograms, [first + column for column in columns]
