"""What a training multiplies in."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fenchel.solver.coordinates import multiplies_fast_in_bfloat16

__all__ = ["Predicted", "autocast", "chosen_precision", "in_float32"]

Predicted = Tensor | Mapping[str, Tensor]
"""What a model says of a batch: a tensor, or several by name."""


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


def in_float32(predicted: Predicted) -> Predicted:
    """What a model said, its floats in float32, in which losses are computed.

    Example:
        >>> in_float32({"scores": torch.ones(2, dtype=torch.bfloat16), "words": torch.tensor([3])})
        {'scores': tensor([1., 1.]), 'words': tensor([3])}
    """
    if isinstance(predicted, Tensor):
        return predicted.float() if predicted.is_floating_point() else predicted
    return {name: value.float() if value.is_floating_point() else value for name, value in predicted.items()}
