"""What an audit found, in memory: the numbers that every rendering of it takes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fenchel.auditing.examples import HeadExample
from fenchel.auditing.heads import KINDS, METRICS, HeadKey, Kind
from fenchel.auditing.statistics import AuditStatistics

__all__ = ["AuditResults"]


@dataclass
class AuditResults:
    """What an audit found.

    Attributes:
        manifest: Model, text, versions and options: what decides the numbers.
        statistics: Distribution of every metric over the queries of every head.
        examples: For each head, the query at which first-order and exact weights are farthest apart.
    """

    manifest: dict[str, Any]
    statistics: AuditStatistics
    examples: dict[HeadKey, HeadExample] = field(default_factory=dict)

    @cached_property
    def heads(self) -> list[dict[str, Any]]:
        """The records of ``heads.json``, one a head, ordered by kind, layer and number."""
        return [self.statistics.record(key) for key in self.statistics.keys()]  # noqa: SIM118

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Means over all queries of each kind of attention and of each of its layers.

        Returns:
            ``model``, ``space``, ``alpha``, ``tol``, ``documents``, ``tokens``, counts over everything, and ``kinds``:
            by kind, counts and ``NAME_mean`` of every metric, and the same for each layer under ``layers``. An
            infinite mean is None.
        """
        kinds: dict[str, Any] = {}
        for kind in KINDS:
            layers = [layer for found, layer in self.statistics.layers() if found == kind]
            if layers:
                kinds[kind] = self._means(kind, layers)
                kinds[kind]["layers"] = [{"layer": layer, **self._means(kind, [layer])} for layer in layers]
        named = ("model", "space", "alpha", "tol", "documents", "tokens")
        totals = {
            name: sum(kind[name] for kind in kinds.values())
            for name in ("heads", "queries", "not_converged", "certificate_unbounded")
        }
        return {name: self.manifest.get(name) for name in named} | totals | {"kinds": kinds}

    def _means(self, kind: Kind, layers: list[int]) -> dict[str, Any]:
        statistics = self.statistics
        keys = [key for key in statistics.keys() if key.kind == kind and key.layer in layers]  # noqa: SIM118
        by_layer = {
            layer: sum(statistics.queries(key) for key in keys if key.layer == layer) for layer in layers
        }
        queries = sum(by_layer.values())
        found: dict[str, Any] = {
            "heads": len(keys),
            "queries": queries,
            "not_converged": sum(statistics.not_converged(kind, layer) for layer in layers),
            "certificate_unbounded": sum(
                statistics.unbounded("certificate", kind, layer) for layer in layers
            ),
            "newton_steps_mean": (
                sum(statistics.newton_steps(kind, layer) for layer in layers) / queries if queries else None
            ),
        }
        for metric in METRICS:
            total = math.fsum(
                statistics.mean(metric, kind, layer) * count for layer, count in by_layer.items() if count
            )
            found[f"{metric}_mean"] = total / queries if queries and math.isfinite(total) else None
        return found
