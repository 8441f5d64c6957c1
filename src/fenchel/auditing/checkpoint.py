"""The folder of an audit under way: what it may be started in, what is saved in between, and the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.manifest import OUTCOMES, differences
from fenchel.auditing.queries import QueryFiles, remove_queries
from fenchel.auditing.state import STATE_FILE, AuditState
from fenchel.errors import InputError

__all__ = ["Checkpoints", "open_state", "refuse_occupied"]

# Another version or device may round otherwise: the files would not be those of an uninterrupted audit.
_FREE_TO_RESUME = OUTCOMES | {"python", "texts"}


def refuse_occupied(directory: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds an audit, unless it is said what to do with that.

    Args:
        directory: The audit's folder.
        resume: Go on with what is there.
        overwrite: Start anew whatever is there.

    Raises:
        InputError: If the folder holds results and neither is wanted, or both are.
    """
    if resume and overwrite:
        raise InputError(
            "--resume and --overwrite contradict each other: the first keeps what the second discards."
        )
    if overwrite:
        return
    if (directory / STATE_FILE).exists():
        if not resume:
            state = AuditState.read(directory)
            end = "finished" if state.finished else "interrupted"
            raise InputError(
                f"{directory} holds an audit of {state.manifest.get('model')}, {end} after "
                f"{state.cursor.documents} documents and {state.cursor.tokens} tokens. Keep it and do what "
                "is left with --resume, start anew with --overwrite, or choose another folder."
            )
    elif (directory / "heads.json").exists():
        raise InputError(
            f"{directory} holds results without the state that they came from. Replace them with "
            "--overwrite, or choose another folder."
        )


def open_state(
    directory: Path, manifest: Mapping[str, Any], *, overwrite: bool, keep_queries: bool
) -> AuditState:
    """What an audit starts from in a folder: nothing, or what an earlier session of it left.

    Args:
        directory: The audit's folder, which ``refuse_occupied`` let pass.
        manifest: The audit that is wanted.
        overwrite: Start anew whatever is there.
        keep_queries: Whether single queries are wanted.

    Returns:
        The state; ``finished`` if there is nothing left to do.

    Raises:
        InputError: If the folder holds another audit.
    """
    if overwrite or not (directory / STATE_FILE).exists():
        remove_queries(directory)
        return AuditState(dict(manifest), keep_queries=keep_queries)
    state = AuditState.read(directory)
    differing = differences(manifest, state.manifest, but=_FREE_TO_RESUME)
    if state.keep_queries != keep_queries:
        differing.append(f"keep_queries: {keep_queries} and {state.keep_queries}")
    if differing:
        raise InputError(
            f"{directory} holds another audit than the one asked for; they differ in {'; '.join(differing)}. "
            "Give the same options, start anew with --overwrite, or choose another folder."
        )
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
        if self.queries is not None:
            self.queries.resume(state.cursor, state.waiting_queries)
        self._seconds = seconds
        self._now = now
        self._last = now()
        self._saved = state.cursor

    def due(self) -> bool:
        """Whether enough time has passed since the last saving."""
        return self._now() - self._last >= self._seconds

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
        self._last = self._now()

    def finish(self) -> AuditReport:
        """Write every file of the audit, and mark it as finished when all are there."""
        self.save()
        if self.queries is not None:
            self.queries.close()
            self.state.query_parts = self.queries.parts
        state = self.state
        report = AuditReport(state.manifest, state.statistics, state.examples)
        report.write_files(self.directory)
        state.finished, state.waiting_queries = True, None
        self._write_state()
        if self.queries is not None:
            self.queries.forget_but(None)
        return report

    def _write_state(self) -> None:
        self.state.manifest.update(documents=self.state.cursor.documents, tokens=self.state.cursor.tokens)
        self.state.write(self.directory)
