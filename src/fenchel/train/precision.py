"""What a training multiplies in."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fenchel.errors import InputError
from fenchel.solver.coordinates import multiplies_fast_in_bfloat16

__all__ = [
    "Predicted",
    "autocast",
    "check_precision",
    "chosen_precision",
    "has_bfloat16_lstm",
    "in_float32",
]

Predicted = Tensor | Mapping[str, Tensor]
"""What a model says of a batch: a tensor, or several by name."""


def chosen_precision(precision: str, device: torch.device) -> str:
    """``float32`` or ``bfloat16``: what was asked for, or for ``auto`` what the device is fast in and has LSTMs for.

    Args:
        precision: ``auto``, ``float32`` or ``bfloat16``.
        device: Where the training runs.

    Example:
        >>> chosen_precision("float32", torch.device("cpu"))
        'float32'
    """
    if precision != "auto":
        return precision
    fast = multiplies_fast_in_bfloat16(device) and has_bfloat16_lstm(device)
    return "bfloat16" if fast else "float32"


@functools.cache
def has_bfloat16_lstm(device: torch.device) -> bool:
    """Whether torch runs an LSTM and its backward pass on a device under autocast to bfloat16.

    Which processors do is oneDNN's matter (those of x86 need AVX-512), so one is run, the first time that it is asked.

    Args:
        device: Where.
    """
    with torch.random.fork_rng(devices=[]):
        layer = nn.LSTM(2, 2).to(device)
    try:
        with torch.enable_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
            states = layer(torch.zeros(1, 1, 2, device=device))[0]
        states.float().sum().backward()
    except RuntimeError:
        return False
    return True


def check_precision(precision: str, model: nn.Module, device: torch.device) -> None:
    """Refuse to train a model in bfloat16 where it has LSTMs and the device has none in bfloat16.

    Args:
        precision: ``float32`` or ``bfloat16``.
        model: What is trained.
        device: Where.

    Raises:
        InputError: If torch does not run an LSTM in bfloat16 there.
    """
    if precision != "bfloat16" or not any(isinstance(module, nn.LSTM) for module in model.modules()):
        return
    if not has_bfloat16_lstm(device):
        raise InputError(
            f"precision is bfloat16, but torch has no bfloat16 LSTM on this machine's {device}, and "
            f"{type(model).__name__} is made of LSTMs; expected precision float32 or auto (--precision float32)."
        )


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
