"""Whether somebody waits for the attention weights of this call: fused attention does without them.

``output_attentions=True`` reaches an attention function in three ways, depending on the family: as an argument of the
call, as a setting of the configuration, or not at all, because the model gathers what its modules return through hooks.
For the last, transformers keeps a collector for the time of the forward, which says what is gathered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

__all__ = ["weights_wanted"]


def _gathered() -> Mapping[str, Any]:
    """What the running forward gathers through hooks, by name; empty where this release has no such collector."""
    try:
        from transformers.utils.output_capturing import (
            _active_collector,  # pyright: ignore[reportPrivateUsage] -- nothing public says it
        )
    except ImportError:
        return {}
    # While compiling, a context variable cannot be read, unless the forward itself is being compiled.
    if torch.compiler.is_compiling() and not getattr(_active_collector, "compiling", False):
        return {}
    return _active_collector.get() or {}


def weights_wanted(module: nn.Module, arguments: Mapping[str, Any]) -> bool:
    """Whether the attention function has to return its weights.

    Args:
        module: The attention module that called.
        arguments: The keyword arguments of the call.
    """
    if arguments.get("output_attentions"):
        return True
    if getattr(getattr(module, "config", None), "output_attentions", False):
        return True
    return any(name.endswith("attentions") for name in _gathered())
