"""Runs of another experiment that must come first, since others go on from their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fenchel.experiments.data import described
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.folder import ExperimentFolder
from fenchel.experiments.observer import ExperimentObserver, Position
from fenchel.experiments.plan import Plan, Run
from fenchel.experiments.planning import join_for_all, planned, read_data
from fenchel.experiments.training import Trainer
from fenchel.experiments.turn import Turn
from fenchel.train.checkpoint import CHECKPOINT_FILE
from fenchel.train.workers import Workers

__all__ = ["Preceding"]


@dataclass(frozen=True)
class Preceding:
    """Has the runs trained that a plan's runs go on from.

    Attributes:
        plan: Whose runs go on.
        directory: That holds the folders of both experiments.
        trainer: What trains.
        device: Where.
        workers: The processes.
        observer: Is told how it goes.
        stop: Whether the training under way is to end.
    """

    plan: Plan
    directory: Path
    trainer: Trainer
    device: str | None
    workers: Workers
    observer: ExperimentObserver
    stop: Callable[[], bool]
    _read: dict[str, Any] = field(default_factory=dict)

    def ready(self, run: Run) -> Path | None:
        """The folder of a run with its weights, trained now if it has not been.

        Args:
            run: Of the other experiment.

        Returns:
            The folder; None where another process is training it, or it came to no result.

        Raises:
            InputError: If its data are missing, or its folder holds something else.
        """
        after = chosen_experiment(self.plan.experiment).of.after
        assert after is not None  # noqa: S101 - runs go on from its
        wanted = planned(
            after.experiment,
            [run.data],
            self.plan.budget,
            [run.arm.name],
            [run.learning_rate],
            self.plan.seeds,
            {"precision": self.plan.setting["precision"]},
        )
        task = chosen_experiment(after.experiment).of.task
        if run.data not in self._read:
            self._read.update(read_data(wanted.data, task))
        data = self._read[run.data]
        wanted = replace(wanted, descriptions=(described(run.data, task, data),))
        folder = ExperimentFolder(self.directory / after.experiment)
        join_for_all(folder, wanted, self.workers)
        turn = Turn(run, Position(1, 1), folder, wanted, self.workers, self.observer, self.stop, weights=True)
        turn.take(self.trainer, data, self.device)
        there = folder.of(run)
        finished = (
            self.workers.leads
            and folder.record(run, wanted) is not None
            and (there / CHECKPOINT_FILE).exists()
        )
        return there if self.workers.said_by_leader(finished) else None
