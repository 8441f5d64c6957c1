"""What an audit saves between two batches, beside its table: what a killed run goes on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fenchel.auditing.examples import AttentionMatrix, FarQueries, examples_from_json
from fenchel.auditing.heads import AttentionModule, HeadKey, Kind
from fenchel.auditing.manifest import SCHEMA, Manifest, in_order
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.table import PART_NAME, QUERIES, TWIN_QUERIES, QueryTable
from fenchel.errors import InputError
from fenchel.io.batches import Cursor
from fenchel.io.storage import (
    Field,
    Form,
    Mismatch,
    Place,
    Record,
    Whole,
    read_document,
    write_document,
)

__all__ = ["STATE_FILE", "STATE_FORM", "AuditState", "shards_of"]

STATE_FILE = "state.json"
"""The file's name in an audit's folder."""

_OLD_STATE_FILE = "state.safetensors"

_Id = Annotated[str, Field(pattern=r"^[0-9]{1,19}\z")]
_Part = Annotated[str, Field(pattern=rf"^{PART_NAME}\z")]


class _SavedModule(Record):
    kind: Kind
    layer: Place
    name: str
    number: Whole


class _SavedCursor(Record):
    document: Whole
    window: Whole
    tokens: Whole
    documents: Whole


class _SavedTable(Record):
    parts: list[_Part]
    words: dict[_Id, str] = Field(default_factory=dict)


class _SavedAudit(Record):
    manifest: Manifest
    table: _SavedTable
    twin: _SavedTable | None
    examples: list[dict[str, Any]]
    matrices: list[dict[str, Any]]
    modules: list[_SavedModule]
    cursor: _SavedCursor
    finished: bool


STATE_FORM = Form(
    name="saved audit",
    version=SCHEMA,
    schema=_SavedAudit,
    advice="Restore it from a copy, or audit that part again with --overwrite.",
)
"""What the file holds."""


@dataclass
class AuditState:
    """Everything that an audit knows between two batches.

    Attributes:
        manifest: What the audit is.
        table: A row for every query and head that was measured.
        words: The text of tokens by id.
        far_queries: The queries kept for each head.
        twin: The table of the model's untrained twin; None where it is not audited.
        modules: The attention module of every layer, once a batch has been read.
        matrices: The attention of a sentence by each head.
        cursor: Where the next batch starts.
        finished: Whether every batch has been counted and every file of the audit has been written.
    """

    manifest: dict[str, Any]
    table: QueryTable = field(default_factory=QueryTable.temporary)
    words: dict[int, str] = field(default_factory=dict)
    far_queries: FarQueries = field(default_factory=dict)
    twin: QueryTable | None = None
    modules: dict[tuple[Kind, int], AttentionModule] = field(default_factory=dict)
    matrices: dict[HeadKey, AttentionMatrix] = field(default_factory=dict)
    cursor: Cursor = field(default_factory=Cursor)
    finished: bool = False

    @classmethod
    def begun(cls, manifest: dict[str, Any], directory: Path) -> AuditState:
        """An audit that has counted nothing and writes its table into a folder."""
        return cls(manifest, QueryTable(directory / QUERIES))

    @property
    def tables(self) -> list[QueryTable]:
        """The table, and that of the twin if it has one."""
        return [self.table] if self.twin is None else [self.table, self.twin]

    def write_rows(self) -> None:
        """Write the rows that wait as parts of their tables."""
        for table in self.tables:
            table.write()

    def remove_other_parts(self) -> None:
        """Remove parts in the folders of the tables that are none of theirs, and a twin's that is not audited now."""
        for table in (self.table, self.twin or self.new_twin()):
            table.remove_others()

    def new_twin(self) -> QueryTable:
        """An empty table for the twin, beside that of the model."""
        return self.table.beside(TWIN_QUERIES)

    def statistics(self) -> AuditStatistics:
        """What was measured of the model."""
        return AuditStatistics(self.table, self.words)

    def twin_statistics(self) -> AuditStatistics | None:
        """The same of its twin."""
        return None if self.twin is None else AuditStatistics(self.twin, self.words)

    def write(self, directory: Path) -> None:
        """Save into a folder, in one step: the file there is the old state or the new one."""

        def saved(table: QueryTable) -> dict[str, Any]:
            return {"parts": [path.name for path in table.parts]}

        write_document(
            directory / STATE_FILE,
            STATE_FORM,
            {
                "manifest": self.manifest,
                "table": saved(self.table)
                | {"words": {str(number): self.words[number] for number in sorted(self.words)}},
                "twin": None if self.twin is None else saved(self.twin),
                "examples": [
                    example.to_json() for key in sorted(self.far_queries) for example in self.far_queries[key]
                ],
                "matrices": [self.matrices[key].to_json() for key in sorted(self.matrices)],
                "modules": [
                    {"kind": kind, "layer": layer, **module._asdict()}
                    for (kind, layer), module in sorted(self.modules.items())
                ],
                "cursor": asdict(self.cursor),
                "finished": self.finished,
            },
        )

    @classmethod
    def read(cls, directory: Path, *, parts: bool = True) -> AuditState:
        """Load what ``write`` saved.

        Args:
            directory: The audit's folder.
            parts: Check the parts of the table, too.

        Raises:
            InputError: If the folder holds no state, one of another version, one that was changed after it was
                written, what no audit can have given, or a table without one of its parts.
        """
        path = directory / STATE_FILE
        if not path.exists() and (directory / _OLD_STATE_FILE).exists():
            raise InputError(
                f"{directory} holds an audit of fenchel 0.1, whose {_OLD_STATE_FILE} has counts, not queries, "
                "and cannot be read by this version. Audit again with --overwrite."
            )
        saved = read_document(path, STATE_FORM)
        with STATE_FORM.reading(path):
            shards_of(saved["manifest"])
            far_queries = examples_from_json(saved["examples"])
            matrices = {matrix.key: matrix for matrix in map(AttentionMatrix.from_json, saved["matrices"])}
            words = {int(number): text for number, text in saved["table"]["words"].items()}

        def table_of(name: str, found: dict[str, Any]) -> QueryTable:
            return QueryTable(directory / name, [directory / name / part for part in found["parts"]])

        table = table_of(QUERIES, saved["table"])
        twin = None if saved["twin"] is None else table_of(TWIN_QUERIES, saved["twin"])
        if parts:
            for each in (table, twin):
                if each is not None:
                    each.check()
        return cls(
            manifest=in_order(saved["manifest"]),
            table=table,
            words=words,
            far_queries=far_queries,
            twin=twin,
            modules={
                (module["kind"], module["layer"]): AttentionModule(module["name"], module["number"])
                for module in saved["modules"]
            },
            matrices=matrices,
            cursor=Cursor(**saved["cursor"]),
            finished=saved["finished"],
        )


def shards_of(manifest: Mapping[str, Any]) -> tuple[frozenset[int], int]:
    """Which shards of how many an audit holds: ``i/n`` of one, ``i,j/n`` of several that were merged.

    Raises:
        Mismatch: If they are not different ones of those that there are.
    """
    indices, _, count = str(manifest["shard"]).partition("/")
    found = [int(index) for index in indices.split(",")]
    if len(set(found)) < len(found) or max(found) >= int(count):
        raise Mismatch("manifest.shard", manifest["shard"], "different shards, each below their number")
    return frozenset(found), int(count)
