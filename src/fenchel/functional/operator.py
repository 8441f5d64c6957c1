"""Operators that autograd, ``torch.compile`` and ``torch.func`` all take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.solver.implicit import is_transformed

__all__ = ["with_gradient"]


def _remember_nothing(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """For a gradient that needs nothing."""


def with_gradient(
    operator: Any,
    backward: Callable[..., Any],
    remember: Callable[[Any, tuple[Any, ...], Any], None] = _remember_nothing,
) -> Callable[..., Any]:
    """An operator with its gradient, to be called in its place.

    The gradient is registered for it, so that it is one node of a compiled graph. ``torch.func`` cannot take what is
    registered: inside of its transforms the operator is an ``autograd.Function`` of the same two functions.
    ``torch.vmap`` maps it call by call: sequences, heads and queries are dimensions of a call already, and what vmap
    adds is convenience, not speed.

    Args:
        operator: Made by ``torch.library.custom_op``.
        backward: (ctx, *gradients of the outputs) -> a gradient of every input, or None.
        remember: (ctx, inputs, output) keeps what the gradient needs.
    """
    operator.register_autograd(backward, setup_context=remember)
    operator.register_vmap(_call_by_call(operator))

    class Differentiable(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(*inputs: Any) -> Any:
            return operator(*inputs)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            remember(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return backward(ctx, *gradients)

    def call(*inputs: Any) -> Any:
        return Differentiable.apply(*inputs) if is_transformed() else operator(*inputs)

    return call


def _call_by_call(operator: Any) -> Callable[..., Any]:
    def mapped(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> Any:
        found = [
            operator(
                *(x if dim is None else x.select(dim, index) for x, dim in zip(inputs, in_dims, strict=True))
            )
            for index in range(info.batch_size)
        ]
        if isinstance(found[0], Tensor):
            return torch.stack(found), 0
        return tuple(map(torch.stack, zip(*found, strict=True))), (0,) * len(found[0])

    return mapped
