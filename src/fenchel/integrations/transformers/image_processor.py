"""The image processor that a pretrained model was saved with."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch import nn

from fenchel.errors import InputError, ModelError
from fenchel.integrations.transformers.quiet import quiet
from fenchel.integrations.transformers.requirement import require_transformers

__all__ = ["check_reads_images", "load_image_processor"]


def check_reads_images(model: nn.Module, name: str = "pixel_values") -> None:
    """See that a model takes pixels.

    Args:
        model: The model.
        name: What its forward calls them.

    Raises:
        InputError: If it does not, and what it takes.
    """
    takes = [name for name in inspect.signature(model.forward).parameters if name not in ("args", "kwargs")]
    if name not in takes:
        raise InputError(
            f"{type(model).__name__} reads no images: its forward takes {', '.join(takes[:4])}. Give it a "
            "text (--text)."
        )


def load_image_processor(name: str, revision: str | None = None) -> Any:
    """Load the image processor of a model; needs no torchvision.

    Args:
        name: A local folder, or a name on the hub.
        revision: A branch, tag or commit; for hub names only.

    Raises:
        ModelError: If it was saved with none, or it cannot be loaded.
        MissingExtraError: If transformers is not installed.
    """
    transformers = require_transformers()
    options = {"local_files_only": True} if Path(name).is_dir() else {"revision": revision or "main"}
    try:
        with quiet():
            return transformers.AutoImageProcessor.from_pretrained(name, **options)
    except Exception as error:  # configurations are wrong in every way that files can be
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= 300 else reason[:299] + "…"
        raise ModelError(
            f"the image processor of {name} cannot be loaded: {reason}. Save it beside the model "
            "(preprocessor_config.json)"
        ) from error
