"""State of an audit, finished or between two batches: its numbers, and how it is saved and loaded."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from fenchel.arguments import Kind, number_of
from fenchel.auditing.advice import (
    HeadPattern,
    Importance,
    Suggestion,
    head_patterns,
    importance,
    suggestions,
)
from fenchel.auditing.examples import AttentionMatrix, FarQueries, HeadExample, keep_the_farthest
from fenchel.auditing.heads import AttentionModule, HeadKey
from fenchel.auditing.manifest import SCHEMA, Manifest, in_order, sample_words
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.swap_effects import SwapEffects, swap_effects
from fenchel.auditing.table import QUERIES, TWIN_QUERIES
from fenchel.drawing import short
from fenchel.errors import InputError, require_packages
from fenchel.io.batches import BEGINNING, Cursor
from fenchel.io.storage import (
    Field,
    Form,
    ParquetTable,
    PartName,
    Record,
    check_json,
    read_document,
    write_document,
)

if TYPE_CHECKING:
    import polars
    from pandas import DataFrame

# State in an audit's folder, from which an interrupted audit is resumed and a finished one is loaded.
STATE_FILE = "state.json"

# That of fenchel 0.1, which is refused.
OLD_STATE_FILE = "state.safetensors"

_IN_SUMMARY = ("model", "space", "alpha", "tol", "documents", "tokens")
_METRICS = ("relative_deviation", "total_variation", "mean_error")

_Id = Annotated[str, Field(pattern=r"^[0-9]{1,19}\z")]


class _SavedTwin(Record):
    parts: list[PartName]


class _SavedTable(_SavedTwin):
    words: dict[_Id, str]


class _SavedAudit(Record):
    manifest: Manifest
    table: _SavedTable
    twin: _SavedTwin | None
    examples: list[dict[str, Any]]
    matrices: list[dict[str, Any]]
    modules: list[AttentionModule]
    cursor: Cursor
    finished: bool


# Contents of the file.
STATE_FORM = Form(
    name="saved audit",
    version=SCHEMA,
    schema=_SavedAudit,
    advice="Restore it from a copy, or audit that part again with --overwrite.",
)


@dataclass(repr=False)
class AuditState:
    """Results of an audit, finished or between two batches.

    Attributes:
        manifest: Model, text, versions and options.
        statistics: Distribution of every metric over the queries of every head.
        far_queries: For each head, queries with large total variation, the farthest first, of different patterns and
            windows; ``examples`` are the first of each.
        twin: Distribution of every metric over the same queries in the model's untrained twin; None without one.
        modules: The attention module of every layer, once a batch has been read.
        effects: Changes when single heads infer exactly, from a swap; None without one.
        matrices: For each head, its attention weights in one sentence.
        cursor: Start of the next batch.
        finished: Whether every batch has been counted and every file of the audit has been written.
    """

    manifest: dict[str, Any]
    statistics: AuditStatistics = field(default_factory=AuditStatistics)
    far_queries: FarQueries = field(default_factory=dict)
    twin: AuditStatistics | None = None
    modules: dict[tuple[Kind, int], AttentionModule] = field(default_factory=dict)
    effects: SwapEffects | None = None
    matrices: dict[HeadKey, AttentionMatrix] = field(default_factory=dict)
    cursor: Cursor = BEGINNING
    finished: bool = False

    @property
    def tables(self) -> list[ParquetTable]:
        """The table, and that of the twin if it has one."""
        return [each.table for each in (self.statistics, self.twin) if each is not None]

    def new_twin(self) -> AuditStatistics:
        """Empty statistics of a twin, with a table beside that of the model."""
        folder = self.statistics.table.folder.parent / TWIN_QUERIES
        return AuditStatistics(ParquetTable(folder), self.statistics.words)

    def write(self, directory: Path) -> None:
        """Save the state into a folder, atomically, and remove the parts of tables there that it does not name."""
        words = {str(number): text for number, text in sorted(self.statistics.words.items())}
        write_document(
            directory / STATE_FILE,
            STATE_FORM,
            {
                "manifest": self.manifest,
                "table": {"parts": self.statistics.table.names, "words": words},
                "twin": None if self.twin is None else {"parts": self.twin.table.names},
                "examples": [
                    example.to_json() for key in sorted(self.far_queries) for example in self.far_queries[key]
                ],
                "matrices": [asdict(self.matrices[key]) for key in sorted(self.matrices)],
                "modules": [module._asdict() for _, module in sorted(self.modules.items())],
                "cursor": asdict(self.cursor),
                "finished": self.finished,
            },
        )
        for each in (self.statistics, self.twin or self.new_twin()):
            each.table.remove_others()

    @classmethod
    def read(cls, directory: Path, *, parts: bool = True) -> Self:
        """Load a state from a folder.

        Args:
            directory: The audit's folder.
            parts: Whether to check the parts of the table, too.

        Raises:
            InputError: If the state or a part of the table is missing, invalid, changed, or of another version.
        """
        path = directory / STATE_FILE
        if not path.exists() and (directory / OLD_STATE_FILE).exists():
            raise InputError(
                f"{directory} holds an audit of fenchel 0.1, whose {OLD_STATE_FILE} has counts, not queries, "
                "and cannot be read by this version. Audit again with --overwrite."
            )
        saved = read_document(path, STATE_FORM)
        with STATE_FORM.reading(path):
            examples = check_json(list[HeadExample], saved["examples"], "examples")
            matrices = check_json(list[AttentionMatrix], saved["matrices"], "matrices")
        far_queries: FarQueries = {}
        keep_the_farthest(far_queries, examples)
        words = {int(number): text for number, text in saved["table"]["words"].items()}

        def statistics_of(name: str, found: dict[str, Any]) -> AuditStatistics:
            return AuditStatistics(ParquetTable.read(directory / name, found["parts"], check=parts), words)

        return cls(
            manifest=in_order(saved["manifest"]),
            statistics=statistics_of(QUERIES, saved["table"]),
            far_queries=far_queries,
            twin=None if saved["twin"] is None else statistics_of(TWIN_QUERIES, saved["twin"]),
            modules={(one["kind"], one["layer"]): AttentionModule(**one) for one in saved["modules"]},
            matrices={matrix.key: matrix for matrix in matrices},
            cursor=Cursor(**saved["cursor"]),
            finished=saved["finished"],
        )

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
        """The table: a row per query and head, about 100 bytes in Parquet.

        * ``kind``, ``layer``, ``head``: encoder_self, decoder_self or cross; numbers from 1, layers within their kind
        * ``document``, ``window``, ``position``: place of the query, numbers from 1
        * ``token``, ``text``: its id in the vocabulary and its text; null where the input is not text
        * ``type``: special, punctuation, number, word, piece (continues a word) or other
        * ``class``: class of its token as a key of other queries: first, special, punctuation or rest
        * ``weight``: number of queries of the window that it represents, 1 where all are measured
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

    @property
    def heads(self) -> list[dict[str, Any]]:
        """The records of ``heads.json``, one per head, ordered by kind, layer and number."""
        return self.statistics.records

    @property
    def twin_heads(self) -> list[dict[str, Any]]:
        """The same records of the untrained twin; empty where it was not audited."""
        return [] if self.twin is None else self.twin.records

    @cached_property
    def patterns(self) -> list[HeadPattern]:
        """Patterns of every head, in the order of ``heads``; empty where classes were not measured."""
        return head_patterns(self.statistics)

    @cached_property
    def twin_patterns(self) -> list[HeadPattern]:
        """Those of the untrained twin."""
        return [] if self.twin is None else head_patterns(self.twin)

    @cached_property
    def suggestions(self) -> list[Suggestion]:
        """The patterns with a swap for each, by descending moved weight."""
        return suggestions(self.patterns, self.manifest, self.modules)

    @cached_property
    def importance(self) -> Importance:
        """How to measure which heads matter."""
        return importance(self.statistics.keys(), self.manifest, self.modules)

    def to_pandas(self) -> DataFrame:
        """The records of ``heads.json`` as a pandas DataFrame with a row per head.

        Returns:
            Columns are the keys of a record. Infinite numbers, which are null in ``heads.json``, are infinite here;
            unknown ones are NaN.

        Raises:
            MissingExtraError: If pandas is not installed.
        """
        require_packages("hf", "pandas")
        import pandas

        return pandas.DataFrame(self.statistics.heads, columns=list(self.statistics.record_keys()))

    def __repr__(self) -> str:
        """Model, counts and means over all queries in one line."""
        heads = len(self.heads)
        said = f"{number_of(heads, 'head')}, {number_of(self.summary['queries'], 'problem')}"
        for kind, means in self.summary["kinds"].items():
            told = [f"{name.replace('_', ' ')} {short(means[f'{name}_mean'])}" for name in _METRICS]
            said += f"; {kind.replace('_', ' ')}: {', '.join(told)}"
        if missed := self.summary["not_converged"]:
            said += f"; {missed:,} not converged"
        return f"<{type(self).__name__} of {self.manifest.get('model')}: {said}>"

    def beside_swap(self, swap: Any) -> Self:
        """The audit with the effects of exact inference in single heads.

        Args:
            swap: A swap of the same model on the same text, such as ``fenchel.swap.SwapReport.load(folder)``.

        Raises:
            InputError: If model, text or reliability differ, or no head was swapped alone.
        """
        return replace(self, effects=swap_effects(self.manifest, self.heads, self.modules, swap))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """Means over all queries of each kind of attention and of each of its layers.

        Returns:
            ``model``, ``space``, ``alpha``, ``tol``, ``documents``, ``tokens``, counts over everything, and ``kinds``:
            by kind, counts and ``NAME_mean`` of every metric, and the same for each layer under ``layers``. An
            infinite mean is None. ``NAME_se`` is the standard error over documents, or over the windows of a single one
            (see ``resampled``). ``patterns`` has the number of heads of each pattern, ``twin`` the ``kinds`` of the
            untrained twin or None, ``suggestions`` a command for each pattern, ``importance`` how to measure which
            heads matter, and ``effects`` the results of a swap or None.
        """
        shown = Counter(name for pattern in self.patterns for name in pattern.names)
        kinds = self.statistics.means_by_kind()
        counts = ("heads", "queries", "not_converged", "certificate_unbounded")
        return {
            **{name: self.manifest.get(name) for name in _IN_SUMMARY},
            **{name: sum(kind[name] for kind in kinds.values()) for name in counts},
            "kinds": kinds,
            "resampled": self.statistics.resampled,
            "patterns": dict(sorted(shown.items(), key=lambda entry: (-entry[1], entry[0]))),
            "twin": None if self.twin is None else self.twin.means_by_kind(),
            "suggestions": [suggestion.to_json() for suggestion in self.suggestions],
            "importance": asdict(self.importance),
            "effects": None if self.effects is None else self.effects.to_json(),
        }
