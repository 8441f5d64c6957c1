"""Models by name, as a configuration or a command line gives them."""

from __future__ import annotations

import inspect
from typing import Any

from fenchel.arguments import shown
from fenchel.errors import ModelError
from fenchel.models.abstract import AbstractVisionTransformer
from fenchel.models.transport_vit import OTViT
from fenchel.models.vit import ViT

__all__ = ["MODELS", "build"]

MODELS: dict[str, type[AbstractVisionTransformer]] = {"vit": ViT, "ot-vit": OTViT}
"""Classes of models by name."""


def build(name: str, **configuration: Any) -> AbstractVisionTransformer:
    """A new model, from what :meth:`~fenchel.models.AbstractVisionTransformer.configuration` says of another.

    Args:
        name: ``"vit"`` or ``"ot-vit"``.
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
