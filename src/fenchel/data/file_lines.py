"""The lines of a data file, or an error that says which of them is in another encoding."""

from __future__ import annotations

from pathlib import Path

from fenchel.data.file_content import file_content
from fenchel.errors import InputError

__all__ = ["file_lines"]


def file_lines(path: Path, *, encoding: str = "utf-8", remedy: str) -> list[str]:
    """The lines of a file without their ends; gzip files are unpacked.

    Lines end where the file has a line feed, and nowhere else: signs that are line ends in Unicode stand within
    sentences of published files.

    Args:
        path: The file.
        encoding: Of it.
        remedy: What to do where it has another: a sentence.

    Raises:
        InputError: If it cannot be read, or is not in that encoding.
    """
    content = file_content(path)
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{path}, line {line} is not {encoding.upper()}: byte {content[error.start]:#04x} cannot stand there. "
            f"{remedy}"
        ) from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]
