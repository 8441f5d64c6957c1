"""What a training multiplies in."""

from __future__ import annotations

import torch

from fenchel.solver.coordinates import multiplies_fast_in_bfloat16

__all__ = ["autocast", "chosen_precision"]


def chosen_precision(precision: str, device: torch.device) -> str:
    """``float32`` or ``bfloat16``: what was asked for, or for ``auto`` what the device is fast in.

    Args:
        precision: ``auto``, ``float32`` or ``bfloat16``.
        device: Where the training runs.

    Example:
        >>> chosen_precision("float32", torch.device("cpu"))
        'float32'
    """
    if precision != "auto":
        return precision
    return "bfloat16" if multiplies_fast_in_bfloat16(device) else "float32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """A context in which matrices are multiplied in that precision; weights stay as they are.

    Args:
        precision: ``float32`` or ``bfloat16``.
        device: Where the training runs.
    """
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bfloat16")
