"""Records of finished runs apart from their folders: small files that are kept, and spare others the training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fenchel.errors import InputError
from fenchel.experiments.folder import ExperimentFolder
from fenchel.experiments.plan import Plan, Run
from fenchel.storage import guarded_writing, write_text
from fenchel.train.result import RESULTS_FILE

__all__ = ["Records"]


@dataclass(frozen=True)
class Records:
    """A folder of the results of runs, without weights: ``DATA/ARM/lr-RATE/seed-N.json``.

    A file is the ``results.json`` of a training, byte for byte, so that its digest still holds.

    Attributes:
        path: The folder.
    """

    path: Path

    def of(self, run: Run) -> Path:
        """The file of a run."""
        return (self.path / run.place).with_suffix(".json")

    def take_over(self, plan: Plan, folder: ExperimentFolder) -> int:
        """Copy what is recorded of a plan's runs into an experiment's folder, where nothing of them is yet.

        Args:
            plan: What is to be run.
            folder: Of the experiment.

        Returns:
            How many runs were taken over.

        Raises:
            InputError: If a record is damaged, not of a finished run, or of another training than the plan's.
            OutputError: If it cannot be written.
        """
        taken = 0
        for run in plan.runs():
            record, place = self.of(run), folder.of(run)
            if not record.is_file() or (place / RESULTS_FILE).exists():
                continue
            _copy(record, place / RESULTS_FILE)
            try:
                finished = folder.record(run, plan) is not None
            except InputError as error:
                (place / RESULTS_FILE).unlink()
                reason = str(error).replace(str(place / RESULTS_FILE), "it").replace(str(place), "it")
                raise InputError(
                    f"{record} cannot be taken over: {reason} Or give another --records."
                ) from None
            if not finished:
                (place / RESULTS_FILE).unlink()
                raise InputError(f"{record} is of a run that has not finished. Remove it.")
            taken += 1
        return taken

    def keep(self, run: Run, folder: ExperimentFolder) -> None:
        """Record a run that has finished.

        Raises:
            OutputError: If it cannot be written.
        """
        _copy(folder.of(run) / RESULTS_FILE, self.of(run))

    def keep_all(self, plan: Plan, folder: ExperimentFolder) -> None:
        """Record all runs of a plan that have finished and are not recorded.

        Raises:
            OutputError: If one cannot be written.
        """
        for run in plan.runs():
            if not self.of(run).exists() and folder.record(run, plan) is not None:
                self.keep(run, folder)


def _copy(source: Path, target: Path) -> None:
    with guarded_writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source} cannot be read: {error}. Put a good copy of it back.") from None
    write_text(target, text)
