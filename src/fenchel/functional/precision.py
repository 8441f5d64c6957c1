"""In which dtype an op computes, whatever dtype it is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.arguments.tensor import is_under_autocast

__all__ = ["compute_dtype", "mask_dtype", "under_autocast", "unit_of_products", "without_autocast"]


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
