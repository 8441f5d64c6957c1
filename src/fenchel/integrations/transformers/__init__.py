"""Attention of models of ``transformers``: captured, replaced, and loaded with their tokenizers.

``registry`` puts a function into the attention registry, ``masks_and_sinks`` turns masks and position biases into log u
and compares with the family's own attention. ``backend`` and ``switching`` put inference in the place of attention,
``attention_calls`` captures it and finds the linear map behind the keys. ``loading`` loads a model and makes the
decoder's inputs.
"""

from __future__ import annotations

from fenchel.integrations.transformers.backend import register
from fenchel.integrations.transformers.loading import ModelInfo, decoder_inputs, load_model
from fenchel.integrations.transformers.registry import attention_implementation, register_backend
from fenchel.integrations.transformers.switching import attention_names, use_backend

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
