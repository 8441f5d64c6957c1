"""An audit as one file: what a killed run goes on from, and what shards are merged from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fenchel.auditing.attention_matrix import AttentionMatrix
from fenchel.auditing.examples import FarQueries, examples_from_json
from fenchel.auditing.heads import AttentionModule, HeadKey, Kind
from fenchel.auditing.manifest import SCHEMA, Manifest, in_order
from fenchel.auditing.saved_statistics import SavedStatistics
from fenchel.auditing.statistics import AuditStatistics
from fenchel.errors import InputError
from fenchel.io.batches import Cursor
from fenchel.io.schema import Field, Mismatch, Place, Record, Shown, Whole
from fenchel.io.storage import Form, read_tensors, write_tensors

__all__ = ["STATE_FILE", "STATE_FORM", "AuditState"]

STATE_FILE = "state.safetensors"
"""The file's name in an audit's folder. Its metadata holds everything that is not a tensor, as JSON."""

_TWIN = "twin."


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


class _SavedAudit(Record):
    manifest: Manifest
    statistics: SavedStatistics
    examples: list[dict[str, Any]]
    matrices: list[dict[str, Any]]
    twin: SavedStatistics | None
    modules: list[_SavedModule]
    cursor: _SavedCursor
    finished: bool
    keep_queries: bool
    query_parts: Annotated[int, Field(ge=0, le=10**9)]
    waiting_queries: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}\z")] | None


STATE_FORM = Form(
    name="saved audit",
    version=SCHEMA,
    schema=_SavedAudit,
    advice="Put a good copy of it back, or audit that part again with --overwrite.",
)
"""What the file holds besides tensors."""


@dataclass
class AuditState:
    """Everything that an audit knows between two batches.

    Attributes:
        manifest: What the audit is.
        statistics: What has been counted.
        far_queries: The queries kept for each head.
        twin: What has been counted of the model's untrained twin; None where it is not audited.
        modules: The attention module of every layer, once a batch has been read.
        matrices: The attention of a sentence by each head.
        cursor: Where the next batch starts.
        finished: Whether every batch has been counted and every file of the audit has been written.
        keep_queries: Whether single queries are written.
        query_parts: How many files of them are complete.
        waiting_queries: Digest of the file of those that wait for the next; None where none wait.
    """

    manifest: dict[str, Any]
    statistics: AuditStatistics = field(default_factory=AuditStatistics)
    far_queries: FarQueries = field(default_factory=dict)
    twin: AuditStatistics | None = None
    modules: dict[tuple[Kind, int], AttentionModule] = field(default_factory=dict)
    matrices: dict[HeadKey, AttentionMatrix] = field(default_factory=dict)
    cursor: Cursor = field(default_factory=Cursor)
    finished: bool = False
    keep_queries: bool = False
    query_parts: int = 0
    waiting_queries: str | None = None

    def write(self, directory: Path) -> None:
        """Save into a folder, in one step: the file there is the old state or the new one."""
        tensors, description = self.statistics.to_state()
        of_twin, twin = (None, None) if self.twin is None else self.twin.to_state()
        tensors |= {f"{_TWIN}{name}": tensor for name, tensor in (of_twin or {}).items()}
        write_tensors(
            directory / STATE_FILE,
            STATE_FORM,
            tensors,
            {
                "manifest": self.manifest,
                "statistics": description,
                "examples": [
                    example.to_json() for key in sorted(self.far_queries) for example in self.far_queries[key]
                ],
                "matrices": [self.matrices[key].to_json() for key in sorted(self.matrices)],
                "twin": twin,
                "modules": [
                    {"kind": kind, "layer": layer, **module._asdict()}
                    for (kind, layer), module in sorted(self.modules.items())
                ],
                "cursor": asdict(self.cursor),
                "finished": self.finished,
                "keep_queries": self.keep_queries,
                "query_parts": self.query_parts,
                "waiting_queries": self.waiting_queries,
            },
        )

    @classmethod
    def read(cls, directory: Path) -> AuditState:
        """Load what ``write`` saved.

        Raises:
            InputError: If the folder holds no state, one of another version, one that was changed after it was
                written, or numbers that no audit can have given.
        """
        path = directory / STATE_FILE
        tensors, saved = read_tensors(path, STATE_FORM)
        of_twin = {name: tensor for name, tensor in tensors.items() if name.startswith(_TWIN)}
        own = {name: tensor for name, tensor in tensors.items() if name not in of_twin}
        try:
            statistics, twin = AuditStatistics.from_state(own, saved["statistics"]), None
            if saved["twin"] is not None or of_twin:
                named = {name.removeprefix(_TWIN): tensor for name, tensor in of_twin.items()}
                twin = AuditStatistics.from_state(named, saved["twin"] or {})
        except InputError as error:
            raise InputError(f"{path}: {error} {STATE_FORM.advice}") from error
        with STATE_FORM.reading(path):
            _check_shards(saved["manifest"]["shard"], "manifest.shard")
            if twin is not None and twin.keys() != statistics.keys():
                raise Mismatch("the twin", Shown("of other heads"), "the heads that were counted")
            far_queries = examples_from_json(saved["examples"])
            matrices = {matrix.key: matrix for matrix in map(AttentionMatrix.from_json, saved["matrices"])}
            for name, keys in (("an example", far_queries), ("a matrix", matrices)):
                if strangers := sorted(set(keys) - set(statistics.keys())):
                    kind, layer, head = strangers[0]
                    raise Mismatch(
                        name, Shown(f"of {kind} layer {layer} head {head}"), "a head that was counted"
                    )
        return cls(
            manifest=in_order(saved["manifest"]),
            statistics=statistics,
            far_queries=far_queries,
            twin=twin,
            modules={
                (module["kind"], module["layer"]): AttentionModule(module["name"], module["number"])
                for module in saved["modules"]
            },
            matrices=matrices,
            cursor=Cursor(**saved["cursor"]),
            finished=saved["finished"],
            keep_queries=saved["keep_queries"],
            query_parts=saved["query_parts"],
            waiting_queries=saved["waiting_queries"],
        )


def _check_shards(text: str, where: str) -> None:
    """See that a saved ``i/n``, or ``i,j/n`` of several that were merged, names shards that exist, each once.

    Args:
        text: Whole numbers with commas and a slash between them.
        where: Its place in what was saved.

    Raises:
        Mismatch: If it does not.
    """
    indices, _, count = text.partition("/")
    found = [int(index) for index in indices.split(",")]
    if len(set(found)) < len(found) or max(found) >= int(count):
        raise Mismatch(where, text, "different shards, each below their number")
