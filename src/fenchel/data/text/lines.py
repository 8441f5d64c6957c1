"""Lines of a text file, one at a time, with errors that say where in the file they are."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from fenchel.errors import InputError
from fenchel.storage.unpacking import check_unpacking

__all__ = ["decoded", "file_lines", "file_sha256", "file_text", "readable_file"]

_MARK = b"\xef\xbb\xbf"  # what some editors put before UTF-8
_BLOCK = 1 << 20
_LONGEST = 1 << 28


def readable_file(path: Path) -> Path:
    """Checks that a path is a file with something in it.

    Args:
        path: A path that was given as a source of text.

    Returns:
        The path.

    Raises:
        InputError: If there is no such file, it is a folder or a device, it cannot be read, or it is empty.
    """
    try:
        if path.is_dir():
            raise InputError(
                f"{path} is a folder, not a file. Give one file of text, or merge audits of several."
            )
        if not path.exists():
            raise InputError(f"{path} does not exist. Give the path of a text, jsonl or parquet file.")
        if not path.is_file():
            raise InputError(
                f"{path} is not a regular file. It is read more than once, so save the text in a file."
            )
        with path.open("rb") as file:
            first = file.read(len(_MARK) + 1)
    except PermissionError:
        raise InputError(f"{path} cannot be read: permission denied.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None
    if first in (b"", _MARK):
        raise InputError(f"{path} is empty. Give a file with at least one line of text.")
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes as they are on disk, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def file_lines(path: Path, longest: int = _LONGEST) -> Iterator[tuple[int, str, float]]:
    r"""Reads a UTF-8 file line by line; lines end with ``\n``.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.
        longest: How many bytes a line may have.

    Yields:
        The line's number from 1, its text without the line's end, and the share of the file read with it.

    Raises:
        InputError: If the bytes are not UTF-8 or not gzip, a line is too long, or the file unpacks to more than any
            text does.
    """
    size = path.stat().st_size or 1
    offset = 0
    with path.open("rb") as raw:
        file = _decompressed(raw, path)
        try:
            number = 0
            while line := file.readline(longest + 1):
                number += 1
                if len(line) > longest:
                    raise InputError(
                        f"line {number} of {path} has more than {longest:,} bytes; expected one document a line, each "
                        "shorter than that. Cut it into several."
                    )
                text = decoded(line, path, line=number, offset=offset)
                offset += len(line)
                if file is not raw:
                    check_unpacking(str(path), offset, raw.tell())
                yield (
                    number,
                    text.rstrip("\r\n"),
                    min(1.0, raw.tell() / size if file is not raw else offset / size),
                )
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file: {error}.") from None


def file_text(path: Path) -> str:
    """Reads a whole UTF-8 file.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed.

    Returns:
        Its text.

    Raises:
        InputError: If the bytes are not UTF-8 or not gzip, or too many.
    """
    with path.open("rb") as raw:
        try:
            content = _decompressed(raw, path).read(_LONGEST + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise InputError(f"{path} is not a whole gzip file: {error}.") from None
    if len(content) > _LONGEST:
        raise InputError(
            f"{path} holds more than {_LONGEST:,} bytes; expected one document, shorter than that. Cut it into "
            "several, or have it read line by line (without --whole-file)."
        )
    return decoded(content, path, line=1, offset=0)


def decoded(content: bytes, path: Path, *, line: int, offset: int) -> str:
    """Decodes a part of a UTF-8 file.

    Args:
        content: The bytes.
        path: The file, for the message.
        line: Number of the line (from 1) that the part begins with.
        offset: How many bytes of the file are before the part.

    Returns:
        The text, without a byte order mark.

    Raises:
        InputError: If the bytes are not UTF-8; it says which byte of which line is wrong.
    """
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        raise InputError(
            f"{path} is not UTF-8: line {line} has byte {content[error.start]:#04x} where no character can "
            f"have it, {offset + error.start} bytes into the file. "
            f"Convert the file first, for example with: iconv -f LATIN1 -t UTF-8 {path.name}"
        ) from None
    return text.removeprefix("\ufeff") if offset == 0 else text


def _decompressed(raw: IO[bytes], path: Path) -> IO[bytes]:
    return cast("IO[bytes]", gzip.GzipFile(fileobj=raw)) if path.suffix == ".gz" else raw
