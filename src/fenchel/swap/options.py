"""What may be asked of a swap: checked once, at the door, with the names that the user typed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

from fenchel.errors import InputError

__all__ = ["DEFAULT_ALPHAS", "DEFAULT_ESTIMATORS", "checked_alphas", "checked_estimators", "checked_numbers"]

DEFAULT_ESTIMATORS = ("second_order", "exact")
DEFAULT_ALPHAS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3)


def checked_estimators(estimators: Sequence[str]) -> tuple[str, ...]:
    """The estimators to swap in, each once.

    Raises:
        InputError: If there are none, or one is unknown or the model's own.
    """
    if isinstance(estimators, str) or not estimators:
        raise InputError(f"estimators is {estimators!r}; expected some of {', '.join(DEFAULT_ESTIMATORS)}.")
    for estimator in estimators:
        if estimator == "first_order":
            raise InputError(
                "estimators names first_order, which is the model itself. It is measured anyway, and at other α as the "
                f"control; give some of {', '.join(DEFAULT_ESTIMATORS)}."
            )
        if estimator not in DEFAULT_ESTIMATORS:
            raise InputError(
                f"estimators names {estimator!r}; expected some of {', '.join(DEFAULT_ESTIMATORS)}."
            )
    return tuple(dict.fromkeys(estimators))


def checked_alphas(alphas: Sequence[float]) -> tuple[float, ...]:
    """The α of the controls in order, each once.

    Raises:
        InputError: If there are none but 1, or one is not a finite number above 0.
    """
    wrong = [alpha for alpha in alphas if not _is_number(alpha) or alpha <= 0]
    if wrong:
        raise InputError(
            f"alphas holds {wrong[0]!r}; expected finite numbers above 0, such as 0.5, 0.8, 1.2."
        )
    found = tuple(sorted({float(alpha) for alpha in alphas}))
    if not set(found) - {1.0}:
        raise InputError(
            f"alphas is {list(found)}; expected at least one that is not 1. Without a control nothing tells a better "
            "estimator from a softer attention."
        )
    return found


def checked_numbers(
    *, mask_probability: float, bootstrap: int, tol: float | None, sample_pairs: int, max_pairs: int | None
) -> None:
    """Refuse numbers that are out of range.

    Raises:
        InputError: Naming the one that is.
    """
    if not _is_number(mask_probability) or not 0 < mask_probability < 1:
        raise InputError(
            f"mask probability is {mask_probability!r}; it must be a number above 0 and below 1."
        )
    if isinstance(bootstrap, bool) or not isinstance(bootstrap, int) or bootstrap < 100:
        raise InputError(f"bootstrap is {bootstrap!r}; it must be a whole number of resamples, at least 100.")
    if tol is not None and (not _is_number(tol) or not 0 < tol < 1):
        raise InputError(f"tol is {tol!r}; it must be a number above 0 and below 1, such as 1e-4.")
    if sample_pairs < 3:
        raise InputError(f"sample pairs is {sample_pairs}; a rank correlation needs at least 3.")
    if max_pairs is not None and max_pairs < 3:
        raise InputError(f"max pairs is {max_pairs}; a rank correlation needs at least 3.")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
