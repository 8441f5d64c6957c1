"""An image file, opened but not decoded: its size is known before it takes any memory."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fenchel.errors import InputError, MissingExtraError

__all__ = ["opened_image"]

_LONGEST_SIDE = 4096


@contextmanager
def opened_image(content: Any, formats: tuple[str, ...] | None = None) -> Iterator[Any]:
    """Opens an image with Pillow.

    Args:
        content: The bytes of its file.
        formats: Names of formats that it may be in. Default: any.

    Yields:
        The image, not decoded yet.

    Raises:
        OSError, SyntaxError: If it is not an image or, of a PNG, not a whole one; others are found when decoded.
        InputError: If a side is longer than 4,096 pixels, a sentence that begins with "has"; a few hundred bytes can
            claim any size.
        MissingExtraError: If Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("PIL", "report") from None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # what it warns of is refused below
        try:
            picture = Image.open(io.BytesIO(content), formats=formats)
        except Image.DecompressionBombError as error:
            raise InputError(f"has too many pixels: {error}") from None
    with picture:
        if max(picture.size) > _LONGEST_SIDE:
            raise InputError(
                f"has {picture.height:,} x {picture.width:,} pixels; expected at most {_LONGEST_SIDE:,} a side. Shrink "
                "the images first."
            )
        if picture.format == "PNG":
            # Its decoder is content once it has all pixels, whatever became of checksums and of the end.
            with Image.open(io.BytesIO(content)) as again:
                again.verify()
        yield picture
