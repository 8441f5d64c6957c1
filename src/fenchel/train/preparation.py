"""What a training refuses before its first step and before any file: data, batches and sizes that do not fit."""

from __future__ import annotations

import os
from typing import Any

import torch

from fenchel.errors import InputError
from fenchel.train.options import LoopOptions
from fenchel.train.task import AnyTask
from fenchel.train.workers import Workers

__all__ = ["prepared"]

_BYTES_PER_PARAMETER = 16
"""The weight, its gradient, and two moments of AdamW, in float32."""

_SIZES = ("width", "depth", "mlp_width")


def prepared(kind: type[AnyTask], options: LoopOptions, data: Any, workers: Workers) -> AnyTask:
    """A task whose training can begin.

    Args:
        kind: The task.
        options: Resolved.
        data: All there are.
        workers: The processes.

    Raises:
        InputError: If the data do not fit each other, the batches or the model, or the model not the memory.
    """
    task = kind(options, data, workers)
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in task.model().parameters())
    needed, there = _BYTES_PER_PARAMETER * parameters, _memory(workers.device)
    if needed > there:
        sizes = [
            f"{name.replace('_', ' ')} {getattr(options, name)}" for name in _SIZES if hasattr(options, name)
        ]
        named = f" of {', '.join(sizes)}" if sizes else ""
        raise InputError(
            f"a model{named} has {parameters:,} parameters, whose training takes {needed / 2**30:,.1f} GB before the "
            f"first step; {workers.device} has {there / 2**30:,.1f} GB. Lower them."
        )
    return task


def _memory(device: torch.device) -> int:
    """Bytes of memory of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
