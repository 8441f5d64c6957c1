"""Models by name, as a configuration or a command line gives them."""

from __future__ import annotations

import inspect
from typing import Any

from fenchel.arguments import shown
from fenchel.errors import ModelError
from fenchel.models.abstract import AbstractVisionTransformer
from fenchel.models.captioner import Captioner
from fenchel.models.classifier import Classifier
from fenchel.models.cloze import Cloze
from fenchel.models.pairs import Pairs
from fenchel.models.sentence_classifier import (
    AbstractSentenceClassifier,
    AttentionPooling,
    MeanPooling,
)
from fenchel.models.translation import Translator
from fenchel.models.transport_vit import OTViT
from fenchel.models.vit import ViT

__all__ = ["MODELS", "Model", "build"]

Model = (
    AbstractVisionTransformer
    | AbstractSentenceClassifier
    | Captioner
    | Classifier
    | Cloze
    | Pairs
    | Translator
)
"""A small complete model: a module that says from which arguments it was built."""

MODELS: dict[str, type[Model]] = {
    "vit": ViT,
    "ot-vit": OTViT,
    "attention-pooling": AttentionPooling,
    "mean-pooling": MeanPooling,
    "captioner": Captioner,
    "cloze": Cloze,
    "translator": Translator,
    "classifier": Classifier,
    "pairs": Pairs,
}
"""Classes of models by name."""


def build(name: str, **configuration: Any) -> Model:
    """A new model, from what ``configuration`` says of another.

    Args:
        name: One of ``MODELS``.
        **configuration: Arguments of its class.

    Raises:
        ModelError: If there is no model of that name, or it has no such argument.
        ProblemError: If an argument cannot be used.

    Example:
        >>> model = build("vit", image_size=8, width=16, depth=1, heads=2, mlp_width=32)
        >>> type(build("vit", **model.configuration())).__name__
        'ViT'
    """
    if not isinstance(name, str) or name not in MODELS:
        raise ModelError(
            f"name is {shown(name)}, and there is no such model; expected one of {', '.join(map(repr, MODELS))}"
        )
    known = inspect.signature(MODELS[name]).parameters
    unknown = [argument for argument in configuration if argument not in known]
    if unknown:
        raise ModelError(
            f"model {name!r} has no argument {unknown[0]!r}; expected some of {', '.join(known)}"
        )
    return MODELS[name](**configuration)
