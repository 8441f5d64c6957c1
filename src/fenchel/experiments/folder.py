"""The folder of an experiment, which several processes may share: its plan, its locks and its finished runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fenchel.errors import InputError
from fenchel.experiments.plan import Plan, Run
from fenchel.experiments.record import RunRecord
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.schema import plan_schema
from fenchel.experiments.training import plan_of, record_of
from fenchel.runs.lock import held, tried
from fenchel.storage import Form, check_writable, guarded_writing, read_document, write_document
from fenchel.storage.form import refused
from fenchel.storage.schema import record, text
from fenchel.train.checkpoint import CHECKPOINT_FILE
from fenchel.train.result import RESULTS_FILE

__all__ = ["PLAN", "PLAN_FORM", "ExperimentFolder"]

PLAN = "experiment.json"
"""The plan's file."""
_LOCK = "experiment.lock"
_DIVERGED = "diverged.json"

PLAN_FORM = Form(
    name="plan of an experiment",
    version=2,
    schema=plan_schema,
    advice="Put a good copy of it back, or choose another folder.",
)
"""What the plan's file holds."""

_DIVERGED_FORM = Form(
    name="note of a diverged run",
    version=2,
    schema=record({"reason": text()}),
    advice="Remove it, and the run is tried again.",
)


@dataclass(frozen=True)
class ExperimentFolder:
    """Where an experiment's runs are.

    Attributes:
        path: The folder.
    """

    path: Path

    def plan(self) -> Plan | None:
        """The plan that the folder holds, or None.

        Raises:
            InputError: If the file is damaged.
        """
        file = self.path / PLAN
        if not file.exists():
            return None
        written = read_document(file, PLAN_FORM)
        try:
            return plan_of(written)
        except InputError as error:
            raise refused(file, PLAN_FORM, f"is no {PLAN_FORM.name}: {error}") from error

    def join(self, asked: Plan) -> Plan:
        """Put a plan into the folder, beside what was planned there before.

        Args:
            asked: What this process is to run.

        Returns:
            What the folder is to hold in all: the arms, data sets, learning rates and seeds of both plans.

        Raises:
            InputError: If the folder holds runs of another setting, or something else.
            OutputError: If it cannot be written to.
        """
        self._refuse_strangers()
        with guarded_writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        with held(self.path / _LOCK):
            check_writable(self.path)
            there = self.plan()
            if there is not None and (differing := there.differences(asked)):
                if self._begun(there):
                    raise InputError(
                        f"{self.path} holds another experiment than the one asked for; they differ in "
                        f"{'; '.join(differing)}. Give the same options, or choose another folder."
                    )
                there = None
            joined = asked if there is None else there.joined(asked)
            if joined != there:
                write_document(self.path / PLAN, PLAN_FORM, joined.to_json())
            return joined

    def _begun(self, plan: Plan) -> bool:
        """Whether a run of the plan has left something, or is being trained."""
        for run in plan.runs():
            if any((self.of(run) / name).exists() for name in (RESULTS_FILE, CHECKPOINT_FILE, _DIVERGED)):
                return True
            lock = self._lock(run)
            if lock.exists():
                with tried(lock) as free:
                    if not free:
                        return True
        return False

    def _lock(self, run: Run) -> Path:
        place = self.of(run)
        return place.with_name(f"{place.name}.lock")

    def of(self, run: Run) -> Path:
        """The folder of a run."""
        return self.path / run.place

    @contextlib.contextmanager
    def claimed(self, run: Run) -> Iterator[bool]:
        """Claim a run for this process.

        Args:
            run: The run.

        Yields:
            Whether no other process is training it.

        Raises:
            OutputError: If the folder cannot be written to.
        """
        lock = self._lock(run)
        with guarded_writing(lock.parent):
            lock.parent.mkdir(parents=True, exist_ok=True)
        with tried(lock) as free:
            yield free

    def record(self, run: Run, plan: Plan) -> RunRecord | None:
        """A finished run's record, or None where it has not finished.

        Raises:
            InputError: If the run's folder holds another training.
        """
        return record_of(run, plan, self.of(run))

    def mark_diverged(self, run: Run, reason: str) -> None:
        """Note that a run has no result, so that it is not tried again: it would come to the same."""
        place = self.of(run)
        with guarded_writing(place):
            place.mkdir(parents=True, exist_ok=True)
        write_document(place / _DIVERGED, _DIVERGED_FORM, {"reason": reason})

    def divergence(self, run: Run) -> str | None:
        """Why a run has no result, or None if it has one or may have one yet.

        Raises:
            InputError: If the note is damaged.
        """
        file = self.of(run) / _DIVERGED
        return read_document(file, _DIVERGED_FORM)["reason"] if file.exists() else None

    def report(self, plan: Plan) -> ExperimentReport:
        """What there is of a plan."""
        runs = list(plan.runs())
        found = (self.record(run, plan) for run in runs)
        return ExperimentReport(
            plan,
            tuple(record for record in found if record is not None),
            tuple(str(run) for run in runs if self.divergence(run) is not None),
        )

    def save(self) -> ExperimentReport:
        """Write the report on everything that is planned and finished, and return it.

        Raises:
            InputError: If the folder holds no experiment.
            OutputError: If a file cannot be written.
        """
        if self.plan() is None:
            raise InputError(
                f"{self.path} holds no experiment ({PLAN} is not there), so there is nothing to report. Run "
                f"fenchel experiment --out {self.path} first, or give the folder of one."
            )
        with held(self.path / _LOCK):
            plan = self.plan()
            assert plan is not None  # noqa: S101 - nobody removes a plan
            report = self.report(plan)
            report.save(self.path)
        return report

    def _refuse_strangers(self) -> None:
        if self.path.is_file():
            raise InputError(
                f"{self.path} is a file; expected a folder for the experiment. Choose another one."
            )
        if (self.path / PLAN).exists():
            return
        for stranger in ("results.json", "checkpoint.safetensors", "heads.json", "swap.json"):
            if (self.path / stranger).exists():
                raise InputError(
                    f"{self.path} holds {stranger}, which is not of an experiment. Choose another folder."
                )
