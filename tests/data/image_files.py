"""Small files in the formats in which images are published."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

__all__ = [
    "drawn_images",
    "drawn_labels",
    "write_cifar_binary",
    "write_cifar_python",
    "write_idx",
    "write_idx_folder",
    "write_jpeg_npz",
]


def drawn_images(count: int, channels: int = 3, side: int = 32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(256, (count, channels, side, side), generator=generator, dtype=torch.uint8)


def drawn_labels(count: int, classes: int, seed: int = 0) -> Tensor:
    return torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))


def write_idx(path: Path, values: Tensor) -> None:
    header = struct.pack(f">{1 + values.ndim}I", 0x800 + values.ndim, *values.shape)
    content = header + values.to(torch.uint8).numpy().tobytes()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def write_idx_folder(
    folder: Path, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], end: str = ".gz"
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for stem, (images, labels) in {"train": train, "t10k": test}.items():
        write_idx(folder / f"{stem}-images-idx3-ubyte{end}", images[:, 0])
        write_idx(folder / f"{stem}-labels-idx1-ubyte{end}", labels)
    return folder


def write_cifar_python(
    folder: Path,
    batches: dict[str, tuple[Tensor, Tensor]],
    *,
    label_key: str,
    meta: tuple[str, dict[bytes, Any]] | None = None,
    protocol: int = 2,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in batches.items():
        batch = {
            b"batch_label": name.encode(),
            label_key.encode(): labels.tolist(),
            b"data": images.reshape(len(images), -1).numpy(),
            b"filenames": [f"{place}.png".encode() for place in range(len(images))],
        }
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    if meta is not None:
        (folder / meta[0]).write_bytes(pickle.dumps(meta[1], protocol=protocol))
    return folder


def write_cifar_binary(
    folder: Path, batches: dict[str, tuple[Tensor, Tensor]], *, coarse: bool = False
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, (images, labels) in batches.items():
        before = [torch.zeros_like(labels), labels] if coarse else [labels]
        records = torch.cat([torch.stack(before, 1).to(torch.uint8), images.reshape(len(images), -1)], dim=1)
        (folder / name).write_bytes(records.numpy().tobytes())
    return folder


def write_jpeg_npz(path: Path, splits: dict[str, tuple[Tensor, Tensor]], classes: tuple[str, ...]) -> Path:
    arrays: dict[str, Any] = {"class_names": np.array(classes)}
    for split, (images, labels) in splits.items():
        files = []
        for image in images:
            buffer = io.BytesIO()
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(buffer, format="JPEG", quality=95)
            files.append(buffer.getvalue())
        arrays[f"{split}_jpeg"] = np.frombuffer(b"".join(files), dtype=np.uint8)
        arrays[f"{split}_offsets"] = np.cumsum([0, *map(len, files)])
        arrays[f"{split}_labels"] = labels.numpy().astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path
