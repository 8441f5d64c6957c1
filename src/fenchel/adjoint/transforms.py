"""Whether functions are being transformed by ``torch.func``, which asks more of a gradient than autograd does."""

from __future__ import annotations

import torch

__all__ = ["is_transformed"]


def is_transformed() -> bool:
    """Whether this runs inside of ``torch.func.grad``, ``vmap`` or another of their kind, uncompiled."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()
