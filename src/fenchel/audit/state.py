"""An audit as one file: what a killed run goes on from, and what shards are merged from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fenchel.audit.batch import Cursor
from fenchel.audit.examples import HeadExample
from fenchel.audit.heads import HeadKey
from fenchel.audit.manifest import SCHEMA, in_order
from fenchel.audit.statistics import AuditStatistics
from fenchel.errors import InputError
from fenchel.storage import read_tensors, write_tensors

__all__ = ["STATE_FILE", "AuditState"]

STATE_FILE = "state.safetensors"
"""The file's name in an audit's folder. Its metadata holds everything that is not a tensor, as JSON."""


@dataclass
class AuditState:
    """Everything that an audit knows between two batches.

    Attributes:
        manifest: What the audit is.
        statistics: What has been counted.
        examples: The query kept for each head.
        cursor: Where the next batch starts.
        finished: Whether every batch has been counted and every file of the audit has been written.
        keep_queries: Whether single queries are written.
        query_parts: How many files of them are complete.
    """

    manifest: dict[str, Any]
    statistics: AuditStatistics = field(default_factory=AuditStatistics)
    examples: dict[HeadKey, HeadExample] = field(default_factory=dict)
    cursor: Cursor = field(default_factory=Cursor)
    finished: bool = False
    keep_queries: bool = False
    query_parts: int = 0

    def write(self, directory: Path) -> None:
        """Save into a folder, in one step: the file there is the old state or the new one."""
        tensors, description = self.statistics.to_state()
        examples = [self.examples[key].to_json() for key in sorted(self.examples)]
        write_tensors(
            directory / STATE_FILE,
            tensors,
            {
                "schema": SCHEMA,
                "manifest": self.manifest,
                "statistics": description,
                "examples": examples,
                "cursor": asdict(self.cursor),
                "finished": self.finished,
                "keep_queries": self.keep_queries,
                "query_parts": self.query_parts,
            },
        )

    @classmethod
    def read(cls, directory: Path) -> AuditState:
        """Load what ``write`` saved.

        Raises:
            InputError: If the folder holds no state, or one that is damaged or of another version.
        """
        path = directory / STATE_FILE
        tensors, saved = read_tensors(path)
        if not isinstance(saved, dict) or saved.get("schema") != SCHEMA:
            found = saved.get("schema") if isinstance(saved, dict) else None
            raise InputError(
                f"{path} has schema {found!r}; this version of fenchel reads schema {SCHEMA}. "
                "Read it with the version that wrote it, or audit again."
            )
        try:
            examples = [HeadExample.from_json(record) for record in saved["examples"]]
            return cls(
                manifest=in_order(saved["manifest"]),
                statistics=AuditStatistics.from_state(tensors, saved["statistics"]),
                examples={example.key: example for example in examples},
                cursor=Cursor(**saved["cursor"]),
                finished=saved["finished"],
                keep_queries=saved["keep_queries"],
                query_parts=saved["query_parts"],
            )
        except (KeyError, TypeError) as error:
            raise InputError(f"{path} is damaged: {error}. Audit that part again.") from error
