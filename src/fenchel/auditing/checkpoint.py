"""The folder of an audit under way: what it may be started in, what is saved in between, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.manifest import OUTCOMES
from fenchel.auditing.queries import QueryFiles, remove_queries
from fenchel.auditing.state import STATE_FILE, AuditState
from fenchel.io.batches import Cursor
from fenchel.io.folder import RunKind, Saved, differences
from fenchel.progress import SavingPace

__all__ = ["AUDIT", "Checkpoints", "open_state"]

# Another version or device may round otherwise: the files would not be those of an uninterrupted audit.
_FREE_TO_RESUME = OUTCOMES | {"python", "texts"}


def _saved(directory: Path) -> Saved:
    state = AuditState.read(directory)
    counts = {"document": state.cursor.documents, "token": state.cursor.tokens}
    if state.manifest.get("reads") == "images":
        counts = {"image": state.cursor.documents}
    return Saved(str(state.manifest.get("model")), counts, state.finished)


AUDIT = RunKind("audit", STATE_FILE, ("heads.json",), _saved)
"""What an audit leaves in its folder."""


def open_state(
    directory: Path, manifest: Mapping[str, Any], *, overwrite: bool, keep_queries: bool
) -> AuditState:
    """What an audit starts from in a folder: nothing, or what an earlier session of it left.

    Args:
        directory: The audit's folder, which ``AUDIT.refuse_occupied`` let pass.
        manifest: The audit that is wanted.
        overwrite: Start anew whatever is there.
        keep_queries: Whether single queries are wanted.

    Returns:
        The state; ``finished`` if there is nothing left to do.

    Raises:
        InputError: If the folder holds another audit.
    """
    if overwrite or not (directory / STATE_FILE).exists():
        return AuditState(dict(manifest), keep_queries=keep_queries)
    state = AuditState.read(directory)
    there = {**state.manifest, "keep_queries": state.keep_queries}
    asked = {**manifest, "keep_queries": keep_queries}
    # What is taken for a template, and for attention, follows from the space and the closeness, in a word each.
    same = all(there.get(name) == asked.get(name) for name in ("space", "closeness"))
    but = _FREE_TO_RESUME if same else {*_FREE_TO_RESUME, "convention"}
    AUDIT.refuse_other(directory, differences(there, asked, but=but))
    return state


class Checkpoints:
    """Saves an audit's state every so often, and its files at the end.

    Args:
        directory: The audit's folder.
        state: The audit.
        seconds: Least time between two savings.
        now: Gives the time in seconds.
    """

    def __init__(
        self,
        directory: Path,
        state: AuditState,
        *,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.directory = directory
        self.state = state
        self.queries = QueryFiles(directory, state.query_parts) if state.keep_queries else None
        self._begun = state.cursor != Cursor()
        if self.queries is not None and self._begun:
            self.queries.resume(state.cursor, state.waiting_queries)
        self.pace = SavingPace(seconds, now)
        self._saved = state.cursor

    def begin(self) -> None:
        """Remove the single queries of an audit that this one replaces; to be called when there is something to count.

        Not before, since until then an option or a text may still turn out to be of no use.
        """
        if not self._begun:
            remove_queries(self.directory)
            self._begun = True

    def save(self) -> None:
        """Save everything counted so far, unless it is saved already."""
        place = self.state.cursor
        if place != self._saved:
            if self.queries is not None:
                self.state.waiting_queries = self.queries.checkpoint(place)
                self.state.query_parts = self.queries.parts
            self._write_state()
            if self.queries is not None:
                self.queries.forget_but(place)
            self._saved = place
        self.pace.saved()

    def finish(self) -> AuditReport:
        """Write every file of the audit, and mark it as finished when all are there."""
        self.begin()
        self.save()
        if self.queries is not None:
            self.queries.close()
            self.state.query_parts = self.queries.parts
        state = self.state
        report = AuditReport.of(state)
        report.write_files(self.directory)
        state.finished, state.waiting_queries = True, None
        self._write_state()
        if self.queries is not None:
            self.queries.forget_but(None)
        return report

    def _write_state(self) -> None:
        self.state.manifest.update(documents=self.state.cursor.documents, tokens=self.state.cursor.tokens)
        self.state.write(self.directory)
