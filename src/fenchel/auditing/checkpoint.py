"""The folder of an audit under way: what it may be started in, what is saved in between, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.manifest import OUTCOMES
from fenchel.auditing.state import STATE_FILE, AuditState
from fenchel.io.batches import Cursor
from fenchel.io.folder import RunKind, Saved, differences
from fenchel.progress import SavingPace

__all__ = ["AUDIT", "Checkpoints", "open_state"]

# Another version or device may round otherwise: the files would not be those of an uninterrupted audit.
_FREE_TO_RESUME = OUTCOMES | {"python", "texts"}


def _saved(directory: Path) -> Saved:
    state = AuditState.read(directory, parts=False)
    counts = {"document": state.cursor.documents, "token": state.cursor.tokens}
    if state.manifest.get("reads") == "images":
        counts = {"image": state.cursor.documents}
    return Saved(str(state.manifest.get("model")), counts, state.finished)


AUDIT = RunKind("audit", STATE_FILE, ("heads.json",), _saved)
"""What an audit leaves in its folder."""


def open_state(directory: Path, manifest: Mapping[str, Any], *, overwrite: bool) -> AuditState:
    """What an audit starts from in a folder: nothing, or what an earlier session of it left.

    Args:
        directory: The audit's folder, which ``AUDIT.refuse_occupied`` let pass.
        manifest: The audit that is wanted.
        overwrite: Start anew whatever is there.

    Returns:
        The state; ``finished`` if there is nothing left to do.

    Raises:
        InputError: If the folder holds another audit.
    """
    if overwrite or not (directory / STATE_FILE).exists():
        return AuditState.begun(dict(manifest), directory)
    state = AuditState.read(directory)
    there, asked = state.manifest, manifest
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
        self._begun = state.cursor != Cursor()
        if self._begun:
            self._remove_others()
        self.pace = SavingPace(seconds, now)
        self._saved = state.cursor

    def begin(self) -> None:
        """Remove the audit that this one replaces; to be called when there is something to count.

        Not before, since until then an option or a text may still turn out to be of no use.
        """
        if not self._begun:
            (self.directory / STATE_FILE).unlink(missing_ok=True)
            self._remove_others()
            self._begun = True

    def save(self) -> None:
        """Save everything counted so far, unless it is saved already: the rows as a part, then the state."""
        place = self.state.cursor
        if place != self._saved:
            self._write_state()
            self._saved = place
        self.pace.saved()

    def finish(self) -> AuditReport:
        """Write every file of the audit, and mark it as finished when all are there."""
        self.begin()
        self.save()
        state = self.state
        report = AuditReport.of(state)
        report.write_files(self.directory)
        state.finished = True
        self._write_state()
        return report

    def _remove_others(self) -> None:
        tables = self.state.table, self.state.twin or self.state.new_twin()
        for table in tables:
            table.remove_others()

    def _write_state(self) -> None:
        self.state.table.write()
        if self.state.twin is not None:
            self.state.twin.write()
        self.state.manifest.update(documents=self.state.cursor.documents, tokens=self.state.cursor.tokens)
        self.state.write(self.directory)
