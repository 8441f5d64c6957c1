"""How much is trained: the budgets, in one place."""

from __future__ import annotations

from dataclasses import dataclass

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


BUDGETS: dict[str, Budget] = {
    budget.name: budget
    for budget in (
        Budget(
            "smoke", 2_000, 1_000, 2, "minutes on two CPU cores: shows that everything works, and no more"
        ),
        Budget("desk", 12_000, None, 5, "an hour or two on two CPU cores: a first comparison"),
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
