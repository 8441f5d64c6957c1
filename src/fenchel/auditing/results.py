"""What an audit found, in memory: the numbers that every rendering of it takes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from fenchel.auditing.advice import Suggestion, suggestions
from fenchel.auditing.attention_matrix import AttentionMatrix
from fenchel.auditing.examples import FarQueries, HeadExample
from fenchel.auditing.head_pattern import LARGE_SHARE, STILL, HeadPattern, head_patterns
from fenchel.auditing.heads import KINDS, METRICS, AttentionModule, HeadKey, Kind
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.swap_effects import SwapEffects, SwapTable, swap_effects
from fenchel.drawing import short
from fenchel.errors import MissingExtraError

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["AuditResults"]

_TOLD = ("relative_deviation", "total_variation", "mean_error")


@dataclass(repr=False)
class AuditResults:
    """What an audit found.

    Attributes:
        manifest: Model, text, versions and options: what decides the numbers.
        statistics: Distribution of every metric over the queries of every head.
        far_queries: For each head, queries at which first-order and exact weights are far apart, the farthest first,
            of different patterns and windows; ``examples`` are the first of each.
        twin: The same of the model's untrained twin on the same text; None where it was not audited.
        modules: The attention module of every layer.
        effects: What changes when single heads infer exactly, from a swap; None where none was given.
        matrices: For each head, all its attention in one sentence.
    """

    manifest: dict[str, Any]
    statistics: AuditStatistics
    far_queries: FarQueries = field(default_factory=dict)
    twin: AuditStatistics | None = None
    modules: dict[tuple[Kind, int], AttentionModule] = field(default_factory=dict)
    effects: SwapEffects | None = None
    matrices: dict[HeadKey, AttentionMatrix] = field(default_factory=dict)

    @property
    def examples(self) -> dict[HeadKey, HeadExample]:
        """For each head, the query at which first-order and exact weights are farthest apart."""
        return {key: some[0] for key, some in self.far_queries.items()}

    @cached_property
    def heads(self) -> list[dict[str, Any]]:
        """The records of ``heads.json``, one a head, ordered by kind, layer and number."""
        return [self.statistics.record(key) for key in self.statistics.keys()]  # noqa: SIM118

    @cached_property
    def twin_heads(self) -> list[dict[str, Any]]:
        """The same records of the untrained twin; empty where it was not audited."""
        return [] if self.twin is None else [self.twin.record(key) for key in self.twin.keys()]  # noqa: SIM118

    @cached_property
    def patterns(self) -> list[HeadPattern]:
        """What moves in every head, in the order of ``heads``; empty where that was not looked at."""
        return _patterns(self.statistics)

    @cached_property
    def twin_patterns(self) -> list[HeadPattern]:
        """The same of the untrained twin."""
        return [] if self.twin is None else _patterns(self.twin)

    @cached_property
    def suggestions(self) -> list[Suggestion]:
        """What the patterns suggest and what to run next, that of most moved weight first."""
        return suggestions(self.patterns, self.manifest, self.modules)

    def to_pandas(self) -> DataFrame:
        """The records of ``heads.json`` as a table of pandas, a row a head.

        Returns:
            Its columns are the keys of a record. What is infinite, and null in ``heads.json``, is infinite here; what
            was not measured is NaN.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("pandas", "hf") from error
        missing = {True: math.inf, False: math.nan}
        rows = [
            {name: missing[head["queries"] > 0] if value is None else value for name, value in head.items()}
            for head in self.heads
        ]
        return pandas.DataFrame(
            rows, columns=list(self.statistics.record_keys(sampled=self.statistics.sampled))
        )

    def __repr__(self) -> str:
        """One line: what was audited, and the means over all queries."""
        heads = len(self.heads)
        problems = self.summary["queries"]
        said = (
            f"{heads:,} head{'' if heads == 1 else 's'}, {problems:,} problem{'' if problems == 1 else 's'}"
        )
        for kind, means in self.summary["kinds"].items():
            told = [f"{name.replace('_', ' ')} {short(means[f'{name}_mean'])}" for name in _TOLD]
            said += f"; {kind.replace('_', ' ')}: {', '.join(told)}"
        if missed := self.summary["not_converged"]:
            said += f"; {missed:,} not converged"
        return f"<{type(self).__name__} of {self.manifest.get('model')}: {said}>"

    def beside_swap(self, swap: SwapTable) -> Self:
        """The same audit with what changes when single heads infer exactly.

        Args:
            swap: A swap of the same model on the same text, such as ``fenchel.swap.SwapReport.load(folder)``.

        Raises:
            InputError: If it is one of another model, text or reliability, or swapped no head alone.
        """
        return replace(self, effects=swap_effects(self.manifest, self.heads, self.modules, swap))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Means over all queries of each kind of attention and of each of its layers.

        Returns:
            ``model``, ``space``, ``alpha``, ``tol``, ``documents``, ``tokens``, counts over everything, and ``kinds``:
            by kind, counts and ``NAME_mean`` of every metric, and the same for each layer under ``layers``. An
            infinite mean is None. Where queries were sampled there is also ``NAME_se``, the standard error: of a kind
            at most that, as its layers answer the same queries. ``patterns`` says how many heads show each pattern, and
            ``twin`` has the ``kinds`` of the untrained twin, None where it was not audited.
        """
        shown = Counter(name for pattern in self.patterns for name in pattern.names)
        return {
            **self._summary_of(self.statistics),
            "patterns": dict(sorted(shown.items(), key=lambda entry: (-entry[1], entry[0]))),
            "twin": None if self.twin is None else self._summary_of(self.twin)["kinds"],
        }

    def patterns_record(self) -> dict[str, Any]:
        """What ``patterns.json`` holds: what moves in every head, what it suggests, and the effects of a swap."""
        return {
            "thresholds": {"still": STILL, "large_share": LARGE_SHARE},
            "heads": [pattern.to_json() for pattern in self.patterns],
            "twin": None if self.twin is None else [pattern.to_json() for pattern in self.twin_patterns],
            "suggestions": [suggestion.to_json() for suggestion in self.suggestions],
            "effects": None if self.effects is None else self.effects.to_json(),
        }

    def _summary_of(self, statistics: AuditStatistics) -> dict[str, Any]:
        kinds: dict[str, Any] = {}
        for kind in KINDS:
            layers = [layer for found, layer in statistics.layers() if found == kind]
            if layers:
                kinds[kind] = _means(statistics, kind, layers)
                kinds[kind]["layers"] = [
                    {"layer": layer, **_means(statistics, kind, [layer])} for layer in layers
                ]
        named = ("model", "space", "alpha", "tol", "documents", "tokens")
        totals = {
            name: sum(kind[name] for kind in kinds.values())
            for name in ("heads", "queries", "not_converged", "certificate_unbounded")
        }
        return {name: self.manifest.get(name) for name in named} | totals | {"kinds": kinds}


def _means(statistics: AuditStatistics, kind: Kind, layers: list[int]) -> dict[str, Any]:
    keys = [key for key in statistics.keys() if key.kind == kind and key.layer in layers]  # noqa: SIM118
    queries = sum(statistics.queries(key) for key in keys)
    by_layer = {
        layer: sum(statistics.population(key) for key in keys if key.layer == layer) for layer in layers
    }
    population = sum(by_layer.values())
    found: dict[str, Any] = {
        "heads": len(keys),
        "queries": queries,
        **({"population": population} if statistics.sampled else {}),
        "not_converged": sum(statistics.not_converged(kind, layer) for layer in layers),
        "certificate_unbounded": sum(statistics.unbounded("certificate", kind, layer) for layer in layers),
        "newton_steps_mean": (
            sum(statistics.newton_steps(kind, layer) for layer in layers) / queries if queries else None
        ),
    }
    for metric in METRICS:

        def over_layers(of_layer: Callable[..., float], metric: str = metric) -> float | None:
            total = math.fsum(
                of_layer(metric, kind, layer) * count for layer, count in by_layer.items() if count
            )
            return total / population if population and math.isfinite(total) else None

        found[f"{metric}_mean"] = over_layers(statistics.mean)
        if statistics.sampled:
            # Layers answer the same queries, so that their errors may add up.
            found[f"{metric}_se"] = over_layers(statistics.standard_error)
    return found


def _patterns(statistics: AuditStatistics) -> list[HeadPattern]:
    return [
        pattern
        for kind, layer in statistics.layers()
        for pattern in head_patterns(kind, layer, *statistics.patterns(kind, layer), statistics.words)
    ]
