"""How much is trained: the budgets, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fenchel.errors import InputError

__all__ = ["BUDGETS", "Budget", "chosen_budget"]


@dataclass(frozen=True)
class Budget:
    """How much every run of an experiment may see.

    Attributes:
        name: As users type it.
        train_images: Training images, an equal number of each class; None for all.
        test_images: Test images, likewise.
        epochs: Times that the training images are gone through.
        purpose: What it is for.
    """

    name: str
    train_images: int | None
    test_images: int | None
    epochs: int
    purpose: str

    def named(self, setting: Mapping[str, Any]) -> str:
        """The budget's name, and in what a setting that was made from it departs from it.

        Args:
            setting: ``train_images``, ``test_images`` and ``epochs`` as they are run.

        Example:
            >>> BUDGETS["smoke"].named({"train_images": 2000, "test_images": 1000, "epochs": 9})
            'smoke with epochs 9'
        """
        changed = [
            f"{key.replace('_', ' ')} {'all' if setting[key] is None else setting[key]}"
            for key in ("train_images", "test_images", "epochs")
            if setting[key] != getattr(self, key)
        ]
        return self.name + (f" with {', '.join(changed)}" if changed else "")


BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke", 2_000, 1_000, 2, "minutes on two CPU cores: shows that everything works, and no more"
        ),
        Budget("desk", 10_000, 5_000, 4, "five arms in an hour or so on two CPU cores: a first comparison"),
        Budget("paper", None, None, 100, "all images, for a GPU"),
    )
}
"""All budgets by name, the smallest first."""


def chosen_budget(name: str) -> Budget:
    """Looks a budget up.

    Args:
        name: One of ``BUDGETS``.

    Returns:
        The budget.

    Raises:
        InputError: If there is none of that name.

    Example:
        >>> chosen_budget("smoke").epochs
        2
    """
    if name not in BUDGETS:
        known = "; ".join(f"{budget.name} ({budget.purpose})" for budget in BUDGETS.values())
        raise InputError(f"budget is {name!r}; expected one of: {known}.")
    return BUDGETS[name]
