"""A trained model out of a training's folder."""

from __future__ import annotations

from pathlib import Path

import torch

from fenchel import models
from fenchel.errors import InputError
from fenchel.storage.form import refused
from fenchel.storage.schema import Mismatch
from fenchel.train.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FORM, Checkpoint

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
    name, configuration = checkpoint.model["name"], checkpoint.model["configuration"]
    try:
        with torch.device("meta"):  # what sizes the file asks for is known before memory is taken for them
            checkpoint.check_weights(models.build(name, **configuration).state_dict())
        model = models.build(name, **configuration)
    except (Mismatch, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise refused(
            path, CHECKPOINT_FORM, f"describes another model than its weights are of: {reason}"
        ) from error
    model.load_state_dict(checkpoint.weights)
    return model.eval()
