"""What an experiment is to run, read and checked before a folder is made for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fenchel.arguments import checked
from fenchel.errors import FenchelError, InputError
from fenchel.experiments.budget import chosen_budget
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.folder import ExperimentFolder
from fenchel.experiments.plan import Plan
from fenchel.experiments.training import shared_setting
from fenchel.train.task import AnyTask
from fenchel.train.workers import Workers

__all__ = ["join_for_all", "planned", "read_data"]


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


def join_for_all(folder: ExperimentFolder, plan: Plan, workers: Workers) -> None:
    """Puts the plan into the folder; what is wrong with that ends every process, not the first alone."""
    failure: FenchelError | None = None
    if workers.leads:
        try:
            folder.join(plan)
        except FenchelError as error:
            failure = error
    if not workers.said_by_leader(failure is None):
        raise failure or InputError("the first process could not begin; its message says why.")


def read_data(names: Sequence[str], task: type[AnyTask]) -> dict[str, Any]:
    """All data sets; where some are not there, the message names those that are."""
    read: dict[str, Any] = {}
    failure: InputError | None = None
    for name in names:
        try:
            read[name] = task.read(name)
        except InputError as error:
            failure = failure or error
    if failure is None:
        return read
    if not read:
        raise failure
    raise InputError(f"{failure} Or name those that are there, with --data {','.join(read)}.") from failure
