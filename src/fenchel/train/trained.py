"""A trained model out of a training's folder."""

from __future__ import annotations

from pathlib import Path

from fenchel import models
from fenchel.train.checkpoint import Checkpoint

__all__ = ["load_model"]


def load_model(directory: str | Path) -> models.AbstractVisionTransformer:
    """The model that a training made, with the weights of its last checkpoint, ready for use.

    Args:
        directory: The training's folder.

    Returns:
        The model in evaluation mode, on the processor. It takes images (B, C, H, W) standardised with the mean and
        standard deviation that ``results.json`` gives under ``model``.

    Raises:
        InputError: If there is no checkpoint, or it is damaged.
    """
    checkpoint = Checkpoint.read(Path(directory))
    model = models.build(checkpoint.model["name"], **checkpoint.model["configuration"])
    model.load_state_dict(checkpoint.weights)
    return model.eval()
