"""The rule for what a model computes in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fenchel.arguments.rule import AbstractRule, Unfit

__all__ = ["Dtype"]

_NAMES = ("auto", "bfloat16", "float16", "float32", "float64")


@dataclass(frozen=True)
class Dtype(AbstractRule):
    """A dtype of torch that attention computes in, or its name; ``auto`` for what there is.

    Example:
        >>> import torch
        >>> Dtype().check("dtype", torch.float16)
        'float16'
        >>> Dtype().check("dtype", torch.int64)
        Traceback (most recent call last):
        fenchel.errors.InputError: dtype is torch.int64; expected one of auto, bfloat16, float16, float32, float64.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """What can be given by name."""
        return _NAMES

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"one of {', '.join(_NAMES)}"

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        if isinstance(value, str) and value in _NAMES:
            return value
        import torch

        if not isinstance(value, str | torch.dtype):
            raise Unfit
        name = str(value).removeprefix("torch.")
        if name not in _NAMES:
            raise Unfit(f"is {value}" if isinstance(value, torch.dtype) else "")
        return name
