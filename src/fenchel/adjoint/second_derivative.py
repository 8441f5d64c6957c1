"""Saying by name that a second derivative is not there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import ProblemError

__all__ = ["differentiated_once", "second_derivative_of"]


def second_derivative_of(what: str) -> Callable[..., Any]:
    """The backward pass of a function that has none: it raises, saying of what the second derivative was wanted."""

    def refuse(ctx: Any, *gradients: Any) -> Any:
        raise ProblemError(
            f"the second derivative of {what} is not implemented; fenchel.functional.reference is differentiable any "
            "number of times"
        )

    return refuse


def differentiated_once(gradient: Callable[..., Any], of: str) -> Callable[..., Any]:
    """A function that computes gradients, as one whose own derivative is refused.

    ``torch.autograd.function.once_differentiable`` would do for autograd, but not for ``torch.func``, which records
    every backward pass as if a second were to follow.

    Args:
        gradient: Returns tensors. What it depends on is named by its arguments: those that are tensors.
        of: What a second derivative would be of, for the error.

    Example:
        >>> square = differentiated_once(lambda x: x * x, "a square")
        >>> square(torch.ones(2, requires_grad=True)).sum().backward()
        Traceback (most recent call last):
        fenchel.errors.ProblemError: the second derivative of a square is not implemented; ...
    """

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
            return tuple(tensor.clone() for tensor in tensors[:count])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            """Nothing has to be kept in order to refuse."""

    Refusing.backward = staticmethod(second_derivative_of(of))

    def call(*inputs: Any) -> Any:
        with torch.no_grad():
            found = gradient(*inputs)
        if not torch.is_grad_enabled():
            return found
        several = (found,) if isinstance(found, Tensor) else tuple(found)
        named = Refusing.apply(len(several), *several, *(x for x in inputs if isinstance(x, Tensor)))
        return named[0] if isinstance(found, Tensor) else named

    return call
