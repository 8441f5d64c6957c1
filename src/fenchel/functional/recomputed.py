"""A part of a computation whose arrays the backward pass makes again instead of keeping them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fenchel.solver.implicit import is_transformed

__all__ = ["recomputed"]


def recomputed(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """What a function answers, without keeping what it computes on the way where gradients are recorded.

    ``torch.func`` has no such thing: inside of its transforms everything is kept.
    """
    if not torch.is_grad_enabled() or is_transformed():
        return function(*given)
    found = checkpoint(function, *given, use_reentrant=False)
    assert isinstance(found, Tensor)  # noqa: S101 -- what the function gives
    return found
