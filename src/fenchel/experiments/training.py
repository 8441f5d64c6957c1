"""A run of an experiment as ``fenchel.train`` sees it: its options, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fenchel.errors import InputError
from fenchel.experiments.budget import chosen_budget
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.plan import Plan, Run
from fenchel.experiments.record import RunRecord
from fenchel.runs.manifest import differences
from fenchel.train.observer import TrainObserver
from fenchel.train.options import LoopOptions
from fenchel.train.result import RESULTS_FILE, TrainResult

__all__ = ["Trainer", "needed_run", "options_of", "plan_of", "record_of", "shared_setting"]


class Trainer(Protocol):
    """``fenchel.train.train``, or what stands in for it."""

    def __call__(
        self,
        options: Any,
        directory: Path,
        *,
        resume: bool = False,
        observer: TrainObserver | None = None,
        device: str | None = None,
        data: Any = None,
        stop: Callable[[], bool] = ...,
    ) -> TrainResult:
        """Trains, and leaves ``results.json`` in the folder."""
        ...


def shared_setting(options: Mapping[str, Any], of: Comparison) -> dict[str, Any]:
    """Everything that all runs share, with nothing left to a recipe.

    Args:
        options: Of the task, by name; the rest are its defaults.
        of: What is compared.

    Returns:
        All options that are not a run's own: data, learning rate, seed, and what tells arms apart.

    Raises:
        InputError: If an option is unknown, out of range or a run's own.

    Example:
        >>> from fenchel.experiments.vision import IMAGES
        >>> setting = shared_setting({"epochs": 2}, IMAGES)
        >>> setting["epochs"], setting["batch_size"], "seed" in setting
        (2, 128, False)
    """
    if own := sorted(of.own & set(options)):
        raise InputError(
            f"{own[0]!r} is not shared by the runs of an experiment: it tells them apart. Leave it out."
        )
    given = of.task.options_type.from_json({**_needed_anywhere(of), **of.setting, **options, "data": "any"})
    left_open = {name: getattr(given, name) for name in of.undecided}
    resolved = {**given.resolved().to_json(), **left_open}
    return {name: value for name, value in resolved.items() if name not in of.own}


def plan_of(written: Mapping[str, Any]) -> Plan:
    """The plan that ``Plan.to_json`` wrote, of an experiment, a budget and a setting that there are.

    Args:
        written: What ``plan_schema`` let pass.

    Raises:
        InputError: If one of them is not, naming it.
    """
    of = chosen_experiment(written["experiment"]).of
    chosen_budget(written["budget"], of.budgets.values())
    shared_setting(written["setting"], of)
    return Plan.from_json(written, of.arms.values(), of.task.unit)


def options_of(run: Run, plan: Plan) -> LoopOptions:
    """What is asked of the training of a run; a model is asked for nothing that it does not have."""
    shared = {name: value for name, value in plan.setting.items() if name not in run.arm.leaves}
    own = {"data": run.data, "learning_rate": run.learning_rate, "seed": run.seed, **run.arm.options}
    of = chosen_experiment(plan.experiment).of
    if of.after is not None and (needed := needed_run(run, of)) is not None:
        own[of.after.option] = of.after.relative(needed.place)
    return of.task.options_type.from_json({**shared, **own})


def needed_run(run: Run, of: Comparison) -> Run | None:
    """The run of another experiment that a run goes on from; None where it begins by itself."""
    if of.after is None or run.arm.after is None:
        return None
    before = chosen_experiment(of.after.experiment)
    return Run(before.data[0], before.learning_rates[0], before.of.arms[run.arm.after], run.seed)


def _needed_anywhere(of: Comparison) -> dict[str, str]:
    """The option that names what a run goes on from, of no run in particular."""
    return {} if of.after is None else {of.after.option: of.after.experiment}


def record_of(run: Run, plan: Plan, folder: Path) -> RunRecord | None:
    """What came of a run, if it has finished.

    Args:
        run: The run.
        plan: Of the experiment.
        folder: The run's folder.

    Returns:
        Its record; None where the training has not begun or not finished.

    Raises:
        InputError: If the folder holds another training.
    """
    if not (folder / RESULTS_FILE).exists():
        return None
    result, of = TrainResult.read(folder), chosen_experiment(plan.experiment).of
    expected = options_of(run, plan).resolved().to_json()
    found = result.options.resolved().to_json()
    if of.after is not None and (needed := expected.get(of.after.option)):
        # Where both experiments are is not the run's; which run of the other it goes on from is.
        there = Path(str(found.get(of.after.option))).parts
        found[of.after.option] = str(Path(*there[-len(Path(needed).parts) :]))
    if expected["precision"] == "auto":
        found["precision"] = "auto"
    if differing := differences(dict(sorted(found.items())), expected):
        raise InputError(
            f"{folder} holds another training than the plan's; they differ in {'; '.join(differing)}. Move that folder "
            "away, and the run is trained anew."
        )
    if not result.finished or result.headline is None:
        return None
    besides = (name for name in of.measured_besides if result.last(name) is not None)
    return RunRecord(
        data=run.data,
        learning_rate=run.learning_rate,
        arm=run.arm.name,
        seed=run.seed,
        headline=result.headline,
        parameters=result.parameters,
        seconds=result.train_seconds + result.test_seconds,
        per_second=result.per_second,
        machine=result.description["machine"],
        curves={name: _curve(result, name) for name in (*of.curves, *besides)},
    )


def _curve(result: TrainResult, name: str) -> tuple[float | None, ...]:
    return tuple(epoch.get(name) for epoch in result.epochs)
