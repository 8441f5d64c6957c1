"""The distribution of a metric over queries, in the bins that figures 4 and 5 of the paper use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fenchel.auditing.heads import Kind
from fenchel.drawing import reading

if TYPE_CHECKING:
    from fenchel.auditing.statistics import AuditStatistics

__all__ = ["AXES", "Axis", "Distribution", "distribution"]

BINS = 25


@dataclass(frozen=True)
class Axis:
    """The range over which a metric's distribution is drawn; what lies above is counted in the last bin."""

    metric: str
    upper: float


AXES: tuple[Axis, ...] = (
    Axis("relative_deviation", 0.5),
    Axis("total_variation", 1.0),
    Axis("mean_error", 1.0),
)


@dataclass(frozen=True)
class Distribution:
    """Shares of the queries by bin, with their mean.

    Args:
        fractions: One a bin, summing to 1; all 0 where there were no queries.
        mean: Over all queries, those above the range included.
        queries: How many queries there were.
    """

    fractions: Sequence[float]
    mean: float | None
    queries: int


def distribution(
    statistics: AuditStatistics, axis: Axis, kind: Kind, layer: int, head: int | None = None
) -> Distribution:
    """The distribution of one metric over the queries of a head, or of the layer if ``head`` is None."""
    counts = statistics.histogram(axis.metric, kind, layer, head, upper=axis.upper, bins=BINS)
    queries = sum(counts)
    mean = reading(statistics.mean(axis.metric, kind, layer, head)) if queries else None
    return Distribution([c / queries if queries else 0.0 for c in counts], mean, queries)
