"""What an audit found, in memory: the numbers that every rendering of it takes."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from fenchel.auditing.advice import (
    HeadPattern,
    Importance,
    Suggestion,
    head_patterns,
    importance,
    suggestions,
)
from fenchel.auditing.examples import AttentionMatrix, FarQueries, HeadExample
from fenchel.auditing.heads import KINDS, METRICS, AttentionModule, HeadKey, Kind
from fenchel.auditing.sampling import sample_words
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.swap_effects import SwapEffects, SwapTable, swap_effects
from fenchel.drawing import short
from fenchel.errors import MissingExtraError

if TYPE_CHECKING:
    import polars
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

    @property
    def sample(self) -> str | None:
        """Which queries were measured, in words; None where all were."""
        return sample_words(self.manifest.get("queries")) if self.statistics.sampled else None

    @property
    def queries(self) -> polars.LazyFrame:
        """The table: a row a query and head, about 100 bytes in Parquet.

        * ``kind``, ``layer``, ``head``: encoder_self, decoder_self or cross; numbers from 1, layers within their kind
        * ``document``, ``window``, ``position``: where the query stands, numbers from 1
        * ``token``, ``text``: its id in the vocabulary and its text; null where the input is not text
        * ``type``: special, punctuation, number, word, piece (continues a word) or other
        * ``class``: what its token is as a key of other queries: first, special, punctuation or rest
        * ``weight``: queries of the window that it stands for, 1 where all are measured
        * the measures: total_variation, mean_error, relative_deviation, second_order_deviation, predicted_deviation,
          certificate, gap
        * ``entropy`` of attention's weights, in nats; ``evidence_norm``
        * ``dual_error``: certified relative error of the exact dual point
        * ``output_error``: relative change of the head's output under the exact weights
        * ``newton_steps``, ``converged``: steps of the exact solve; whether its certificate meets the tolerance
        * ``leaves``, ``reaches``: positions of the keys that lose and gain most of the query's weight; with ``_token``
          their ids, with ``_weight`` how much
        * ``attention_CLASS``, ``leaves_CLASS``, ``reaches_CLASS``: attention's weight on keys of a class, and what
          leaves and reaches them in the exact solution; the classes are first, special, itself, neighbour, punctuation
          and rest
        """
        return self.statistics.rows

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
        """The patterns, with a swap for each, that of most moved weight first."""
        return suggestions(self.patterns, self.manifest, self.modules)

    @cached_property
    def importance(self) -> Importance:
        """How to measure which heads matter."""
        return importance(list(self.statistics.keys()), self.manifest, self.modules)

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
        return pandas.DataFrame(rows, columns=list(self.statistics.record_keys()))

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
            infinite mean is None. ``NAME_se`` is the standard error over documents (``resampled`` says where it is over
            the windows of a single one). ``patterns`` says how many heads show each pattern, and
            ``twin`` has the ``kinds`` of the untrained twin, None where it was not audited. ``suggestions`` says of
            each pattern what to run next, ``importance`` how to measure which heads matter, and ``effects`` what a swap
            found, None without one.
        """
        shown = Counter(name for pattern in self.patterns for name in pattern.names)
        return {
            **self._summary_of(self.statistics),
            "resampled": self.statistics.resampled,
            "patterns": dict(sorted(shown.items(), key=lambda entry: (-entry[1], entry[0]))),
            "twin": None if self.twin is None else self._summary_of(self.twin)["kinds"],
            "suggestions": [suggestion.to_json() for suggestion in self.suggestions],
            "importance": asdict(self.importance),
            "effects": None if self.effects is None else self.effects.to_json(),
        }

    def _summary_of(self, statistics: AuditStatistics) -> dict[str, Any]:
        kinds: dict[str, Any] = {}
        for kind in KINDS:
            layers = [layer for found, layer in statistics.layers() if found == kind]
            if layers:
                kinds[kind] = _means(statistics, kind)
                kinds[kind]["layers"] = [
                    {"layer": layer, **_means(statistics, kind, layer)} for layer in layers
                ]
        named = ("model", "space", "alpha", "tol", "documents", "tokens")
        totals = {
            name: sum(kind[name] for kind in kinds.values())
            for name in ("heads", "queries", "not_converged", "certificate_unbounded")
        }
        return {name: self.manifest.get(name) for name in named} | totals | {"kinds": kinds}


def _means(statistics: AuditStatistics, kind: Kind, layer: int | None = None) -> dict[str, Any]:
    found = statistics.of(kind, layer)
    heads = sum(key.kind == kind and layer in (None, key.layer) for key in statistics.keys())  # noqa: SIM118
    counts = ("queries", "population", "not_converged", "certificate_unbounded")
    means = (f"{metric}_{name}" for metric in METRICS for name in ("mean", "se"))
    return {
        "heads": heads,
        "newton_steps_mean": found["newton_steps"] / found["queries"] if found["queries"] else None,
        **{name: found[name] for name in counts},
        **{name: found[name] if math.isfinite(found[name]) else None for name in means},
    }


def _patterns(statistics: AuditStatistics) -> list[HeadPattern]:
    return head_patterns(statistics.moves(), statistics.moved_tokens(), statistics.words)
