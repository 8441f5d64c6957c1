"""Functions that a compiler leaves alone, without loading the compiler where nothing is compiled."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar, cast

import torch

__all__ = ["untraced"]

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
