"""What figures of an audit begin with: its layers' and heads' means, the twin's beside them, and what was audited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fenchel.auditing.heads import KINDS, Kind
from fenchel.auditing.report.findings import KIND_NAMES, model_name
from fenchel.auditing.results import AuditResults
from fenchel.auditing.statistics import AuditStatistics
from fenchel.runs.number import MISSING, plain

__all__ = ["SPREAD", "audit_line", "audited_kinds", "described", "marker_size"]

SPREAD = (0.05, 0.95)
"""Between which quantiles nine tenths of the queries lie."""


def described(audit: AuditResults) -> dict[str, Any]:
    """What of a manifest a figure says."""
    manifest = audit.manifest
    named = ("space", "alpha", "tokens", "documents", "closeness", "queries", "revision", "text_sha256")
    return {
        "model": model_name(manifest),
        "texts": manifest.get("texts"),
        **{name: manifest.get(name) for name in named},
        "not_converged": sum(head["not_converged"] for head in (*audit.heads, *audit.twin_heads)),
    }


def audit_line(described: Any) -> str:
    """The same in a sentence."""
    texts = described["texts"] or MISSING
    under = f", closeness {described['closeness']}" if described["closeness"] else ""
    sampled = ", a sample of its queries" if described["queries"] else ""
    missed = described["not_converged"]
    solved = f"{missed:,} queries missed the tolerance" if missed else "every exact solution is certified"
    return (
        f"{described['model']}, {texts} ({described['tokens']:,} tokens{sampled}), space "
        f"{described['space']}, α = {plain(described['alpha'])}{under}; {solved}."
    )


def audited_kinds(audit: AuditResults, metrics: Sequence[str]) -> list[dict[str, Any]]:
    """For every kind of attention its layers, each with the means of some metrics, of its heads and of the twin.

    Args:
        audit: The audit.
        metrics: Some of ``fenchel.auditing.heads.METRICS``.

    Returns:
        A record a kind: ``kind``, ``name``, and ``layers``: ``layer``, ``model`` and ``twin`` (None where there is
        none), each with a record a metric: ``mean``, ``median``, ``low``, ``high`` over the queries of all heads, and
        ``heads``, the mean of each.
    """
    found = []
    for kind in KINDS:
        layers = [layer for own, layer in audit.statistics.layers() if own == kind]
        if layers:
            found.append(
                {
                    "kind": kind,
                    "name": KIND_NAMES[kind],
                    "layers": [
                        {
                            "layer": layer,
                            "model": _layer(audit.statistics, kind, layer, metrics),
                            "twin": None if audit.twin is None else _layer(audit.twin, kind, layer, metrics),
                        }
                        for layer in layers
                    ],
                }
            )
    return found


def marker_size(kind: Mapping[str, Any]) -> float:
    """How large a layer's marker is, in points: smaller where there are many layers."""
    return max(1.2, min(4.0, 48 / len(kind["layers"])))


def _layer(
    statistics: AuditStatistics, kind: Kind, layer: int, metrics: Sequence[str]
) -> dict[str, dict[str, Any]]:
    keys = [key for key in statistics.keys() if key[:2] == (kind, layer)]  # noqa: SIM118
    return {
        metric: {
            "mean": statistics.mean(metric, kind, layer),
            "median": statistics.quantile(metric, 0.5, kind, layer),
            "low": statistics.quantile(metric, SPREAD[0], kind, layer),
            "high": statistics.quantile(metric, SPREAD[1], kind, layer),
            "heads": [statistics.mean(metric, *key) for key in keys],
        }
        for metric in metrics
    }
