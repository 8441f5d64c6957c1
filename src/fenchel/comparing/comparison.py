"""What audits of one convention and one shape say side by side: differences of heads, order of heads, trajectories."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from fenchel.auditing.heads import KINDS, METRICS, HeadKey, Kind
from fenchel.comparing.audited import CONFIDENCE, Audited, Distribution
from fenchel.comparing.convention import what_differs
from fenchel.comparing.interval import Interval, difference
from fenchel.correlation import spearman

__all__ = ["SCHEMA", "Change", "Comparison"]

SCHEMA = 1
"""Version of ``compare.json``."""

_FEWEST_RANKS = 3


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
