"""Run an experiment: every arm with every seed, each at most once, on one process or many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.data.shard import Shard
from fenchel.errors import ConvergenceError, FenchelError, InputError
from fenchel.experiments.budget import chosen_budget
from fenchel.experiments.data import described
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.folder import ExperimentFolder
from fenchel.experiments.observer import ExperimentObserver, Position, SilentExperimentObserver
from fenchel.experiments.plan import Plan, Run
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.training import Trainer, options_of, shared_setting
from fenchel.runs import require_packages
from fenchel.train.preparation import prepared
from fenchel.train.run import train
from fenchel.train.task import AnyTask
from fenchel.train.workers import Workers, joined_workers

__all__ = ["planned", "report_on", "run_experiment"]


def run_experiment(
    name: str,
    directory: str | Path,
    *,
    data: Sequence[str] | None = None,
    budget: str = "smoke",
    arms: Sequence[str] | None = None,
    learning_rates: Sequence[float] | None = None,
    seeds: int = 3,
    options: Mapping[str, Any] | None = None,
    shard: Shard | None = None,
    device: str | None = None,
    threads: int | None = None,
    observer: ExperimentObserver | None = None,
    trainer: Trainer | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> ExperimentReport:
    """Train the arms of an experiment on the same budget and compare them by the headline of their task.

    The arms of a seed see the same examples in the same batches, so their difference is taken seed by seed. Finished
    runs in the folder are kept and interrupted ones go on where they stopped. A run that another process is training
    is left to it, so several processes may be given the same folder. Under ``torchrun`` every run is trained by all
    processes together.

    Args:
        name: One of ``fenchel.experiments.EXPERIMENTS``, such as ``table2``.
        directory: Where the runs and the report go. More arms, data sets, learning rates or seeds may be asked for
            later; the report is on all of them.
        data: Names as the task takes them. Default: the experiment's.
        budget: One of the experiment's: ``smoke``, ``desk`` or ``paper`` for images.
        arms: Some of those that the experiment has. Default: its own choice.
        learning_rates: Default: the experiment's.
        seeds: How many runs an arm, with seeds 0, 1, and so on.
        options: Of the training, for all runs, in place of the budget's and the defaults.
        shard: Train only this share of the runs, the I-th of every N.
        device: Where to train. Default: a GPU if there is one.
        threads: How many threads torch uses. Default: as it is.
        observer: Who is told about the progress.
        trainer: What trains. Default: ``fenchel.train.train``.
        stop: As for ``fenchel.train.train``: whether the run under way is to end with a ``KeyboardInterrupt``.

    Returns:
        The report on everything in the folder that belongs to the plan; it is also written there.

    Raises:
        InputError: If an option cannot be used, data are missing, or the folder holds another experiment.
        OutputError: If the folder cannot be written to; finished runs and checkpoints stay.
        MissingExtraError: If an optional package is missing.

    Example:
        >>> from fenchel.experiments import run_experiment
        >>> report = run_experiment("table2", "table2", data=["fashion-mnist"])  # doctest: +SKIP
    """
    observer = checked("experiment_observer", observer, name="observer")
    trainer, stop, threads = checked("trainer", trainer), checked("stop", stop), checked("threads", threads)
    device, directory = checked("device", device), checked("folder", directory, name="directory")
    if shard is not None and not isinstance(shard, Shard):
        raise InputError(f"shard is {shown(shard)}; expected fenchel.data.shard.Shard(i, n).")
    plan = planned(name, data, budget, arms, learning_rates, seeds, options)
    task = chosen_experiment(name).of.task
    require_packages("train", "matplotlib", "scipy")
    with joined_workers(device) as workers, _threads(threads):
        read = _read(plan.data, task)
        plan = replace(plan, descriptions=tuple(described(one, task, read[one]) for one in plan.data))
        if trainer is None:
            _check_first_runs(plan, read, task, workers)
        folder = ExperimentFolder(checked("folder", directory, name="directory"))
        _join(folder, plan, workers)
        watching = observer if observer is not None and workers.leads else SilentExperimentObserver()
        mine = [run for index, run in enumerate(plan.runs()) if shard is None or shard.takes(index)]
        for number, run in enumerate(mine, 1):
            turn = _Turn(run, Position(number, len(mine)), folder, plan, workers, watching, stop)
            turn.take(trainer or train, read[run.data], device)
        return folder.save() if workers.leads else ExperimentReport(plan, ())


def planned(
    name: str,
    data: Sequence[str] | None = None,
    budget: str = "smoke",
    arms: Sequence[str] | None = None,
    learning_rates: Sequence[float] | None = None,
    seeds: int = 3,
    options: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of an experiment, before any data are read.

    Args:
        name: See ``run_experiment``, also for the rest.
        data: Likewise.
        budget: Likewise.
        arms: Likewise.
        learning_rates: Likewise.
        seeds: Likewise.
        options: Likewise.

    Returns:
        The plan.

    Raises:
        InputError: If an option cannot be used.

    Example:
        >>> plan = planned("table2", ["fashion-mnist"], arms=["ot-vit"], seeds=2)
        >>> [str(run.place) for run in plan.runs()]
        ['fashion-mnist/ot-vit/lr-0.0003/seed-0', 'fashion-mnist/ot-vit/lr-0.0003/seed-1']
    """
    experiment = chosen_experiment(checked("name", name, name="experiment"))
    of = experiment.of
    chosen = chosen_budget(checked("name", budget, name="budget"), of.budgets.values())
    data, arms = checked("data_names", data, name="data"), checked("arms", arms)
    own = {} if options is None else checked("options", options)
    rates = experiment.learning_rates if learning_rates is None else checked("learning_rates", learning_rates)
    return Plan(
        experiment=experiment.name,
        budget=chosen.name,
        setting=shared_setting({**chosen.options, **own}, of),
        known=tuple(of.arms.values()),
        data=tuple(dict.fromkeys(experiment.data if data is None else data)),
        arms=tuple(experiment.arms if arms is None else arms),
        learning_rates=rates,
        seeds=seeds,
    )


def report_on(name: str, directory: str | Path) -> ExperimentReport:
    """Make the report of a folder again, from the runs that have finished there; trains nothing and reads no data.

    Args:
        name: The experiment that the folder holds.
        directory: The folder.

    Returns:
        The report; it is also written into the folder.

    Raises:
        InputError: If the folder holds no experiment, or another one.
        OutputError: If a file cannot be written.
        MissingExtraError: If an optional package is missing.
    """
    chosen_experiment(checked("name", name, name="experiment"))
    require_packages("train", "matplotlib", "scipy")
    folder = ExperimentFolder(checked("folder", directory, name="directory"))
    there = folder.plan()
    if there is not None and there.experiment != name:
        raise InputError(
            f"{folder.path} holds the experiment {there.experiment!r}, not {name!r}. Give that name, or another folder."
        )
    return folder.save()


@dataclass(frozen=True)
class _Turn:
    """One run's turn: kept, left to another process, or trained."""

    run: Run
    position: Position
    folder: ExperimentFolder
    plan: Plan
    workers: Workers
    observer: ExperimentObserver
    stop: Callable[[], bool]

    def take(self, trainer: Trainer, data: Any, device: str | None) -> None:
        with contextlib.ExitStack() as claim:
            wanted = self.workers.leads and self._wanted(claim)
            if not self.workers.said_by_leader(wanted):
                return
            place = self.folder.of(self.run)
            told = self.observer.began(self.run, self.position)
            options = options_of(self.run, self.plan)
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
        if record is None:
            return True
        self.observer.kept(self.run, self.position, record)
        return False


def _check_first_runs(plan: Plan, read: Mapping[str, Any], task: type[AnyTask], workers: Workers) -> None:
    """Has what would stop a training before its first step stop the experiment before it makes a folder."""
    for run in plan.runs():
        if run.seed == 0:
            prepared(task, options_of(run, plan).resolved(), read[run.data], workers)


def _join(folder: ExperimentFolder, plan: Plan, workers: Workers) -> None:
    """Puts the plan into the folder; what is wrong with that ends every process, not the first alone."""
    failure: FenchelError | None = None
    if workers.leads:
        try:
            folder.join(plan)
        except FenchelError as error:
            failure = error
    if not workers.said_by_leader(failure is None):
        raise failure or InputError("the first process could not begin; its message says why.")


def _read(names: Sequence[str], task: type[AnyTask]) -> dict[str, Any]:
    """All data sets; where some are not there, the message names those that are."""
    read: dict[str, Any] = {}
    failure: InputError | None = None
    for name in names:
        try:
            read[name] = task.read(name)
        except InputError as error:  # noqa: PERF203 - reading takes longer
            failure = failure or error
    if failure is None:
        return read
    if not read:
        raise failure
    raise InputError(f"{failure} Or name those that are there, with --data {','.join(read)}.") from failure


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    import torch

    before, count = torch.get_num_threads(), checked("threads", count)
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
