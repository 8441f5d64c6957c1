"""A model out of the folder of a training, with what makes its input of images."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.data.standardise import Standardise
from fenchel.errors import InputError
from fenchel.models import AbstractVisionTransformer
from fenchel.runs.model import RunModel
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from fenchel.train.trained import load_model

__all__ = ["TrainedImages", "trained_model"]


class TrainedImages:
    """Makes the input of a vision transformer of a training from any image, as its own images were made.

    Args:
        model: The transformer; says how large images are, and how many channels they have.
        mean: What is subtracted from each channel of pixels from 0 to 1.
        std: By what it is then divided.
    """

    input_name = "images"
    do_normalize = True

    def __init__(self, model: AbstractVisionTransformer, mean: list[float], std: list[float]) -> None:
        self.num_channels, self._height, self._width = model.sizes.images
        self.patch_size = model.sizes.patch_size
        self.image_mean, self.image_std = mean, std
        self._standardise = Standardise(mean, std)

    def __call__(self, images: list[Any], return_tensors: str = "pt") -> dict[str, Tensor]:
        """Images of Pillow, resized and standardised, under the name that the model has for them."""
        del return_tensors
        resized = [image.resize((self._width, self._height)) for image in images]
        pixels = torch.stack(
            [
                torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).reshape(
                    self._height, self._width, -1
                )
                for image in resized
            ]
        )
        return {self.input_name: self._standardise(pixels.permute(0, 3, 1, 2).contiguous())}


def trained_model(
    model: object, *, images: bool, device: str | None, dtype: Any, revision: str | None
) -> RunModel | None:
    """The model of a training's folder; None where ``model`` is the name of no such folder.

    Args:
        model: What was given as a model.
        images: Whether images are to be read.
        device: Where to run.
        dtype: What to run in.
        revision: Revision of a named model.

    Raises:
        InputError: If the folder is damaged, its model reads no images, or a revision was asked of it.
    """
    # A name that no file can have is no folder: whoever loads models by name says what is wrong with it.
    if not isinstance(model, str) or not model or not os.path.isfile(os.path.join(model, CHECKPOINT_FILE)):  # noqa: PTH113, PTH118
        return None
    folder = Path(model)
    if revision is not None:
        raise InputError(
            f"revision {revision!r} was asked of {model}, which is a folder; revisions are for hub names"
        )
    made, description = load_model(folder), Checkpoint.read(folder).model
    if not images or not isinstance(made, AbstractVisionTransformer):
        reads = (
            "images (--images FOLDER)" if isinstance(made, AbstractVisionTransformer) else "numbers of words"
        )
        raise InputError(
            f"{model} is the folder of a training, whose {type(made).__name__} reads {reads}. From Python any of its "
            "inputs can be audited: fenchel.audit(fenchel.train.load_model(folder), None, [inputs])."
        )
    processor = TrainedImages(made, description["mean"], description["std"])
    found = RunModel.of(made, processor, device=device, dtype=dtype, revision=None)
    return RunModel(
        found.model, processor, str(model), digest_of_bytes((folder / CHECKPOINT_FILE).read_bytes())
    )
