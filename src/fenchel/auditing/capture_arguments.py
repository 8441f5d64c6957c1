"""What every capture is built and called with, checked alike for models of transformers and of ``fenchel.nn``."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping

from torch import Tensor, nn

from fenchel.errors import InputError, ModelError
from fenchel.nn.inference import AttendingLayer

__all__ = ["check_all_attend", "check_capture", "check_evaluating", "check_names"]


def check_all_attend(model: nn.Module) -> None:
    """Check that a model with attention layers of ``fenchel.nn`` has none beside them that would be missed.

    Raises:
        ModelError: Naming the first.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and not isinstance(module, AttendingLayer):
            raise ModelError(
                f"{name} of {type(model).__name__} is a torch.nn.MultiheadAttention, which is not seen, so its heads "
                "would be missing. Put fenchel.nn.MultiheadAttention.from_torch(layer) in its place: it computes the "
                "same"
            )


def check_capture(space: str, layers: Collection[int] | None) -> None:
    """Check what a capture is built with.

    Raises:
        InputError: If ``space`` or ``layers`` is none.
    """
    if space not in ("input", "key"):
        raise InputError(f"space is {space!r}; expected 'input' or 'key'")
    if layers is not None and (not layers or any(not isinstance(n, int) or n < 1 for n in layers)):
        raise InputError(f"layers is {layers!r}; expected whole numbers from 1, or None for all layers")


def check_evaluating(model: nn.Module) -> None:
    """Check that nothing in a model is in training mode.

    Raises:
        ModelError: Naming the first module that is.
    """
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise ModelError(
            f"{type(model).__name__} is in training mode{f' in {training}' if training else ''}, where dropout makes "
            "attention random. Call model.eval() first"
        )


def check_names(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Check that the forward of a model takes inputs of these names.

    Raises:
        InputError: Naming the first that it does not take, and those that it does.
    """
    parameters = inspect.signature(model.forward).parameters
    unknown = next((name for name in inputs if name not in parameters), None)
    if unknown is not None:
        takes = ", ".join(name for name in parameters if name not in ("args", "kwargs"))
        raise InputError(f"the forward of {type(model).__name__} takes no {unknown!r}; it takes {takes}")
