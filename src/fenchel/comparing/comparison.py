"""What audits of one convention and one shape say side by side: differences of heads, order of heads, trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import KINDS, METRICS, HeadKey, Kind
from fenchel.auditing.manifest import KEYS
from fenchel.auditing.report.findings import METRIC_NAMES
from fenchel.auditing.sampling import sample_words
from fenchel.auditing.statistics import AuditStatistics
from fenchel.correlation import spearman
from fenchel.drawing import count
from fenchel.errors import InputError
from fenchel.swap.findings import signed

__all__ = [
    "CONFIDENCE",
    "METRIC",
    "UNKNOWN",
    "Audited",
    "Change",
    "Comparison",
    "Distribution",
    "Interval",
    "difference",
    "finding",
    "median_ranks",
]

CONFIDENCE = 0.95
"""With which all intervals of a metric hold at once."""

METRIC = "total_variation"
"""What tells models apart and is asked first: the share of attention's weight that would have to move."""

_FEWEST_RANKS = 3


@dataclass(frozen=True)
class Interval:
    """Two ends, the lower one possibly −∞ and the upper one ∞ where nothing is known."""

    low: float
    high: float

    @property
    def direction(self) -> int:
        """1 if all of it lies above 0, −1 if all of it lies below, else 0.

        Example:
            >>> Interval(0.1, math.inf).direction, Interval(-0.1, 0.1).direction
            (1, 0)
        """
        return 1 if self.low > 0 else -1 if self.high < 0 else 0

    @property
    def least(self) -> float:
        """How far from 0 it is at least.

        Example:
            >>> Interval(-0.5, -0.2).least, Interval(-0.5, 0.2).least
            (0.2, 0.0)
        """
        return max(self.low, -self.high, 0.0)


UNKNOWN = Interval(-math.inf, math.inf)
"""What too few numbers tell."""


@lru_cache(maxsize=4096)
def median_ranks(count: int, error: float) -> tuple[int, int] | None:
    r"""Ranks of the order statistics between which the median lies, but for a probability of at most ``error``.

    Of N independent numbers the count below their distribution's median m is at most binomial (N, ½), and so is the
    count above. With k the largest rank for which P(Bin(N, ½) < k) ≤ error / 2,

    $$P\bigl(x_{(k)} \le m \le x_{(N + 1 - k)}\bigr) \ge 1 - \mathrm{error},$$

    whatever the distribution, continuous or not.

    Args:
        count: N.
        error: Above 0 and below 1.

    Returns:
        k and N + 1 − k, from 1; None where N is too small for any two.

    Reference:
        W. R. Thompson, On confidence ranges for the median and other expectation distributions, 1936.

    Example:
        >>> median_ranks(10, 0.05), median_ranks(5, 0.05)
        ((2, 9), None)
    """
    from scipy.stats import binom

    if count < 1:
        return None
    rank = int(binom.ppf(error / 2, count, 0.5))  # the least rank whose probability is at least error / 2
    while rank > 0 and binom.cdf(rank - 1, count, 0.5) > error / 2:
        rank -= 1
    return (rank, count + 1 - rank) if rank else None


def difference(first: Interval, second: Interval) -> Interval:
    """Where the second median minus the first lies, if each lies in its interval.

    If either misses its median with probability at most ε, this one misses the difference with at most 2ε, however the
    two samples depend on each other: two models that read the same text need not be independent.

    Example:
        >>> difference(Interval(0.25, 0.5), Interval(0.75, 1.0))
        Interval(low=0.25, high=0.75)
    """
    low = -math.inf if math.isinf(first.high) else second.low - first.high
    high = math.inf if math.isinf(second.high) else second.high - first.low
    return Interval(low, high)


@dataclass(frozen=True)
class Distribution:
    """A metric over the queries of a head, or of a layer.

    Attributes:
        mean: Infinite if the metric of one query is; NaN if there is no query.
        median: Likewise.
        interval: Where the median lies.
    """

    mean: float
    median: float
    interval: Interval = UNKNOWN


@dataclass(frozen=True)
class Audited:
    """What one audit found.

    Attributes:
        name: What the user calls it.
        manifest: What it is.
        queries: How many queries each head had.
        not_converged: How many of all queries missed the tolerance.
        heads: By head, the distribution of each metric.
        layers: By kind and layer, the same over all its heads.
    """

    name: str
    manifest: dict[str, Any]
    queries: dict[HeadKey, int]
    not_converged: int
    heads: dict[HeadKey, dict[str, Distribution]]
    layers: dict[tuple[Kind, int], dict[str, Distribution]]

    @property
    def sample(self) -> str | None:
        """Which of its queries were measured; None where all were."""
        return sample_words(self.manifest.get("queries"))

    @classmethod
    def of(cls, name: str, report: AuditReport) -> Audited:
        """Take from an audit what is compared.

        Raises:
            InputError: If it holds no head.
        """
        statistics = report.statistics
        keys = statistics.keys()
        if not keys:
            raise InputError(
                f"{name} holds an audit without a head: no document fell into its share. Give one that has some."
            )
        # Either median of a difference may be missed, and one of every head's.
        error = (1 - CONFIDENCE) / (2 * len(keys))
        return cls(
            name=name,
            manifest=report.manifest,
            queries={key: statistics.queries(key) for key in keys},
            not_converged=sum(statistics.not_converged(kind, layer) for kind, layer in statistics.layers()),
            heads={
                key: {metric: _distribution(statistics, metric, key, error) for metric in METRICS}
                for key in keys
            },
            layers={
                site: {
                    metric: Distribution(
                        statistics.mean(metric, *site), statistics.quantile(metric, 0.5, *site)
                    )
                    for metric in METRICS
                }
                for site in statistics.layers()
            },
        )


def _distribution(statistics: AuditStatistics, metric: str, key: HeadKey, error: float) -> Distribution:
    mean, median = statistics.mean(metric, *key), statistics.quantile(metric, 0.5, *key)
    ranks = median_ranks(statistics.queries(key), error)
    if ranks is None:
        return Distribution(mean, median)
    low, high = statistics.ranked(metric, ranks, key)
    return Distribution(mean, median, Interval(low, high))


def what_differs(manifests: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The entries in which manifests differ although they can be compared: model, text, options, versions.

    Args:
        manifests: Of two audits or more.

    Returns:
        By name, the value of each.

    Example:
        >>> what_differs([{"model": "a", "seed": 0}, {"model": "b", "seed": 0}])
        {'model': ['a', 'b']}
    """
    names = [*KEYS, *sorted({name for manifest in manifests for name in manifest} - set(KEYS))]
    values = {name: [manifest.get(name) for manifest in manifests] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found[1:])}


@dataclass(frozen=True)
class Change:
    """A metric of one head in two audits.

    Attributes:
        first: Over the queries of the first audit.
        second: Over those of the second.
    """

    first: Distribution
    second: Distribution

    @property
    def mean(self) -> float | None:
        """Second mean minus first; None where either is infinite or missing."""
        return _minus(self.second.mean, self.first.mean)

    @property
    def median(self) -> float | None:
        """Second median minus first; None where either is infinite or missing."""
        return _minus(self.second.median, self.first.median)

    @cached_property
    def interval(self) -> Interval:
        """Where the difference of the medians lies."""
        return difference(self.first.interval, self.second.interval)

    def by(self, statistic: str) -> float | None:
        """The difference of the means (``mean``) or of the medians (``p50``)."""
        return self.mean if statistic == "mean" else self.median


@dataclass(frozen=True)
class Comparison:
    """Audits side by side: the last against the first, and everything in between.

    Attributes:
        audits: Two or more, in the order in which they were given.
    """

    audits: tuple[Audited, ...]

    @property
    def first(self) -> Audited:
        """What is compared with."""
        return self.audits[0]

    @property
    def last(self) -> Audited:
        """What is compared."""
        return self.audits[-1]

    @property
    def names(self) -> tuple[str, ...]:
        """What the user calls the audits."""
        return tuple(audit.name for audit in self.audits)

    @cached_property
    def keys(self) -> tuple[HeadKey, ...]:
        """The heads, ordered by kind, layer and number."""
        return tuple(sorted(self.first.heads, key=lambda key: (KINDS.index(key.kind), key.layer, key.head)))

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of attention that occur."""
        return tuple(kind for kind in KINDS if any(key.kind == kind for key in self.keys))

    @cached_property
    def differing(self) -> dict[str, list[Any]]:
        """What else the audits differ in: models, texts, options, versions."""
        return what_differs([audit.manifest for audit in self.audits])

    @cached_property
    def changes(self) -> dict[HeadKey, dict[str, Change]]:
        """Of each head and metric, the last audit against the first."""
        first, last = self.first.heads, self.last.heads
        return {
            key: {metric: Change(first[key][metric], last[key][metric]) for metric in METRICS}
            for key in self.keys
        }

    def moved(self, metric: str) -> list[HeadKey]:
        """The heads in the order of the least change that the interval of their medians leaves, the largest first."""

        def rank(key: HeadKey) -> tuple[float, float]:
            change = self.changes[key][metric]
            return -change.interval.least, -abs(change.median or 0.0)

        return sorted(self.keys, key=rank)

    def directions(self, metric: str) -> tuple[int, int]:
        """Of how many heads the interval of the medians' difference lies above 0, and of how many below."""
        found = [self.changes[key][metric].interval.direction for key in self.keys]
        return found.count(1), found.count(-1)

    def rank_correlation(
        self, metric: str, statistic: str = "p50", *, first: int = 0, second: int = -1
    ) -> float | None:
        """Spearman's correlation of the heads of two audits: whether they keep their order.

        Args:
            metric: One of ``METRICS``.
            statistic: ``p50`` for medians, ``mean`` for means.
            first: Which audit, by its place.
            second: Which other.

        Returns:
            From −1 to 1; None for fewer than three heads, or where all of one audit have the same value.
        """
        pairs = [
            [_of(self.audits[place].heads[key][metric], statistic) for place in (first, second)]
            for key in self.keys
        ]
        pairs = [pair for pair in pairs if not any(math.isnan(value) for value in pair)]
        if len(pairs) < _FEWEST_RANKS:
            return None
        found = float(spearman(*torch.tensor(pairs, dtype=torch.float64).T))
        return None if math.isnan(found) else found

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for ``compare.json``: what is infinite or unknown is None.

        Returns:
            ``audits`` (name and manifest of each), ``differing``, ``metrics`` (by name: rank correlations of last and
            first, how many heads' intervals lie above and below 0), ``heads`` (a record a head: queries, and for each
            metric ``NAME_mean`` and ``NAME_p50``, a number an audit; ``NAME_mean_difference``, ``NAME_p50_difference``,
            ``NAME_p50_low``, ``NAME_p50_high``, last minus first; ``NAME_moved``, 1 or −1 where the interval lies above
            or below 0), ``layers`` (likewise, without intervals), and
            ``steps`` (rank correlations from each audit to the next).
        """
        steps = [
            {
                "from": self.names[place],
                "to": self.names[place + 1],
                **{
                    f"{metric}_rank_correlation": self.rank_correlation(metric, first=place, second=place + 1)
                    for metric in METRICS
                },
            }
            for place in range(len(self.audits) - 1)
        ]
        return {
            "confidence": CONFIDENCE,
            "audits": [
                {"name": audit.name, "not_converged": audit.not_converged, "manifest": audit.manifest}
                for audit in self.audits
            ],
            "differing": self.differing,
            "metrics": {
                metric: {
                    "rank_correlation": self.rank_correlation(metric),
                    "rank_correlation_of_means": self.rank_correlation(metric, "mean"),
                    **dict(zip(("rose", "fell"), self.directions(metric), strict=True)),
                }
                for metric in METRICS
            },
            "heads": self.heads,
            "layers": [
                {
                    "kind": kind,
                    "layer": layer,
                    **self._values(lambda audit, site=(kind, layer): audit.layers[site]),
                }
                for kind, layer in self.sites
            ],
            "steps": steps,
        }

    @cached_property
    def sites(self) -> tuple[tuple[Kind, int], ...]:
        """The layers, ordered by kind and number."""
        return tuple(dict.fromkeys((key.kind, key.layer) for key in self.keys))

    @cached_property
    def heads(self) -> list[dict[str, Any]]:
        """The records of ``compare.json``, one a head."""
        return [
            {
                **key._asdict(),
                "queries": [audit.queries[key] for audit in self.audits],
                **self._values(lambda audit, key=key: audit.heads[key]),
                **dict(self._differences(key)),
            }
            for key in self.keys
        ]

    def _values(self, of: Any) -> dict[str, list[float | None]]:
        found: dict[str, list[float | None]] = {}
        for metric in METRICS:
            shapes = [of(audit)[metric] for audit in self.audits]
            found[f"{metric}_mean"] = [_finite(shape.mean) for shape in shapes]
            found[f"{metric}_p50"] = [_finite(shape.median) for shape in shapes]
        return found

    def _differences(self, key: HeadKey) -> Iterator[tuple[str, float | None]]:
        for metric, change in self.changes[key].items():
            yield f"{metric}_mean_difference", change.mean
            yield f"{metric}_p50_difference", change.median
            yield f"{metric}_p50_low", _finite(change.interval.low)
            yield f"{metric}_p50_high", _finite(change.interval.high)
            yield f"{metric}_moved", change.interval.direction


def _of(shape: Distribution, statistic: str) -> float:
    return shape.mean if statistic == "mean" else shape.median


def _minus(second: float, first: float) -> float | None:
    return second - first if math.isfinite(first) and math.isfinite(second) else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def finding(comparison: Comparison) -> str:
    """What came out for the weight that would have to move, in words that say no more than the intervals do."""
    rose, fell = comparison.directions(METRIC)
    heads = len(comparison.keys)
    kept = comparison.rank_correlation(METRIC)
    moved = (
        f"{METRIC_NAMES[METRIC].lower()} rose in {count(rose)} and fell in {count(fell)} of {count(heads)} heads"
        if rose or fell
        else f"{METRIC_NAMES[METRIC].lower()} changed in none of {count(heads)} heads by more than the counts can tell"
    )
    order = "" if kept is None else f"; the rank correlation of the heads is {signed(kept)}"
    return (
        f"From {comparison.first.name} to {comparison.last.name}: {moved} (intervals of medians, {CONFIDENCE:.0%} for "
        f"all at once){order}."
    )
