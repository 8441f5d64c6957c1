"""Run an experiment: every arm with every seed, each at most once, on one process or many."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fenchel.arguments import checked, shown
from fenchel.data.shard import Shard
from fenchel.errors import InputError
from fenchel.experiments.data import described
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.folder import ExperimentFolder
from fenchel.experiments.observer import ExperimentObserver, Position, SilentExperimentObserver
from fenchel.experiments.plan import Plan
from fenchel.experiments.planning import join_for_all, planned, read_data
from fenchel.experiments.preceding import Preceding
from fenchel.experiments.records import Records
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.training import Trainer, needed_run, options_of
from fenchel.experiments.turn import Turn
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
    records: str | Path | None = None,
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
        records: A folder of recorded runs, without weights. What is recorded there is not trained again, and runs that
            finish are recorded there too.
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
    kept = None if records is None else Records(checked("folder", records, name="records"))
    plan = planned(name, data, budget, arms, learning_rates, seeds, options)
    task = chosen_experiment(name).of.task
    require_packages("train", "matplotlib", "scipy")
    with joined_workers(device) as workers, _threads(threads):
        read = read_data(plan.data, task)
        plan = replace(plan, descriptions=tuple(described(one, task, read[one]) for one in plan.data))
        if trainer is None:
            _check_first_runs(plan, read, task, workers)
        folder = ExperimentFolder(checked("folder", directory, name="directory"))
        join_for_all(folder, plan, workers)
        if kept is not None and workers.leads:
            kept.take_over(plan, folder)
        watching = observer if observer is not None and workers.leads else SilentExperimentObserver()
        mine = [run for index, run in enumerate(plan.runs()) if shard is None or shard.takes(index)]
        taught = trainer or train
        preceding = Preceding(plan, folder.path.parent, taught, device, workers, watching, stop)
        for number, run in enumerate(mine, 1):
            turn = Turn(
                run,
                Position(number, len(mine)),
                folder,
                plan,
                workers,
                watching,
                stop,
                before=preceding.ready,
                records=kept,
            )
            turn.take(taught, read[run.data], device)
        if kept is not None and workers.leads:
            kept.keep_all(plan, folder)
        return folder.save() if workers.leads else ExperimentReport(plan, ())


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


def _check_first_runs(plan: Plan, read: Mapping[str, Any], task: type[AnyTask], workers: Workers) -> None:
    """Has what would stop a training before its first step stop the experiment before it makes a folder."""
    of = chosen_experiment(plan.experiment).of
    for run in plan.runs():
        if run.seed == 0 and needed_run(run, of) is None:
            prepared(task, options_of(run, plan).resolved(), read[run.data], workers)


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
