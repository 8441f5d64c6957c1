"""The digest of a file of state, over every byte of it but the digest itself."""

from __future__ import annotations

import hashlib
from typing import BinaryIO

__all__ = ["HEX_DIGITS", "PREFIX", "digest_of_bytes", "digest_of_file"]

PREFIX = "sha256:"
HEX_DIGITS = 64

_CHUNK = 1 << 20


def digest_of_bytes(content: bytes) -> str:
    """``sha256:`` and the hexadecimal digits of the content's SHA-256."""
    return PREFIX + hashlib.sha256(content).hexdigest()


def digest_of_file(file: BinaryIO, blank: int) -> str:
    """The digest of a whole file with its own digest blanked, read piece by piece.

    Args:
        file: Opened for reading.
        blank: Where the hexadecimal digits stand that count as zeros.

    Returns:
        As ``digest_of_bytes``.
    """
    digest = hashlib.sha256()
    file.seek(0)
    digest.update(file.read(blank))
    digest.update(b"0" * len(file.read(HEX_DIGITS)))
    while piece := file.read(_CHUNK):
        digest.update(piece)
    return PREFIX + digest.hexdigest()
