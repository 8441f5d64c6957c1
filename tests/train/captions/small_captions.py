"""Images that a colour in a corner tells apart, captions that say which, and a training on them that takes a second."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import torch

from fenchel.data import CaptionedImages
from fenchel.train import CaptionOptions, TrainResult, train

__all__ = ["CAPTIONS", "captioned", "captions", "options", "write_coco_mini"]

CAPTIONS: dict[str, Any] = {
    "data": "small",
    "epochs": 2,
    "batch_size": 8,
    "learning_rate": 1e-2,
    "width": 8,
    "image_size": 8,
    "depth": 1,
    "words": 60,
    "dropout": 0.0,
    "precision": "float32",
}
_COLOURS = {"red": (250, 20, 20), "green": (20, 250, 20), "blue": (20, 20, 250)}
_CORNERS = ("top left", "top right", "bottom left", "bottom right")


def captions(count: int = 24, *, seed: int = 0) -> CaptionedImages:
    """Grey images of several sizes with a coloured corner, each with two captions."""
    generator = torch.Generator().manual_seed(seed)
    images, said = [], []
    for place in range(count):
        height, width = 8 + 2 * (place % 3), 8 + 2 * (place % 2)
        image = torch.randint(100, 140, (3, height, width), generator=generator, dtype=torch.uint8)
        colour, corner = list(_COLOURS)[place % 3], place % 4
        rows = slice(0, height // 2) if corner < 2 else slice(height // 2, None)
        columns = slice(0, width // 2) if corner % 2 == 0 else slice(width // 2, None)
        image[:, rows, columns] = torch.tensor(_COLOURS[colour], dtype=torch.uint8)[:, None, None]
        images.append(image)
        said.append((f"The {_CORNERS[corner]} is {colour}.", f"{colour}, {_CORNERS[corner]}"))
    return CaptionedImages(tuple(images), tuple(said), tuple(map(str, range(count))), "small", "drawn")


def options(**changes: Any) -> CaptionOptions:
    return CaptionOptions(**{**CAPTIONS, **changes})


def captioned(directory: Path, *, size: int = 24, **given: Any) -> TrainResult:
    """Trains in a folder; what is no argument of ``train`` is an option."""
    arguments = ("resume", "overwrite", "observer", "checkpoint_seconds", "stop")
    passed = {name: given.pop(name) for name in arguments if name in given}
    return train(options(**given), directory, data=captions(size), device="cpu", **passed)


def write_coco_mini(folder: Path, data: CaptionedImages | None = None) -> Path:
    """A folder of the form of the packed images and captions."""
    import numpy as np
    from PIL import Image

    data = captions() if data is None else data
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for image in data.images:
        content = io.BytesIO()
        Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(content, "JPEG", quality=95)
        files.append(content.getvalue())
    offsets = np.cumsum([0, *map(len, files)])
    numbers = np.array([int(one) + 100 for one in data.ids])
    jpeg = np.frombuffer(b"".join(files), dtype=np.uint8)
    np.savez(folder / "images_128.npz", jpeg=jpeg, offsets=offsets, ids=numbers)
    entries = [
        {"index": place, "id": int(one), "captions": list(said)}
        for place, (one, said) in enumerate(zip(numbers, data.captions, strict=True))
    ]
    (folder / "captions.json").write_text(json.dumps(entries))
    return folder
