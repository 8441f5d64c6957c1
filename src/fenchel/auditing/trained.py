"""A model out of the folder of a training, with what makes its input of images, or its own test examples."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.auditing.trained_examples import TrainedExamples
from fenchel.data import load
from fenchel.data.labelled_images import LabelledImages
from fenchel.data.standardise import Standardise
from fenchel.errors import InputError
from fenchel.models import AbstractVisionTransformer
from fenchel.runs.model import RunModel
from fenchel.storage.digest import digest_of_bytes
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint, trained_task
from fenchel.train.result import TrainResult
from fenchel.train.trained import model_of
from fenchel.train.vision.options import TrainOptions
from fenchel.train.vision.splits import SUBSET_SEED
from fenchel.train.vision.task import ImageClassification

__all__ = ["TrainedImages", "is_training", "reads_images", "refuse_tested", "trained_inputs", "trained_model"]


def is_training(model: object) -> bool:
    """Whether what was given as a model is the folder of a training."""
    # A name that no file can have is no folder: whoever loads models by name says what is wrong with it.
    return isinstance(model, str) and bool(model) and os.path.isfile(os.path.join(model, CHECKPOINT_FILE))  # noqa: PTH113, PTH118


def reads_images(folder: str) -> bool:
    """Whether the folder of a training is of one on images."""
    return trained_task(Path(folder)) == ImageClassification.name


def trained_inputs(
    folder: str, *, test_images: int | None, test_examples: int | None
) -> LabelledImages | TrainedExamples:
    """What a training was tested on.

    Args:
        folder: Of the training.
        test_images: So many of its images, equally many of each class; None for those of the training.
        test_examples: So many of its examples, of a training on something else; None for all.

    Raises:
        InputError: If the number of the other kind is given, or its data are not there or are others.
    """
    images = reads_images(folder)
    name, given = ("test examples", test_examples) if images else ("test images", test_images)
    if given is not None:
        kind, other = ("images", "test images") if images else ("something else", "test examples")
        raise InputError(
            f"{name} is {given}, and {folder} is of a training on {kind}. Say how many with {other} "
            f"(--{other.replace(' ', '-')} N)."
        )
    return _test_images(folder, test_images) if images else TrainedExamples(folder, test_examples)


def refuse_tested(**given: int | None) -> None:
    """Refuse numbers of what a training was tested on, where that is not what is read.

    Raises:
        InputError: Naming the first.
    """
    for name, count in given.items():
        if count is not None:
            raise InputError(
                f"{name.replace('_', ' ')} is {count}, which is about what a training was tested on. Give the folder "
                "of a training without --text and --images, or leave it out."
            )


def _test_images(folder: str, count: int | None) -> LabelledImages:
    """The images that a training on images was tested on.

    Args:
        folder: Of the training, whose data are read again from where it had them.
        count: So many of them, equally many of each class; None for those of the training.

    Raises:
        InputError: If it is no training on images, its data are not there or are others, or there are not so many.
    """
    checkpoint = Checkpoint.read(Path(folder))
    options = TrainResult.read(Path(folder)).options
    assert isinstance(options, TrainOptions)  # noqa: S101 - those of the task
    try:
        data = load(options.data, split="test")
        its_own = data if options.test_images is None else data.subset(options.test_images, SUBSET_SEED)
    except InputError as error:
        raise InputError(
            f"{folder} was tested on {options.data!r}, which cannot be read here: {error} Or give images "
            "(--images FOLDER)."
        ) from error
    if its_own.digest != checkpoint.configuration.get("test_images_sha256"):
        raise InputError(
            f"the test images of {options.data!r} are others than those that {folder} was tested on. Put those back, "
            "or give images (--images FOLDER)."
        )
    chosen = its_own if count is None else data.subset(count, SUBSET_SEED)
    return LabelledImages(chosen, f"{options.data}, test images")


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
    model: object, *, reads: str | None, device: str | None, dtype: Any, revision: str | None
) -> RunModel | None:
    """The model of a training's folder; None where ``model`` is the name of no such folder.

    Args:
        model: What was given as a model.
        reads: ``texts`` or ``images``, where they were given to be read; None for what the training was tested on.
        device: Where to run.
        dtype: What to run in.
        revision: Revision of a named model.

    Raises:
        InputError: If the folder is damaged, its model does not read what was given, or a revision was asked of it.
    """
    if not is_training(model):
        return None
    assert isinstance(model, str)  # noqa: S101 - what ``is_training`` looks at
    folder = Path(model)
    if revision is not None:
        raise InputError(
            f"revision {revision!r} was asked of {model}, which is a folder; revisions are for hub names"
        )
    checkpoint = Checkpoint.read(folder)
    made, description = model_of(checkpoint, folder / CHECKPOINT_FILE), checkpoint.model
    of_images = isinstance(made, AbstractVisionTransformer)
    if reads is not None and (reads == "texts" or not of_images):
        its_own = (
            "images (--images FOLDER), or what it was tested on" if of_images else "what it was tested on"
        )
        raise InputError(
            f"{model} is the folder of a training, whose {type(made).__name__} reads {its_own}. Leave --{reads} "
            "out. From Python any of its inputs can be audited and swapped: "
            "fenchel.audit(fenchel.train.load_model(folder), None, [inputs])."
        )
    processor = TrainedImages(made, description["mean"], description["std"]) if of_images else None
    found = RunModel.of(made, processor, device=device, dtype=dtype, revision=None)
    return RunModel(
        found.model, processor, str(model), digest_of_bytes((folder / CHECKPOINT_FILE).read_bytes())
    )
