"""One run's turn: kept, left to another process, or trained."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.errors import ConvergenceError, InputError
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.folder import ExperimentFolder
from fenchel.experiments.observer import ExperimentObserver, Position
from fenchel.experiments.plan import Plan, Run
from fenchel.experiments.records import Records
from fenchel.experiments.training import Trainer, needed_run, options_of
from fenchel.train.checkpoint import CHECKPOINT_FILE
from fenchel.train.result import RESULTS_FILE
from fenchel.train.workers import Workers

__all__ = ["Turn"]


@dataclass(frozen=True)
class Turn:
    """One run's turn.

    Attributes:
        run: The run.
        position: Among those of this process.
        folder: Of its experiment.
        plan: Of its experiment.
        workers: The processes.
        observer: Is told what becomes of it.
        stop: Whether the training under way is to end.
        before: Has the run that this one goes on from trained, and says where; None where another process is at it.
        weights: Whether the weights are wanted: a record alone does not do then.
        records: Where finished runs are recorded besides.
    """

    run: Run
    position: Position
    folder: ExperimentFolder
    plan: Plan
    workers: Workers
    observer: ExperimentObserver
    stop: Callable[[], bool]
    before: Callable[[Run], Path | None] = lambda run: None
    weights: bool = False
    records: Records | None = None

    def take(self, trainer: Trainer, data: Any, device: str | None) -> None:
        """Trains the run, if nobody has or is at it.

        Args:
            trainer: What trains.
            data: As the task reads them.
            device: Where to train.

        Raises:
            InputError: If the training refuses what it is given, naming the run.
        """
        with contextlib.ExitStack() as claim:
            wanted = self.workers.leads and self._wanted(claim)
            if not self.workers.said_by_leader(wanted):
                return
            place = self.folder.of(self.run)
            options = options_of(self.run, self.plan)
            of = chosen_experiment(self.plan.experiment).of
            if of.after is not None and (needed := needed_run(self.run, of)) is not None:
                if (beginning := self.before(needed)) is None:
                    self.observer.left(self.run, self.position)
                    return
                options = dataclasses.replace(options, **{of.after.option: str(beginning)})
            if self.workers.leads and self.weights:
                # Results without weights are of no use to whoever goes on from them.
                (place / RESULTS_FILE).unlink(missing_ok=True)
            told = self.observer.began(self.run, self.position)
            try:
                trainer(options, place, resume=True, device=device, observer=told, data=data, stop=self.stop)
            except ConvergenceError as error:
                if self.workers.leads:
                    self.folder.mark_diverged(self.run, str(error))
            except InputError as error:
                advice = f" Or remove {place}: the run then starts anew." if place.exists() else ""
                raise InputError(f"{self.run}: {error}{advice}") from error
            if self.workers.leads:
                self._tell_end()

    def _tell_end(self) -> None:
        record = self.folder.record(self.run, self.plan)
        if record is not None:
            if self.records is not None:
                self.records.keep(self.run, self.folder)
            self.observer.ended(self.run, self.position, record)
        elif (reason := self.folder.divergence(self.run)) is not None:
            self.observer.diverged(self.run, self.position, reason)
        self.folder.save()

    def _wanted(self, claim: contextlib.ExitStack) -> bool:
        """Whether the run is still to be trained, and by us; the claim on it is then held."""
        free = claim.enter_context(self.folder.claimed(self.run))
        if not free:
            self.observer.left(self.run, self.position)
            return False
        if (reason := self.folder.divergence(self.run)) is not None:
            self.observer.diverged(self.run, self.position, reason)
            return False
        record = self.folder.record(self.run, self.plan)
        if record is None or (self.weights and not (self.folder.of(self.run) / CHECKPOINT_FILE).exists()):
            return True
        self.observer.kept(self.run, self.position, record)
        return False
