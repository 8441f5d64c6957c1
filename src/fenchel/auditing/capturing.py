"""The capture that sees the attention of a model: by the registry of transformers, or by layers of ``fenchel.nn``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Literal

from torch import nn

from fenchel.auditing.attention_call import AttentionCall
from fenchel.auditing.capture import Capture
from fenchel.auditing.layer_capture import LayerCapture, has_layers
from fenchel.errors import ModelError
from fenchel.integrations.transformers.attention_modules import calls_registry

__all__ = ["capture_of"]


def capture_of(
    model: nn.Module,
    *,
    space: Literal["input", "key"],
    consume: Callable[[AttentionCall], None],
    layers: Collection[int] | None = None,
    any_estimator: bool = False,
) -> Capture | LayerCapture:
    """The capture of a model; see there.

    Raises:
        ModelError: If the model has attention of both libraries, of which either capture would see a part.
    """
    if not has_layers(model):
        return Capture(model, space=space, consume=consume, layers=layers)
    if hasattr(model, "config") and calls_registry(model):
        raise ModelError(
            f"{type(model).__name__} has attention of transformers and attention layers of fenchel.nn, and an "
            "audit sees "
            "either. Give the submodule that holds one of them"
        )
    return LayerCapture(model, space=space, consume=consume, layers=layers, any_estimator=any_estimator)
