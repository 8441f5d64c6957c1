"""Compressed files that were made to fill a memory: known by unpacking to far more than anything real does."""

from __future__ import annotations

from fenchel.errors import InputError

__all__ = ["check_unpacking"]

# Text shrinks to a tenth, logs and drawings to a fiftieth; zeros to a thousandth.
_LARGEST_RATIO = 250
_UNSUSPECTED = 1 << 20


def check_unpacking(where: str, unpacked: int, packed: int) -> None:
    """Refuses what unpacks to more than 250 times its size, where that is more than a mebibyte.

    Args:
        where: The file, for the message.
        unpacked: Bytes that came out so far, or are announced.
        packed: Bytes that they were packed into.

    Raises:
        InputError: If that is too much.

    Example:
        >>> check_unpacking("a.gz", unpacked=10**9, packed=10**6)
        Traceback (most recent call last):
        fenchel.errors.InputError: a.gz unpacks to more than 250 times its size, to 1,000,000,000 bytes or more, as no \
text and no photographs do; it was not read further. If that is meant, store it uncompressed.
    """
    if unpacked > _UNSUSPECTED and unpacked > _LARGEST_RATIO * max(1, packed):
        raise InputError(
            f"{where} unpacks to more than {_LARGEST_RATIO} times its size, to {unpacked:,} bytes or more, as no "
            "text and no photographs do; it was not read further. If that is meant, store it uncompressed."
        )
