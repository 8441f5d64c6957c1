"""What a training refuses before its first step and before any file: images, batches and sizes that do not fit."""

from __future__ import annotations

import os
from typing import Any

import torch

from fenchel import models
from fenchel.data.image_dataset import ImageDataset
from fenchel.data.paired_batches import PairedBatches
from fenchel.data.standardise import Standardise
from fenchel.errors import InputError
from fenchel.train.options import TrainOptions
from fenchel.train.splits import refuse_unlike, refuse_unshared, shortened
from fenchel.train.workers import Workers

__all__ = ["built", "prepared"]

_BYTES_PER_PARAMETER = 16
"""The weight, its gradient, and two moments of AdamW, in float32."""


def prepared(
    options: TrainOptions, data: tuple[ImageDataset, ImageDataset], workers: Workers
) -> tuple[ImageDataset, ImageDataset]:
    """The images that are trained and tested on, if a training can begin with them.

    Args:
        options: Resolved.
        data: All there are.
        workers: The processes.

    Raises:
        InputError: If the images do not fit each other, the batches or the model, or the model not the memory.
    """
    train, test = shortened(data, options)
    refuse_unlike(train, test)
    refuse_unshared(options.batch_size, workers.count)
    Standardise(train.mean, train.std)
    PairedBatches(
        train.labels,
        options.batch_size,
        seed=options.seed,
        epoch=0,
        world_size=workers.count,
        class_names=train.class_names,
    )
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in built(options, train).parameters())
    needed, there = _BYTES_PER_PARAMETER * parameters, _memory(workers.device)
    if needed > there:
        raise InputError(
            f"a model of width {options.width}, depth {options.depth} and mlp width {options.mlp_width} has "
            f"{parameters:,} parameters, whose training takes {needed / 2**30:,.1f} GB before the first image; "
            f"{workers.device} has {there / 2**30:,.1f} GB. Lower them."
        )
    return train, test


def built(options: TrainOptions, data: ImageDataset) -> models.AbstractVisionTransformer:
    """The model that the options ask for, for these images."""
    common: dict[str, Any] = {
        "image_size": data.image_size[0],
        "patch_size": options.patch_size,
        "channels": data.channels,
        "classes": data.classes,
        "width": options.width,
        "depth": options.depth,
        "heads": options.heads,
        "mlp_width": options.mlp_width,
        "dropout": options.dropout,
    }
    if options.model == "ot-vit":
        common |= {"gamma": options.gamma, "alpha": options.alpha, "cost": options.cost}
    extra = None if options.extra_preference == "none" else options.extra_preference
    return models.build(options.model, **common, extra_preference=extra)


def _memory(device: torch.device) -> int:
    """Bytes of memory of a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
