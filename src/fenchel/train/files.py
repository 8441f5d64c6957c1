"""What lies beside a model's weights, such as its tokenizer: written once, compared by digest."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fenchel.errors import InputError
from fenchel.storage import write_text
from fenchel.storage.digest import digest_of_bytes

__all__ = ["digests_of", "read_file", "write_files"]

_WHAT_TO_DO = (
    "Put a good copy of it back; fenchel train --resume with the options of the training writes it anew."
)


def digests_of(files: Mapping[str, str]) -> dict[str, str]:
    """The SHA-256 of each file by its name, as the description of a model keeps it."""
    return {name: digest_of_bytes(text.encode()) for name, text in files.items()}


def write_files(directory: Path, files: Mapping[str, str]) -> None:
    """Write those that are not there as they should be.

    Raises:
        OutputError: If one cannot be written.
    """
    for name, text in files.items():
        path = directory / name
        if not path.is_file() or path.read_bytes() != text.encode():
            write_text(path, text)


def read_file(directory: Path, name: str, digests: Mapping[str, str]) -> str:
    """A file of a training, if it is the one that was written.

    Args:
        directory: The training's folder.
        name: Of the file.
        digests: What ``digests_of`` said, out of the checkpoint.

    Raises:
        InputError: If it is missing or was changed.

    Example:
        >>> read_file(Path("nowhere"), "tokenizer.json", {})
        Traceback (most recent call last):
        fenchel.errors.InputError: nowhere is the folder of a training without tokenizer.json; expected one that has it.
    """
    if name not in digests:
        raise InputError(f"{directory} is the folder of a training without {name}; expected one that has it.")
    path = directory / name
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}. {_WHAT_TO_DO}") from None
    if digest_of_bytes(content) != digests[name]:
        raise InputError(
            f"{path} is not what the training wrote: it is damaged or of another run. {_WHAT_TO_DO}"
        )
    return content.decode()
