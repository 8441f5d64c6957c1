"""Parameters as functions of indices read them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["cut", "head_row", "table"]

# Torch 2.6 has no such function yet.
_is_exporting: Callable[[], bool] = getattr(torch.compiler, "is_exporting", lambda: False)


def cut(parameter: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Entries ``start`` to ``start + length`` of a parameter along a dimension.

    A view of all entries is contiguous and one of some is not, so that a graph that is exported for any length would be
    made for some only: there it is a copy.
    """
    if _is_exporting():
        return parameter.index_select(dim, torch.arange(start, start + length, device=parameter.device))
    return parameter.narrow(dim, start, length)


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
