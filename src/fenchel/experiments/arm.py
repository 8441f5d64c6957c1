"""The arms of an experiment: one model each, trained on the same examples in the same order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fenchel.errors import InputError

__all__ = ["Arm", "arms_by_name", "chosen_arms"]


@dataclass(frozen=True)
class Arm:
    """One model of a comparison.

    Attributes:
        name: As users type it and as its folder is called.
        label: As tables and figures show it.
        options: What tells its training from those of the other arms.
        reading: What that means, in words.
        leaves: Options of the setting that its model does not take, and that are left out of its training.
        after: The arm of another experiment whose run of the same seed is trained first, where its experiment goes on
            from another; None where it begins by itself.
        against: The arm that it is compared with, where that is not the baseline of all; its own name for none.
    """

    name: str
    label: str
    options: Mapping[str, Any]
    reading: str
    leaves: frozenset[str] = frozenset()
    after: str | None = None
    against: str | None = None


def arms_by_name(*arms: Arm) -> dict[str, Arm]:
    """Arms as an experiment has them."""
    return {arm.name: arm for arm in arms}


def chosen_arms(names: Sequence[str], known: Iterable[Arm]) -> tuple[Arm, ...]:
    """Looks arms up.

    Args:
        names: Of some of them.
        known: All arms, in the order in which tables list them.

    Returns:
        The arms, each once, in their order.

    Raises:
        InputError: If there are none, or one is unknown.

    Example:
        >>> arms = [Arm("a", "A", {}, "the first"), Arm("b", "B", {}, "the second")]
        >>> [arm.label for arm in chosen_arms(["b", "a"], arms)]
        ['A', 'B']
    """
    known = tuple(known)
    there = [arm.name for arm in known]
    unknown = [name for name in names if name not in there]
    if unknown or not names:
        got = repr(unknown[0]) if unknown else "empty"
        raise InputError(f"arms is {got}; expected some of {', '.join(there)}, separated by commas.")
    return tuple(arm for arm in known if arm.name in names)
