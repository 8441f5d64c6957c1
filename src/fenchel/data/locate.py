"""Where the images of a name or a path are, and in which format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fenchel.data.cifar import AbstractCifarFolder, CifarBinaryFolder, CifarPythonFolder
from fenchel.data.cifar_format import CIFAR10, CIFAR100, CifarFormat
from fenchel.data.idx_folder import IdxFolder, is_idx_folder
from fenchel.data.packed import PackedImages
from fenchel.data.source import AbstractImageSource
from fenchel.errors import InputError

__all__ = ["NAMES", "at_path", "known_names", "named"]

_ROOT_VARIABLE = "FENCHEL_DATA"
_JPEG_FILE = "cifar10_jpeg.npz"


@dataclass(frozen=True)
class _Known:
    folders: tuple[str, ...]
    files: str
    address: str
    archive: str
    find: Callable[[Path], AbstractImageSource | None]


def named(name: str, root: str | Path | None) -> AbstractImageSource:
    """Finds a data set that is known by name.

    Args:
        name: One of ``NAMES``.
        root: The folder that holds a folder for each data set. Default: the environment's ``FENCHEL_DATA``.

    Returns:
        Where its images are.

    Raises:
        InputError: If the root is not given or is no folder, or the data set is not there; it says where the official
            files are.
    """
    known = _KNOWN[name]
    folder = _root_folder(root)
    if folder is None:
        raise InputError(
            f"{name!r} is read from files, and neither {_ROOT_VARIABLE} nor a root says where they are. Fetch "
            f"{known.files} from {known.address} into a folder {known.folders[0]}, and set {_ROOT_VARIABLE} to the "
            "folder that holds it."
        )
    source = _found(known, folder)
    if source is not None:
        return source
    places = (folder, folder / known.folders[0])
    still_packed = [path for place in places for path in sorted(place.glob(f"{known.archive}*.tar.gz"))]
    if still_packed:
        raise InputError(
            f"{name!r} is still packed, in {', '.join(map(str, still_packed))}; expected its files. Unpack it where it "
            "is, with tar xzf."
        )
    raise InputError(
        f"{name!r} is not under {folder}, which has {_listed(folder)}; expected {known.files} in a folder "
        f"{known.folders[0]}. It is published at {known.address}."
    )


def known_names(root: str | Path | None) -> str:
    """What can be asked for by name and which of it is there, for messages."""
    folder = _root_folder(root)
    if folder is None:
        return f"{', '.join(NAMES)} (under {_ROOT_VARIABLE}, which is not set)"
    there = [name for name, known in _KNOWN.items() if _found(known, folder) is not None]
    return f"{', '.join(NAMES)} (under {folder}, which has {', '.join(there) or 'none of them'})"


def at_path(path: Path) -> AbstractImageSource:
    """Recognises what is in a folder or a file.

    Args:
        path: A folder of IDX files, of CIFAR batches, or of one npz file; or an npz file.

    Returns:
        Where its images are.

    Raises:
        InputError: If there is nothing there that can be read.
    """
    if path.is_file():
        if path.suffix == ".npz":
            return PackedImages(path)
        source = _in_folder(path.parent)
        hint = f" Its folder can be read: give {path.parent}." if source is not None else ""
        raise InputError(f"{path} is a single file; expected an npz file, or a folder of {_FORMATS}.{hint}")
    source = _in_folder(path)
    if source is None:
        raise InputError(
            f"{path} has {_listed(path)}; expected {_FORMATS}, or one npz file. For a folder of images by class, give "
            f"hf:{path}."
        )
    return source


_FORMATS = "four IDX files, or of the official python or binary batches of CIFAR-10 or CIFAR-100"


def _in_folder(folder: Path) -> AbstractImageSource | None:
    if is_idx_folder(folder):
        return IdxFolder(folder)
    for kind in (CIFAR10, CIFAR100):
        source = _cifar(folder, kind, official=False)
        if source is not None:
            return source
    archives = sorted(folder.glob("*.npz"))
    preferred = [archive for archive in archives if archive.name == _JPEG_FILE]
    if len(preferred or archives) > 1:
        raise InputError(
            f"{folder} has {', '.join(archive.name for archive in archives)}; expected one. Give the path of the file."
        )
    return PackedImages((preferred or archives)[0]) if archives else None


def _fashion_mnist(folder: Path) -> AbstractImageSource | None:
    return IdxFolder(folder, fashion_mnist=True) if is_idx_folder(folder) else None


def _cifar10(folder: Path) -> AbstractImageSource | None:
    source = _cifar(folder, CIFAR10, official=True)
    if source is not None:
        return source
    packed = folder / _JPEG_FILE
    return PackedImages(packed) if packed.is_file() else None


def _cifar100(folder: Path) -> AbstractImageSource | None:
    return _cifar(folder, CIFAR100, official=True)


def _cifar(folder: Path, kind: CifarFormat, *, official: bool) -> AbstractCifarFolder | None:
    choices: Sequence[tuple[type[AbstractCifarFolder], str, dict[str, tuple[str, ...]]]] = (
        (CifarPythonFolder, kind.python_folder, kind.python_files),
        (CifarBinaryFolder, kind.binary_folder, kind.binary_files),
    )
    for reader, inner, files in choices:
        for place in (folder / inner, folder):
            if any((place / name).is_file() for names in files.values() for name in names):
                return reader(place, kind, official)
    return None


def _found(known: _Known, folder: Path) -> AbstractImageSource | None:
    for candidate in (*(folder / part for part in known.folders), folder):
        source = known.find(candidate) if candidate.is_dir() else None
        if source is not None:
            return source
    return None


def _root_folder(root: str | Path | None) -> Path | None:
    given, said_by = (root, "root") if root is not None else (os.environ.get(_ROOT_VARIABLE), _ROOT_VARIABLE)
    if not given:
        return None
    folder = Path(given).expanduser()
    if not folder.is_dir():
        state = "is a file" if folder.exists() else "does not exist"
        raise InputError(
            f"{said_by} is {folder}, which {state}; expected a folder with a folder for each data set."
        )
    return folder


def _listed(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return (", ".join(names[:10]) or "nothing in it") + more


_CIFAR_PAGE = "https://www.cs.toronto.edu/~kriz/cifar.html"

_KNOWN = {
    "fashion-mnist": _Known(
        ("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
        "the four IDX files (train-images-idx3-ubyte.gz and so on)",
        "https://github.com/zalandoresearch/fashion-mnist",
        "fashion-mnist",
        _fashion_mnist,
    ),
    "cifar10": _Known(
        ("cifar10", CIFAR10.python_folder, CIFAR10.binary_folder),
        f"the python or binary version ({CIFAR10.python_folder}, {CIFAR10.binary_folder})",
        _CIFAR_PAGE,
        "cifar-10-",
        _cifar10,
    ),
    "cifar100": _Known(
        ("cifar100", CIFAR100.python_folder, CIFAR100.binary_folder),
        f"the python or binary version ({CIFAR100.python_folder}, {CIFAR100.binary_folder})",
        _CIFAR_PAGE,
        "cifar-100-",
        _cifar100,
    ),
}

NAMES = tuple(_KNOWN)
"""What ``load`` knows by name."""
