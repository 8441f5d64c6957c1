"""Parameters as functions of indices read them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["head_row", "table"]


def table(parameter: Tensor) -> Tensor:
    """A parameter that a function of indices may read: at least float32, and a tensor of its own.

    A fused kernel refuses to read one tensor that needs a gradient twice, as the product of a preference with itself
    would, and it adds up gradients in the dtype of the table.
    """
    precise = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
    return precise.clone() if precise is parameter and parameter.requires_grad else precise


def head_row(h: Tensor, heads: int) -> Tensor:
    """The row of a table of ``heads`` rows that head h reads: its own, or the only one."""
    return h if heads > 1 else torch.zeros_like(h)
