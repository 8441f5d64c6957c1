"""What may be asked of a swap beyond the table of arguments: estimators and controls that tell something."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.arguments import checked
from fenchel.errors import InputError

__all__ = ["DEFAULT_ALPHAS", "DEFAULT_ESTIMATORS", "checked_alphas", "checked_estimators"]

DEFAULT_ESTIMATORS = ("second_order", "exact")
DEFAULT_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)


def checked_estimators(estimators: Sequence[str]) -> tuple[str, ...]:
    """The estimators to swap in, each once.

    Raises:
        InputError: If there are none, or one is unknown or the model's own.
    """
    if isinstance(estimators, list | tuple) and "first_order" in estimators:
        raise InputError(
            "estimators names first_order, which is the model itself. It is measured anyway, and at other α as the "
            f"control; give some of {', '.join(DEFAULT_ESTIMATORS)}."
        )
    return checked("estimators", estimators)


def checked_alphas(alphas: Sequence[float]) -> tuple[float, ...]:
    """The α of the controls in order, each once.

    Raises:
        InputError: If there are none but 1, or one is not a finite number above 0.
    """
    found = tuple(sorted(set(checked("alphas", alphas))))
    if not set(found) - {1.0}:
        raise InputError(
            f"alphas is {list(found)}; expected at least one that is not 1. Without a control nothing tells a better "
            "estimator from a softer attention."
        )
    return found
