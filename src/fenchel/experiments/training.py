"""A run of an experiment as ``fenchel.train`` sees it: its options, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from fenchel.errors import InputError
from fenchel.experiments.budget import chosen_budget
from fenchel.experiments.data import Images
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.plan import Plan, Run
from fenchel.experiments.record import RunRecord
from fenchel.train.observer import TrainObserver
from fenchel.train.options import TrainOptions
from fenchel.train.result import RESULTS_FILE, TrainResult

__all__ = ["Trainer", "options_of", "plan_of", "record_of", "shared_setting"]

_OWN = frozenset({"data", "model", "extra_preference", "learning_rate", "seed"})
_OF_TRANSPORT = frozenset({"cost", "gamma", "alpha"})
_CURVES = ("train_loss", "test_loss", "test_accuracy")


class Trainer(Protocol):
    """``fenchel.train.train``, or what stands in for it."""

    def __call__(
        self,
        options: TrainOptions,
        directory: Path,
        *,
        resume: bool = False,
        observer: TrainObserver | None = None,
        device: str | None = None,
        data: Images | None = None,
        stop: Callable[[], bool] = ...,
    ) -> TrainResult:
        """Trains, and leaves ``results.json`` in the folder."""
        ...


def shared_setting(options: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that all runs share, with nothing left to a recipe.

    Args:
        options: Of ``TrainOptions``, by name; the rest are its defaults.

    Returns:
        All options that are not a run's own (data, model, extra preference, learning rate, seed).

    Raises:
        InputError: If an option is unknown, out of range or a run's own.

    Example:
        >>> setting = shared_setting({"epochs": 2})
        >>> setting["epochs"], setting["batch_size"], "seed" in setting
        (2, 128, False)
    """
    if own := sorted(_OWN & set(options)):
        raise InputError(
            f"{own[0]!r} is not shared by the runs of an experiment: it tells them apart. Leave it out."
        )
    given = TrainOptions.from_json({**options, "data": "any"})
    # Whether images may be mirrored depends on the data, and γ on the model, so both stay open if they were left so.
    resolved = {**given.resolved().to_json(), "flip": given.flip, "gamma": given.gamma}
    return {name: value for name, value in resolved.items() if name not in _OWN}


def plan_of(written: Mapping[str, Any]) -> Plan:
    """The plan that ``Plan.to_json`` wrote, of an experiment, a budget and a setting that there are.

    Args:
        written: What ``PLAN_SCHEMA`` let pass.

    Raises:
        InputError: If one of them is not, naming it.
    """
    chosen_experiment(written["experiment"])
    chosen_budget(written["budget"])
    shared_setting(written["setting"])
    return Plan.from_json(written)


def options_of(run: Run, setting: Mapping[str, Any]) -> TrainOptions:
    """What is asked of the training of a run; a model without transport is asked for none."""
    own = {
        name: value
        for name, value in setting.items()
        if run.arm.model == "ot-vit" or name not in _OF_TRANSPORT
    }
    return TrainOptions(
        **own,
        data=run.data,
        model=run.arm.model,
        extra_preference=run.arm.extra_preference,
        learning_rate=run.learning_rate,
        seed=run.seed,
    )


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
    result = TrainResult.read(folder)
    expected = options_of(run, plan.setting).resolved().to_json()
    found = result.options.resolved().to_json()
    if expected["precision"] == "auto":
        found["precision"] = "auto"
    if differing := [
        f"{name.replace('_', ' ')}: {found.get(name)!r} and {expected.get(name)!r}"
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    ]:
        raise InputError(
            f"{folder} holds another training than the plan's; they differ in {'; '.join(differing)}. Move that folder "
            "away, and the run is trained anew."
        )
    if not result.finished or result.test_accuracy is None:
        return None
    return RunRecord(
        data=run.data,
        learning_rate=run.learning_rate,
        arm=run.arm.name,
        seed=run.seed,
        test_accuracy=result.test_accuracy,
        parameters=result.parameters,
        seconds=result.train_seconds + result.test_seconds,
        images_per_second=result.images_per_second,
        machine=result.description["machine"],
        curves={name: tuple(epoch[name] for epoch in result.epochs) for name in _CURVES},
    )
