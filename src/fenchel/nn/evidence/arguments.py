"""What evidence modules are called with, checked once."""

from __future__ import annotations

from torch import Tensor

from fenchel.arguments.tensor import check_tensor
from fenchel.errors import ProblemError

__all__ = ["check_heads", "check_pair", "template_scale"]


def template_scale(scale: float | None, templates: Tensor) -> float:
    """A scale that was given, or 1/√d of templates (..., d)."""
    return templates.shape[-1] ** -0.5 if scale is None else scale


def check_pair(query: Tensor, key: Tensor) -> None:
    """Both have the layout of attention, and at least one dimension.

    Raises:
        ProblemError: Naming the one that has not.
    """
    for name, tensor in (("query", query), ("key", key)):
        check_tensor(name, tensor, "(batch, heads, tokens, dim)", dims=4)
        if tensor.shape[-1] == 0:
            raise ProblemError(
                f"{name} has shape {tuple(tensor.shape)}; expected at least one dimension, the last"
            )


def check_heads(owner: str, heads: int, query: Tensor) -> None:
    """A module of one head serves any number of them; of more, that number.

    Raises:
        ProblemError: Naming the module, its heads and those of the query.
    """
    if heads not in (1, query.shape[1]):
        raise ProblemError(
            f"{owner} was built for {heads} heads, but query has {query.shape[1]} (shape {tuple(query.shape)}); "
            f"build it with heads={query.shape[1]}, or heads=1 to share it."
        )
