"""One of the audits that are compared: what a comparison needs of it, and nothing as large as its histograms."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import METRICS, HeadKey, Kind
from fenchel.auditing.sampling import sample_words
from fenchel.auditing.state import STATE_FILE
from fenchel.auditing.statistics import AuditStatistics
from fenchel.comparing.interval import UNKNOWN, Interval, median_ranks
from fenchel.errors import InputError

__all__ = ["CONFIDENCE", "Audited", "Distribution", "opened"]

CONFIDENCE = 0.95
"""With which all intervals of a metric hold at once."""


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


def opened(folder: Path, name: str) -> AuditReport:
    """The audit in a folder.

    Args:
        folder: The folder.
        name: What the user calls it.

    Raises:
        InputError: If the folder is not there, holds no audit, one of another version, a damaged one, an unfinished one
            or only what was made from one.
    """
    if not folder.exists():
        raise InputError(
            f"{name} is not there; expected the folder of an audit, which fenchel audit --out makes."
        )
    if not folder.is_dir():
        raise InputError(f"{name} is a file; expected the folder of an audit that holds {STATE_FILE}.")
    if not (folder / STATE_FILE).exists():
        raise InputError(f"{name} {_what_is_there(folder)}")
    return AuditReport.load(folder)


def _what_is_there(folder: Path) -> str:
    if (folder / "heads.json").exists():
        return (
            f"holds heads.json but not {STATE_FILE}, which names the queries that intervals are made of: it was copied "
            "without them, or comes from fenchel 0.1. Copy the whole folder, or audit again with --overwrite."
        )
    if any(folder.glob(f"shard-*-of-*/{STATE_FILE}")):
        return f"holds the shards of an audit, not yet one audit. Put them together first: fenchel merge {folder}"
    return f"holds no audit: there is no {STATE_FILE} in it. Give the folder that fenchel audit --out named."


def _distribution(statistics: AuditStatistics, metric: str, key: HeadKey, error: float) -> Distribution:
    mean, median = statistics.mean(metric, *key), statistics.quantile(metric, 0.5, *key)
    ranks = median_ranks(statistics.queries(key), error)
    if ranks is None:
        return Distribution(mean, median)
    low, high = statistics.ranked(metric, ranks, key)
    return Distribution(mean, median, Interval(low, high))
