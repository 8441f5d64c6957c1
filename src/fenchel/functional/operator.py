"""Ops and torch: operators with gradients, dtypes and autocast, what is recomputed and what is never compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fenchel.tensors import is_transformed, is_under_autocast

__all__ = [
    "compute_dtype",
    "mask_dtype",
    "recomputed",
    "under_autocast",
    "unit_of_products",
    "untraced",
    "with_gradient",
    "without_autocast",
]


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


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for float32 and the half types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def mask_dtype(mask: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which torch's kernels take a floating mask beside queries of ``dtype``.

    On the CPU they add float32 to scores of half types, which keeps the digits of the mask; elsewhere dtypes have to be
    the same.
    """
    half = dtype in (torch.float16, torch.bfloat16)
    on_cpu = mask.device.type == "cpu"
    return torch.float32 if half and on_cpu and mask.dtype != dtype else dtype


def under_autocast(tensor: Tensor) -> Tensor:
    """The tensor as autocast would hand it to torch's own attention."""
    if tensor.dtype == torch.float64 or not is_under_autocast(tensor):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def without_autocast(tensor: Tensor) -> torch.autocast:
    """A context in which casts are ours: what is computed in float32 here must not be cast to half."""
    # The meta device computes nothing and has no autocast of its own.
    return torch.autocast("cpu" if tensor.is_meta else tensor.device.type, enabled=False)


_UNITS = {"tf32": 2.0**-11, "bf16": 2.0**-8}
"""Largest relative error of rounding a factor to what fast products of float32 take."""


def unit_of_products(dtype: torch.dtype, device: str) -> float:
    """Largest relative error of a factor in matrix products, as torch is set up when this is called or compiled.

    Args:
        dtype: Of the factors.
        device: Its type.
    """
    unit = torch.finfo(dtype).eps / 2
    if dtype != torch.float32:
        return unit
    backends: Any = torch.backends
    backend = backends.mkldnn.matmul if device == "cpu" else backends.cuda.matmul
    return max(unit, *(_UNITS.get(each.fp32_precision, 0.0) for each in (backend, backends)))


# What torch.compiler.assume_constant_result does, which loads the compiler.
unit_of_products._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


Arguments = ParamSpec("Arguments")

Result = TypeVar("Result")

COMPILER = "torch._dynamo"


def untraced(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`torch.compiler.disable` that costs nothing until something is compiled.

    torch's own decorator loads the whole compiler and sympy when a module that uses it is imported, about as long as
    torch itself takes.

    Args:
        function: What is called as it is, by compiled code too: an iteration that looks at values, say.

    Returns:
        The same function.

    Example:
        >>> @untraced
        ... def halved(x: int) -> int:
        ...     return x // 2
        >>> halved(8)
        4
    """
    made: list[Callable[Arguments, Result]] = []

    @wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        if COMPILER not in sys.modules:
            return function(*args, **kwargs)
        # Who compiles has loaded the compiler, and then what is called from here must not be compiled either.
        if not made:
            made.append(cast("Callable[Arguments, Result]", torch.compiler.disable(function)))
        return made[0](*args, **kwargs)

    # What the compiler looks for on a function before it traces a call of it.
    call._torchdynamo_disable = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    call._torchdynamo_disable_recursive = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return call


def recomputed(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """What a function answers, without keeping what it computes on the way where gradients are recorded.

    ``torch.func`` has no such thing: inside of its transforms everything is kept.
    """
    if not torch.is_grad_enabled() or is_transformed():
        return function(*given)
    found = checkpoint(function, *given, use_reentrant=False)
    assert isinstance(found, Tensor)  # noqa: S101 -- what the function gives
    return found
