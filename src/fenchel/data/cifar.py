"""CIFAR-10 and CIFAR-100 from the official python and binary batches."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fenchel.data.batch_pickle import read_batch_pickle
from fenchel.data.cifar_format import CifarFormat
from fenchel.data.file_content import file_content
from fenchel.data.image_dataset import check_labels
from fenchel.data.source import AbstractImageSource, ImageSplit
from fenchel.errors import InputError

__all__ = ["AbstractCifarFolder", "CifarBinaryFolder", "CifarPythonFolder"]

_SIDE = 32
_PIXELS = 3 * _SIDE * _SIDE


@dataclass(frozen=True)
class AbstractCifarFolder(AbstractImageSource):
    """A folder of CIFAR batches.

    Attributes:
        folder: Holds the files.
        format: Which of the two data sets.
        official: Whether batches of the official size must have the published checksums.
    """

    folder: Path
    format: CifarFormat
    official: bool = False

    def read(self, split: str) -> ImageSplit:
        """Reads and checks a split."""
        files = [self.folder / name for name in self._files()[split]]
        missing = [file.name for file in files if not file.is_file()]
        if missing:
            raise InputError(
                f"{self.folder} has no {', '.join(missing)}; expected {', '.join(file.name for file in files)} for the "
                f"{split} split of {self.format.name}. Unpack the official archive again."
            )
        class_names = self._class_names()
        batches = []
        for file in files:
            images, labels = self._batch(file, self.format.counts[split] // len(files))
            if len(images) == 0:
                raise InputError(f"{file} holds no images. Fetch it again.")
            if batches and len(images) != len(batches[0][0]):
                raise InputError(
                    f"{file} holds {len(images)} images and {files[0].name} {len(batches[0][0])}; expected as many in "
                    "every batch. One is truncated: fetch them again."
                )
            check_labels(labels, len(class_names), str(file))
            batches.append((images, labels))
        images, labels = (torch.cat(part) for part in zip(*batches, strict=True))
        official = self.format.counts[split]
        note = "" if len(images) == official else f"{len(images):,} images, not the official {official:,}"
        return ImageSplit(images.reshape(-1, 3, _SIDE, _SIDE), labels, class_names, note)

    def training_files(self) -> tuple[Path, ...]:
        """The training batches."""
        return tuple(self.folder / name for name in self._files()["train"])

    def _checked_names(self, names: list[str], file: Path) -> tuple[str, ...]:
        expected = len(self.format.class_names)
        if len(names) != expected or not all(names):
            raise InputError(f"{file} names {len(names)} classes; expected {expected}. Fetch it again.")
        return tuple(names)

    @abstractmethod
    def _files(self) -> Mapping[str, tuple[str, ...]]:
        """Split to the names of its batches."""

    @abstractmethod
    def _class_names(self) -> tuple[str, ...]:
        """As the file beside the batches has them; the official ones where there is none."""

    @abstractmethod
    def _batch(self, file: Path, official_count: int) -> tuple[Tensor, Tensor]:
        """Pixels (N, 3072) uint8 and labels (N,) int64 of a batch."""


@dataclass(frozen=True)
class CifarPythonFolder(AbstractCifarFolder):
    """The python version: one pickled dictionary a batch."""

    def _files(self) -> Mapping[str, tuple[str, ...]]:
        return self.format.python_files

    def _class_names(self) -> tuple[str, ...]:
        name, key = self.format.python_meta
        file = self.folder / name
        if not file.is_file():
            return self.format.class_names
        names = _entry(read_batch_pickle(file), key, file)
        if not isinstance(names, list):
            raise InputError(f"{file}: {key!r} is a {type(names).__name__}; expected a list. Fetch it again.")
        texts = [name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in names]
        return self._checked_names(texts, file)

    def _batch(self, file: Path, official_count: int) -> tuple[Tensor, Tensor]:
        content = read_batch_pickle(file)
        images = _entry(content, "data", file)
        labels = _entry(content, self.format.label_key, file)
        if not isinstance(images, Tensor) or images.dtype != torch.uint8 or images.shape[1:] != (_PIXELS,):
            raise InputError(
                f"{file}: 'data' is {_described(images)}; expected an array (N, {_PIXELS}) of bytes. Fetch it again."
            )
        labels = _integers(labels, self.format.label_key, file)
        if len(labels) != len(images):
            raise InputError(
                f"{file} has {len(images)} images and {len(labels)} labels; expected one label an image. "
                "Fetch it again."
            )
        if self.official and len(images) == official_count:
            self._check_md5(file)
        return images, labels

    def _check_md5(self, file: Path) -> None:
        expected = self.format.md5[file.name]
        found = hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()
        if found != expected:
            raise InputError(
                f"{file} has the md5 {found}; expected {expected}, as published. It is corrupt: fetch it again, or "
                "give the folder's path in place of the name to read it as it is."
            )


@dataclass(frozen=True)
class CifarBinaryFolder(AbstractCifarFolder):
    """The binary version: for each image its label (CIFAR-100: coarse, then fine) and its 3,072 pixels."""

    def _files(self) -> Mapping[str, tuple[str, ...]]:
        return self.format.binary_files

    def _class_names(self) -> tuple[str, ...]:
        file = self.folder / self.format.binary_meta
        if not file.is_file():
            return self.format.class_names
        return self._checked_names(file_content(file).decode("utf-8", "replace").split(), file)

    def _batch(self, file: Path, official_count: int) -> tuple[Tensor, Tensor]:
        content = file_content(file)
        record = self.format.label_bytes + _PIXELS
        if len(content) % record:
            raise InputError(
                f"{file} holds {len(content)} bytes; expected a multiple of {record}, and {official_count * record} in "
                "the official file. It is truncated or corrupt: fetch it again."
            )
        if not content:
            raise InputError(f"{file} is empty. Fetch it again.")
        records = torch.frombuffer(bytearray(content), dtype=torch.uint8).reshape(-1, record)
        return records[:, self.format.label_bytes :], records[:, self.format.label_bytes - 1].to(torch.int64)


def _entry(content: dict[str, object], key: str, file: Path) -> object:
    if key not in content:
        raise InputError(
            f"{file} has no {key!r}; it has {', '.join(map(repr, content)) or 'nothing'}. It is another file: put the "
            "official one there."
        )
    return content[key]


def _integers(values: object, key: str, file: Path) -> Tensor:
    if isinstance(values, Tensor) and values.ndim == 1:
        return values.to(torch.int64)
    if isinstance(values, list) and all(type(value) is int and abs(value) < 1 << 63 for value in values):
        return torch.tensor(values, dtype=torch.int64)
    raise InputError(f"{file}: {key!r} is {_described(values)}; expected a list of integers. Fetch it again.")


def _described(value: object) -> str:
    if isinstance(value, Tensor):
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}"
    return f"a {type(value).__name__}"
