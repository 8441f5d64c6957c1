"""How much is trained, under one name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fenchel.errors import InputError

__all__ = ["Budget", "budgets_by_name", "chosen_budget"]


@dataclass(frozen=True)
class Budget:
    """How much every run of an experiment may see.

    Attributes:
        name: As users type it.
        options: Options of the training, by name: how many examples, None for all, and how many epochs.
        purpose: What it is for.
    """

    name: str
    options: Mapping[str, Any]
    purpose: str

    def named(self, setting: Mapping[str, Any]) -> str:
        """The budget's name, and in what a setting that was made from it departs from it.

        Args:
            setting: The options as they are run.

        Example:
            >>> Budget("smoke", {"train_images": 2000, "epochs": 2}, "").named({"train_images": 2000, "epochs": 9})
            'smoke with epochs 9'
        """
        changed = [
            f"{key.replace('_', ' ')} {'all' if setting[key] is None else setting[key]}"
            for key, value in self.options.items()
            if setting[key] != value
        ]
        return self.name + (f" with {', '.join(changed)}" if changed else "")


def budgets_by_name(*budgets: Budget) -> dict[str, Budget]:
    """Budgets as an experiment has them, the smallest first."""
    return {budget.name: budget for budget in budgets}


def chosen_budget(name: str, known: Iterable[Budget]) -> Budget:
    """Looks a budget up.

    Args:
        name: Of one of them.
        known: All budgets.

    Returns:
        The budget.

    Raises:
        InputError: If there is none of that name.

    Example:
        >>> chosen_budget("smoke", [Budget("smoke", {"epochs": 2}, "to see that it works")]).options["epochs"]
        2
    """
    known = tuple(known)
    for budget in known:
        if budget.name == name:
            return budget
    purposes = "; ".join(f"{budget.name} ({budget.purpose})" for budget in known)
    raise InputError(f"budget is {name!r}; expected one of: {purposes}.")
