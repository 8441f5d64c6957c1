"""Hugging Face transformers: reach the attention of a pretrained model, and load one.

``registry`` puts an attention function and a mask function under one name, ``attention_modules`` finds the
modules that will call it, ``arguments`` refuses what would change the scores unseen, ``log_preference`` turns
masks and position biases into log u, ``key_map`` finds the linear map behind the keys, ``eager_check``
compares with the family's own attention, ``loading`` loads a model and ``teacher_forcing`` makes the
decoder's inputs. ``backend`` is attention that infers, under names that every model takes, and ``switching``
puts it into chosen layers and heads of one model for a while.
"""

from __future__ import annotations

from fenchel.integrations.transformers.backend import register
from fenchel.integrations.transformers.loading import ModelInfo, load_model
from fenchel.integrations.transformers.registry import attention_implementation, register_backend
from fenchel.integrations.transformers.switching import attention_names, use_backend
from fenchel.integrations.transformers.teacher_forcing import decoder_inputs

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
