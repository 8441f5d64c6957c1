"""The bytes of a data file, decompressed, or an error that says what is wrong with it."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from fenchel.errors import InputError
from fenchel.storage.unpacking import check_unpacking

__all__ = ["file_content"]

_BLOCK = 1 << 20


def file_content(path: Path) -> bytes:
    """Reads a whole file.

    Args:
        path: The file; a name that ends in ``.gz`` is decompressed, and the checksum in it is compared.

    Returns:
        Its content.

    Raises:
        InputError: If there is no such file, it cannot be read, or it is truncated or corrupt.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"{path} is no regular file. Put the official file there.")
    try:
        if path.suffix == ".gz":
            return _decompressed(path)
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist. Put the official file there.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; expected a file. Put the official file there.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}.") from None


def _decompressed(path: Path) -> bytes:
    """A whole gzip file, but not more than images can have been."""
    content = bytearray()
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            while block := file.read(_BLOCK):
                content += block
                check_unpacking(str(path), len(content), raw.tell())
        return bytes(content)
    except EOFError:
        raise InputError(
            f"{path} is truncated: its {path.stat().st_size} bytes end before the compressed data does. Fetch it again."
        ) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path} is corrupt: {str(error).rstrip('.')}; expected a whole gzip file. Fetch it again."
        ) from None
