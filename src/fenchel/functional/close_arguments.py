"""A closeness of attention, checked: that it has weights on the keys, fits the call, and offers the estimator."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import broadcasts_to, check_device, check_not_mapped
from fenchel.closeness import KL, AbstractCloseness, OptimalTransport, Tsallis
from fenchel.errors import ProblemError

__all__ = ["check_kind", "checked_closeness", "closeness_of_heads", "closeness_on", "is_softmax"]


def is_softmax(closeness: AbstractCloseness | None) -> bool:
    """Whether weights are a softmax, which is what attention is when nothing else is said."""
    return closeness is None or isinstance(closeness, KL)


def check_kind(closeness: Any, estimator: str) -> None:
    """Refuse what is no closeness of attention, or has no such estimator.

    Raises:
        ProblemError: Naming what was given.
    """
    if closeness is None:
        return
    if not isinstance(closeness, AbstractCloseness):
        expected = "one such as fenchel.Tsallis(1.5), or None for softmax"
        if isinstance(closeness, type):
            expected = f"an object of it, such as fenchel.{closeness.__name__}(...)"
        raise ProblemError(f"closeness is {shown(closeness)}; expected {expected}")
    if isinstance(closeness, OptimalTransport):
        raise ProblemError(
            "closeness is an OptimalTransport, whose weights reach further than the keys; use "
            "fenchel.functional.transport_attention or fenchel.nn.TransportAttention"
        )
    if estimator != "first_order" and not closeness.curved:
        raise ProblemError(
            f"closeness is {closeness!r}, whose weights jump, so that there is no {estimator!r} estimate; expected "
            "estimator='first_order', or a closeness with a small temperature, such as fenchel.Tsallis(2, "
            "temperature=0.01)"
        )


def checked_closeness(
    closeness: AbstractCloseness | None, estimator: str, query: Tensor
) -> AbstractCloseness | None:
    """The closeness in the dtype that a call computes in, or None where that is softmax attention.

    Args:
        closeness: What was given.
        estimator: Of the call.
        query: (B, H, m, d).

    Raises:
        ProblemError: If it is none, has no such estimator, or has numbers of other heads or queries.
    """
    check_kind(closeness, estimator)
    if closeness is None or is_softmax(closeness):
        return None
    if estimator != "first_order":
        check_not_mapped(f"{estimator} attention under {type(closeness).__name__}", query)
    lead, name = tuple(query.shape[:3]), type(closeness).__name__
    for argument, shape in closeness.query_shapes().items():
        if not broadcasts_to(shape, lead):
            raise ProblemError(
                f"{argument} of {name} has shape {tuple(shape)}; expected one that broadcasts to (batch, heads, "
                f"queries) = {lead}: one a head has shape ({lead[1]}, 1)"
            )
        own = getattr(closeness, argument, None)
        if isinstance(own, Tensor):
            check_device(f"{argument} of {name}", own, query.device)
    return closeness.to(torch.float64 if query.dtype == torch.float64 else torch.float32)


def closeness_on(closeness: AbstractCloseness, device: torch.device) -> AbstractCloseness:
    """The closeness with the numbers of its own on a device, for a layer that was moved there."""
    if not isinstance(closeness, Tsallis):
        return closeness
    own = (closeness.order, closeness.temperature)
    if all(not isinstance(part, Tensor) or part.device == device for part in own):
        return closeness
    order, temperature = (part.to(device) if isinstance(part, Tensor) else part for part in own)
    return Tsallis(order, closeness.relative, temperature)


def closeness_of_heads(closeness: AbstractCloseness, heads: Tensor) -> AbstractCloseness:
    """The closeness of some heads, by their indices from 0, where it has numbers of its own for each."""

    def chosen(own: Any) -> Any:
        several = isinstance(own, Tensor) and own.dim() > 1 and own.shape[-2] > 1
        return own.index_select(-2, heads.to(own.device)) if several else own

    if isinstance(closeness, Tsallis):
        # Built, not copied: with one number for all rows it offers a faster way.
        return Tsallis(chosen(closeness.order), closeness.relative, chosen(closeness.temperature))
    part = copy.copy(closeness)
    for argument in closeness.query_shapes():
        setattr(part, argument, chosen(getattr(closeness, argument, None)))
    return part
