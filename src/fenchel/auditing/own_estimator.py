"""The estimator that a model of transformers attends by itself, which the name of its attention says."""

from __future__ import annotations

from typing import Any

from torch import nn

from fenchel.arguments import ESTIMATORS
from fenchel.integrations.transformers.attention_modules import attention_modules

__all__ = ["estimator_of", "own_estimators"]

_NAMES = {f"fenchel_{estimator}": estimator for estimator in ESTIMATORS}


def estimator_of(module: nn.Module) -> str:
    """The estimator of an attention module, by the name that its configuration has.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
        >>> list(own_estimators(model).values())
        ['first_order']
    """
    name: Any = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return _NAMES.get(name, "first_order")


def own_estimators(model: nn.Module) -> dict[str, str]:
    """The estimator of every attention module of a model, by qualified name."""
    return {name: estimator_of(module) for module, name in attention_modules(model).items()}
