"""Images of a folder as the batches that a vision model reads, made by its own image processor."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from fenchel.arguments import checked
from fenchel.data.batch import Batch, Cursor
from fenchel.data.image_files import ImageFiles
from fenchel.data.patches import patch_images
from fenchel.data.shard import Shard
from fenchel.errors import InputError

__all__ = ["ImageBatches"]

_BEGINNING = Cursor()
_ONLY_SHARD = Shard()


class ImageBatches:
    """Images, processed as the model was trained with them; each counts as a document.

    Args:
        images: The images.
        processor: An image processor of ``transformers``, called with a list of images. Another one may say in
            ``input_name`` what the model calls its images.
        config: The model's configuration; says how many channels images have, and how large patches are.
        batch_size: Images in a batch.
        shard: Which of the images to take.

    Raises:
        InputError: If an option is out of range; while reading, if the processor does not take an image.
    """

    max_length = None
    stride = None
    reads = "images"

    def __init__(
        self,
        images: ImageFiles,
        processor: Any,
        *,
        config: Any = None,
        batch_size: int = 8,
        shard: Shard = _ONLY_SHARD,
    ) -> None:
        self._name = str(getattr(processor, "input_name", "pixel_values"))
        self._images, self._processor, self._config = images, processor, config
        self._mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        self.batch_size = checked("batch_size", batch_size)
        self.shard = shard
        self.description, self.text_sha256 = images.description, images.sha256

    def batches(self, start: Cursor = _BEGINNING) -> Iterator[Batch]:
        """Gives the batches from a place on.

        Args:
            start: ``Batch.after`` of the last batch that was dealt with. Default: the beginning.

        Yields:
            Batches of images of one size.

        Raises:
            InputError: If an image cannot be read or processed.
        """
        own = [number for number in range(len(self._images)) if self.shard.takes(number)]
        left = [number for number in own if number >= start.document]
        done = len(own) - len(left)
        for begin in range(0, len(left), self.batch_size):
            numbers = left[begin : begin + self.batch_size]
            pixels = self._pixels(numbers)
            done += len(numbers)
            yield Batch(
                inputs={self._name: pixels},
                counted=None,
                counted_decoder=None,
                documents=tuple(number + 1 for number in numbers),
                windows=(1,) * len(numbers),
                tokens=len(numbers),
                after=Cursor(
                    numbers[-1] + 1,
                    0,
                    start.tokens + begin + len(numbers),
                    start.documents + begin + len(numbers),
                ),
                fraction=done / len(own),
                pictures=patch_images(pixels, self._config, self._processor),
            )

    def _pixels(self, numbers: list[int]) -> Tensor:
        images = [self._images.read(number, self._mode) for number in numbers]
        names = ", ".join(self._images.name(number) for number in numbers[:3])
        try:
            found = self._processor(images=images, return_tensors="pt")[self._name]
        except Exception as error:  # processors are many, and fail in as many ways
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise InputError(
                f"the image processor {type(self._processor).__name__} does not take {names}: {reason}"
            ) from error
        if not isinstance(found, Tensor) or found.dim() != 4 or len(found) != len(numbers):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InputError(
                f"the image processor {type(self._processor).__name__} made pixel_values {shape} of "
                f"{len(numbers)} images; "
                f"expected ({len(numbers)}, channels, height, width)"
            )
        return found
