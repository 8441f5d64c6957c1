"""Attention of models of ``transformers``: captured, replaced, and loaded with their tokenizers.

``registry`` adds functions to the attention registry. ``masks_and_sinks`` converts masks and position biases to log u
and compares with the family's own attention. ``backend`` replaces attention by inference, ``attention_calls`` captures
it and finds the linear map of the keys. ``loading`` loads models and makes the inputs of decoders.
"""

from __future__ import annotations

from fenchel.integrations.transformers.backend import attention_names, register, use_backend
from fenchel.integrations.transformers.loading import ModelInfo, decoder_inputs, load_model
from fenchel.integrations.transformers.registry import attention_implementation, register_backend

__all__ = [
    "ModelInfo",
    "attention_implementation",
    "attention_names",
    "decoder_inputs",
    "load_model",
    "register",
    "register_backend",
    "use_backend",
]
