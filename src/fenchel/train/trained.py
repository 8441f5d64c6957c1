"""A trained model out of a training's folder."""

from __future__ import annotations

from pathlib import Path

from fenchel import models
from fenchel.errors import InputError
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint

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
    path = Path(directory) / CHECKPOINT_FILE
    if not path.exists():
        raise InputError(
            f"{directory} holds no trained model ({CHECKPOINT_FILE} is not there). Give the folder of a training."
        )
    checkpoint = Checkpoint.read(path.parent)
    model = models.build(checkpoint.model["name"], **checkpoint.model["configuration"])
    model.load_state_dict(checkpoint.weights)
    return model.eval()
