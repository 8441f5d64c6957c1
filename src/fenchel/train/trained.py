"""A trained model out of a training's folder."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fenchel.errors import InputError
from fenchel.storage.form import refused
from fenchel.storage.schema import Mismatch
from fenchel.train.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FORM, Checkpoint
from fenchel.train.registry import task_in

__all__ = ["load_model", "model_of"]


def load_model(directory: str | Path) -> nn.Module:
    """The model that a training made, ready for use: with the weights that it chose, or those of its last checkpoint.

    Args:
        directory: The training's folder.

    Returns:
        The model in evaluation mode, on the processor. What its input is made of, ``results.json`` says under
        ``model``: a vision transformer takes images (B, C, H, W) standardised with the mean and deviation there, a
        classifier of sentences the numbers of their words in the vocabulary there.

    Raises:
        InputError: If there is no checkpoint, or it is damaged.
    """
    path = Path(directory) / CHECKPOINT_FILE
    if not path.exists():
        raise InputError(
            f"{directory} holds no trained model ({CHECKPOINT_FILE} is not there). Give the folder of a training."
        )
    return model_of(Checkpoint.read(path.parent), path)


def model_of(checkpoint: Checkpoint, path: Path) -> nn.Module:
    """The model of a checkpoint that was read already; see ``load_model``.

    Args:
        checkpoint: What was read.
        path: From which file.

    Raises:
        InputError: If it describes another model than its weights are of.
    """
    task = task_in(path, CHECKPOINT_FORM, checkpoint.task)
    try:
        with torch.device("meta"):  # what sizes the file asks for is known before memory is taken for them
            checkpoint.check_weights(task.rebuilt(checkpoint.model).state_dict())
        model = task.rebuilt(checkpoint.model)
    except (Mismatch, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise refused(
            path, CHECKPOINT_FORM, f"describes another model than its weights are of: {reason}"
        ) from error
    model.load_state_dict(checkpoint.selected or checkpoint.weights)
    return model.eval()
