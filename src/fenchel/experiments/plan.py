"""The runs of an experiment: every data set, learning rate and arm with every seed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fenchel.arguments import checked
from fenchel.errors import InputError
from fenchel.experiments.arm import Arm, chosen_arms
from fenchel.experiments.data import DataDescription
from fenchel.runs.manifest import differences

__all__ = ["Plan", "Run"]


@dataclass(frozen=True)
class Run:
    """One training: an arm with a seed on a data set at a learning rate.

    Attributes:
        data: Name of the data set.
        learning_rate: The greatest of the schedule.
        arm: What is trained.
        seed: Of the weights, the examples' order and everything else that is drawn.
    """

    data: str
    learning_rate: float
    arm: Arm
    seed: int

    @property
    def place(self) -> Path:
        """The run's folder within the experiment's."""
        return Path(_as_folder(self.data), self.arm.name, f"lr-{self.learning_rate:g}", f"seed-{self.seed}")

    def __str__(self) -> str:
        return f"{self.data}, {self.arm.name}, learning rate {self.learning_rate:g}, seed {self.seed}"


@dataclass(frozen=True)
class Plan:
    """What is trained and compared.

    Attributes:
        experiment: Name of the experiment.
        budget: Name of the budget from which the setting was made.
        setting: Options of the training that all runs share, by name.
        data: Names of the data sets.
        known: All arms that the experiment has, in the order in which tables list them.
        arms: Names of those that are run.
        learning_rates: The learning rates.
        seeds: How many seeds, from 0.
        descriptions: Of the data sets that have been read.

    Raises:
        InputError: If the arms, learning rates or seeds cannot be used, or two data sets would share a folder.
    """

    experiment: str
    budget: str
    setting: Mapping[str, Any]
    data: tuple[str, ...]
    known: tuple[Arm, ...] = field(repr=False)
    arms: tuple[str, ...]
    learning_rates: tuple[float, ...]
    seeds: int = 3
    descriptions: tuple[DataDescription, ...] = ()
    _arms: tuple[Arm, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_arms", chosen_arms(self.arms, self.known))
        object.__setattr__(self, "arms", tuple(arm.name for arm in self._arms))
        object.__setattr__(self, "learning_rates", _checked_rates(self.learning_rates))
        object.__setattr__(self, "seeds", checked("seeds", self.seeds))
        _check_folders(self.data)

    @property
    def chosen(self) -> tuple[Arm, ...]:
        """The arms that are run."""
        return self._arms

    def runs(self) -> Iterator[Run]:
        """All runs; the arms of a seed follow each other, so that an interrupted experiment has pairs to compare."""
        for seed in range(self.seeds):
            for data in self.data:
                for rate in self.learning_rates:
                    for arm in self._arms:
                        yield Run(data, rate, arm, seed)

    def joined(self, other: Plan) -> Plan:
        """The plan with the other's arms, data sets, learning rates and seeds besides its own."""
        described = {one.name: one for one in (*other.descriptions, *self.descriptions)}
        data = tuple(dict.fromkeys((*self.data, *other.data)))
        return replace(
            self,
            data=data,
            descriptions=tuple(described[name] for name in data if name in described),
            arms=(*self.arms, *other.arms),
            learning_rates=tuple(sorted({*self.learning_rates, *other.learning_rates}, reverse=True)),
            seeds=max(self.seeds, other.seeds),
        )

    def differences(self, other: Plan) -> list[str]:
        """How the runs of two plans differ where they would have to be the same, one phrase each.

        More arms, data sets, learning rates or seeds are no difference: their runs stand beside the others.
        """
        mine, theirs = (
            {"experiment": plan.experiment, **dict(sorted(plan.setting.items()))} for plan in (self, other)
        )
        found = differences(mine, theirs)
        if found and self.budget != other.budget:
            found = [*differences({"budget": self.budget}, {"budget": other.budget}), *found]
        found += [
            f"files of {mine.name}: {mine} and {theirs}"
            for mine in self.descriptions
            for theirs in other.descriptions
            if mine.name == theirs.name and mine != theirs
        ]
        return found

    def to_json(self) -> dict[str, Any]:
        """The plan as JSON."""
        return {
            "experiment": self.experiment,
            "budget": self.budget,
            "setting": dict(self.setting),
            "data": list(self.data),
            "descriptions": [one.to_json() for one in self.descriptions],
            "arms": list(self.arms),
            "learning_rates": list(self.learning_rates),
            "seeds": self.seeds,
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any], known: Iterable[Arm], unit: str) -> Plan:
        """The plan that ``to_json`` wrote.

        Args:
            written: What it wrote.
            known: All arms that the experiment has.
            unit: What the examples of its task are.
        """
        return cls(
            experiment=written["experiment"],
            budget=written["budget"],
            setting=dict(written["setting"]),
            data=tuple(written["data"]),
            known=tuple(known),
            descriptions=tuple(DataDescription.from_json(one, unit) for one in written["descriptions"]),
            arms=tuple(written["arms"]),
            learning_rates=tuple(written["learning_rates"]),
            seeds=written["seeds"],
        )


def _as_folder(data: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", data).strip("-.") or "data"


def _check_folders(names: Sequence[str]) -> None:
    if not names:
        raise InputError("data is empty; expected names of data sets, such as fashion-mnist,cifar10.")
    places: dict[str, str] = {}
    for name in names:
        other = places.setdefault(_as_folder(name), name)
        if other != name:
            raise InputError(
                f"data names {other!r} and {name!r}, whose results would share the folder {_as_folder(name)}. Give "
                "them different folders (--out)."
            )


def _checked_rates(rates: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted(set(checked("learning_rates", rates)), reverse=True))
