"""Batches of what a model reads, with what is known of their tokens."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import checked, reason_of, shown
from fenchel.errors import CaptureError, InputError
from fenchel.io.images import ImageFiles
from fenchel.io.runs import Shard
from fenchel.io.tokens import PADDING, TokenTexts, text_pieces, token_text

_LONGEST_SIDE = 96
_MOST_EXTRA = 16  # positions before the patches: class, distillation and register tokens


@dataclass(frozen=True)
class PatchGrid:
    """Where patches are among positions: after ``extra`` others, row by row.

    Attributes:
        rows: Patches from top to bottom.
        columns: Patches from left to right.
        extra: Positions before them, such as that of a class token.
    """

    rows: int
    columns: int
    extra: int

    def name(self, position: int) -> str:
        """What a position (from 0) is called.

        Example:
            >>> grid = PatchGrid(rows=2, columns=3, extra=1)
            >>> [grid.name(position) for position in (0, 1, 6)]
            ['[CLS]', 'row 1, column 1', 'row 2, column 3']
        """
        if position < self.extra:
            return "[CLS]" if position == 0 else f"extra token {position + 1}"
        row, column = divmod(position - self.extra, self.columns)
        return f"row {row + 1}, column {column + 1}"


@dataclass(frozen=True, eq=False)
class PatchImages:
    """The images of a batch as the model takes them.

    Attributes:
        pixels: (B, C, H, W).
        patch: Height and width of a patch.
        mean: What was subtracted from each channel of pixels from 0 to 1; None where that is not known.
        deviation: By what it was then divided; likewise.
    """

    pixels: Tensor
    patch: tuple[int, int]
    mean: tuple[float, ...] | None = None
    deviation: tuple[float, ...] | None = None

    def grid(self, positions: int) -> PatchGrid | None:
        """The patches among so many positions; None where they are others, as after patches were merged."""
        height, width = self.pixels.shape[-2:]
        rows, columns = height // self.patch[0], width // self.patch[1]
        extra = positions - rows * columns
        return PatchGrid(rows, columns, extra) if rows and columns and 0 <= extra <= _MOST_EXTRA else None

    def thumbnail(self, row: int) -> str:
        """An image, cut to whole patches and at most 96 pixels a side, as a data URI."""
        from PIL import Image

        pixels = self.pixels[row].detach().double().cpu()
        if self.mean is not None and self.deviation is not None:
            mean, deviation = (
                torch.tensor(one).double()[:, None, None] for one in (self.mean, self.deviation)
            )
            pixels = pixels * deviation + mean
        else:
            low, high = pixels.min(), pixels.max()
            pixels = (pixels - low) / (high - low).clamp(min=1e-12)
        height, width = (
            size // patch * patch for size, patch in zip(pixels.shape[-2:], self.patch, strict=True)
        )
        pixels = (pixels[:, :height, :width].clamp(0, 1) * 255).round().to(torch.uint8)
        channels = pixels if pixels.shape[0] in (1, 3) else pixels[:1]
        mode = "RGB" if len(channels) == 3 else "L"
        content = bytes((channels.permute(1, 2, 0) if mode == "RGB" else channels[0]).flatten().tolist())
        picture = Image.frombytes(mode, (width, height), content)
        picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def patch_images(pixels: Tensor | None, config: Any, processor: Any = None) -> PatchImages | None:
    """What is known of the images of a batch; None where they are none, or the model does not cut them into patches.

    Args:
        pixels: (B, C, H, W), or None.
        config: The model's configuration, with a ``patch_size``.
        processor: What made them, with ``image_mean`` and ``image_std``.
    """
    size = getattr(config, "patch_size", None)
    sides: list[Any] = (
        [size, size] if isinstance(size, int) else list(size) if isinstance(size, list | tuple) else []
    )
    whole = len(sides) == 2 and all(isinstance(side, int) and side > 0 for side in sides)
    if pixels is None or pixels.dim() != 4 or not whole:
        return None
    known = [
        _of_channels(getattr(processor, name, None), pixels.shape[1])
        if getattr(processor, "do_normalize", False)
        else None
        for name in ("image_mean", "image_std")
    ]
    return PatchImages(pixels, (sides[0], sides[1]), *known)


def _of_channels(values: Any, channels: int) -> tuple[float, ...] | None:
    if isinstance(values, int | float):
        return (float(values),) * channels
    if not isinstance(values, list | tuple) or len(values) != channels:
        return None
    return tuple(map(float, values))


Measure = Callable[[Any], Tensor]
"""From what a model returned for B rows to (B,) numbers."""


@dataclass(frozen=True)
class Cursor:
    """A place between two batches, from which an interrupted run goes on; plain integers, for JSON.

    Attributes:
        document: Index (from 0) of the document that the next window comes from.
        window: How many windows of that document were already given.
        tokens: How many tokens were counted before this place.
        documents: How many documents gave at least one token before this place.
    """

    document: int = 0
    window: int = 0
    tokens: int = 0
    documents: int = 0


@dataclass(frozen=True)
class Batch:
    """What a model is called with once, and which of its tokens count. Tensors are on the CPU.

    Rows are padded on the right whatever the tokenizer's ``padding_side`` says: nothing is generated here,
    and on the right padding moves no position and is behind every causal mask.

    Attributes:
        inputs: The model's keyword arguments.
        counted: (B, n) bool, tokens of the encoder (or of the only stack) that count as queries: padding does
            not, nor tokens that overlap the window before. None: all of them.
        counted_decoder: (B, m) bool, the same for the decoder of an encoder-decoder model. None: all of them,
            or none.
        documents: (B,) number of each row's document, from 1: its line in a text file, its row in a table.
        windows: (B,) number of each row's window within its document, from 1.
        tokens: How many tokens this batch counts (rows, where the inputs do not say how many tokens they
            have).
        after: Where the next batch starts.
        fraction: Share of the source read so far, from 0 to 1, or None where the source does not know its
            length.
        tokenizer: What made the tokens, to have their texts; None where there is none.
        pictures: Which positions are which patches of which images; None where the input is no image.
        ids: (B, n) tokens as the tokenizer knows them, where they are no input. Default: the model's ``input_ids``.
        ids_decoder: (B, m), the same for the decoder.
        loss: From what the model returns to (B,) numbers, lower is better; None where nobody said.
        score: Likewise, higher is better.
    """

    inputs: dict[str, Tensor]
    counted: Tensor | None
    counted_decoder: Tensor | None
    documents: tuple[int, ...]
    windows: tuple[int, ...]
    tokens: int
    after: Cursor
    fraction: float | None = None
    tokenizer: Any = field(default=None, repr=False)
    pictures: PatchImages | None = field(default=None, repr=False)
    ids: Tensor | None = field(default=None, repr=False)
    ids_decoder: Tensor | None = field(default=None, repr=False)
    loss: Measure | None = field(default=None, repr=False)
    score: Measure | None = field(default=None, repr=False)

    @property
    def has_decoder(self) -> bool:
        """Whether there are tokens of a decoder beside those of an encoder."""
        return (
            "decoder_input_ids" in self.inputs
            or self.ids_decoder is not None
            or self.counted_decoder is not None
        )

    def tokens_of(self, *, decoder: bool) -> Tensor | None:
        """(B, n) ids of the tokens; None where the input is not text."""
        given, name = (self.ids_decoder, "decoder_input_ids") if decoder else (self.ids, "input_ids")
        return self.inputs.get(name) if given is None else given

    def real_tokens(self, *, decoder: bool) -> Tensor | None:
        """(B, n), nonzero where a token is no padding; None where nothing says so."""
        given = self.ids_decoder if decoder else self.ids
        if given is not None:
            return given != PADDING
        return self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")

    def of_sequences(self, count: int) -> Batch:
        """The batch as a layer sees it that attends in ``count`` sequences: itself, or each row cut into as many parts.

        Of parts nothing is known but their row and their number, which is that of the window.

        Raises:
            CaptureError: If rows cannot have been cut into so many parts.
        """
        rows = len(self.documents)
        parts, left = divmod(count, rows)
        if left or not parts:
            raise CaptureError(
                f"a layer attends in {count} sequences, and the batch has {rows} rows, so which row a query "
                "is of is not "
                "known. Give one input a batch"
            )
        if parts == 1:
            return self
        return replace(
            self,
            inputs={},
            counted=None,
            counted_decoder=None,
            ids=None,
            ids_decoder=None,
            documents=tuple(document for document in self.documents for _ in range(parts)),
            windows=tuple(range(1, parts + 1)) * rows,
            pictures=None,
        )

    def token(self, row: int, position: int, *, decoder: bool = False) -> str:
        """The token at a position, as text that a person can read.

        Args:
            row: Row of the batch, from 0.
            position: Position in the row, from 0.
            decoder: Whether the position is the decoder's, in an encoder-decoder model.

        Returns:
            The token's text; ``position k`` (from 1) where the input is not text.
        """
        ids = self._ids(row, decoder)
        if ids is None:
            return f"position {position + 1}"
        return token_text(self.tokenizer, int(ids[position]))

    def place(self, position: int, length: int) -> str:
        """What a position (from 0) of ``length`` is called that is no token: a patch of an image, or its number."""
        grid = None if self.pictures is None else self.pictures.grid(length)
        return f"position {position + 1}" if grid is None else grid.name(position)

    def is_text_of(self, length: int, *, decoder: bool = False) -> bool:
        """Whether the input is text with a token for each of ``length`` positions, padding included."""
        ids = self.tokens_of(decoder=decoder)
        return ids is not None and tuple(ids.shape[1:]) == (length,)

    def pieces(self, row: int, *, decoder: bool = False) -> tuple[str, ...]:
        """What each token of a row adds to its text, without padding; together they are the text.

        Args:
            row: Row of the batch, from 0.
            decoder: Whether the tokens are the decoder's, in an encoder-decoder model.

        Returns:
            A text a token, special tokens included; ids where there is no tokenizer, nothing where the input is not
            text.
        """
        ids = self._real_ids(row, decoder)
        if self.tokenizer is None:
            return tuple(f" {number}" for number in ids)
        return text_pieces(self.tokenizer, ids)

    def special(self, row: int, *, decoder: bool = False) -> tuple[bool, ...]:
        """Which tokens of a row are special ones, without padding."""
        known = set(getattr(self.tokenizer, "all_special_ids", ()))
        return tuple(number in known for number in self._real_ids(row, decoder))

    def _real_ids(self, row: int, decoder: bool) -> list[int]:
        ids = self._ids(row, decoder)
        if ids is None:
            return []
        mask = self.real_tokens(decoder=decoder)
        if mask is None or mask.shape[1:] != ids.shape:
            return ids.tolist()
        real = mask[row].nonzero()
        return ids[: int(real.max()) + 1 if len(real) else 0].tolist()

    def _ids(self, row: int, decoder: bool) -> Tensor | None:
        ids = self.tokens_of(decoder=decoder)
        return None if ids is None else ids[row]


# Which of the tokens count, and by what they are known: their texts, a mask of the model's inputs, their ids there.
_TOKENS = {
    "counted": ("tokens", "attention_mask", "input_ids"),
    "counted_decoder": ("tokens_decoder", "decoder_attention_mask", "decoder_input_ids"),
}
_TEXTS = tuple(texts for texts, _, _ in _TOKENS.values())
_NAMES = ("inputs", *_TOKENS, "documents", "windows", *_TEXTS, "loss", "score")


class KnownOfBatch:
    """What is known of a batch; see :class:`~fenchel.io.windows.ReadyBatches`.

    Args:
        batch: As it was given; empty where nothing is known but the inputs.
        inputs: The model's keyword arguments.
        rows: How many rows it has.
        number: Its number, from 1.
        texts: Gives token texts their numbers.

    Raises:
        InputError: If it has something of another name.
    """

    def __init__(
        self,
        batch: Mapping[str, Any],
        inputs: Mapping[str, Tensor],
        rows: int,
        number: int,
        texts: TokenTexts,
    ) -> None:
        self._batch, self._inputs, self._rows, self._number, self._texts = batch, inputs, rows, number, texts
        unknown = [name for name in batch if name not in _NAMES]
        if unknown:
            raise InputError(
                f"batch {number} has {shown(unknown[0])}; expected names among {', '.join(_NAMES)}."
            )

    @property
    def has_texts(self) -> bool:
        """Whether texts of tokens are known."""
        return any(self._batch.get(name) is not None for name in _TEXTS)

    def counted(self, name: str) -> Tensor | None:
        """Which tokens count: as was said, else those that have a text, else those that a mask does not pad."""
        result = self._batch.get(name)
        if result is None:
            texts, *named = _TOKENS[name]
            if (ids := self.ids(texts)) is not None:
                return ids != PADDING
            mask, ids = map(self._inputs.get, named)
            if mask is not None and mask.dim() == 2:
                return mask.bool()
            return None if ids is None else torch.ones_like(ids, dtype=torch.bool)
        if (
            not isinstance(result, Tensor)
            or result.dtype != torch.bool
            or result.dim() != 2
            or len(result) != self._rows
        ):
            got = f"{tuple(result.shape)} of {result.dtype}" if isinstance(result, Tensor) else shown(result)
            raise self._error(name, got, f"a tensor ({self._rows}, tokens) of torch.bool")
        return result.cpu()

    def ids(self, name: str) -> Tensor | None:
        """The tokens as numbers, (rows, tokens), with padding after the shorter rows."""
        rows = self._batch.get(name)
        if rows is None:
            return None
        expected = f"a list of token texts for each of {self._rows} rows"
        if not isinstance(rows, list | tuple) or len(rows) != self._rows:
            raise self._error(
                name, f"{len(rows)} rows" if isinstance(rows, list | tuple) else shown(rows), expected
            )
        for row in rows:
            if not isinstance(row, list | tuple) or not all(isinstance(text, str) for text in row):
                raise self._error(name, f"a row {shown(row)}", expected)
        mask = self._batch.get(name.replace("tokens", "counted"))
        longest = max(map(len, rows))
        length = longest if mask is None else mask.shape[1]
        if longest > length:
            raise self._error(name, f"a row of {longest} tokens", f"at most {length}, as its counted has")
        return self._texts.ids(rows, length)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A number a row."""
        result = self._batch.get(name)
        if result is None:
            return None
        if isinstance(result, Tensor):
            result = result.tolist()
        fits = isinstance(result, list | tuple) and len(result) == self._rows
        if not fits or not all(type(one) is int and one >= 1 for one in result):
            raise self._error(name, shown(result), f"{self._rows} whole numbers from 1")
        return tuple(result)

    def measure(self, name: str) -> Measure | None:
        """A function of what the model returns."""
        result: Measure | None = self._batch.get(name)
        if result is None or callable(result):
            return result
        raise self._error(
            name, shown(result), "a function of what the model returns, which gives a number a row"
        )

    def _error(self, name: str, got: str, expected: str) -> InputError:
        return InputError(f"batch {self._number} has {name} {got}; expected {expected}.")


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
        own = [number for number in range(len(self._images.paths)) if self.shard.takes(number)]
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
        names = ", ".join(self._images.paths[number].name for number in numbers[:3])
        try:
            result = self._processor(images=images, return_tensors="pt")[self._name]
        except Exception as error:  # processors are many, and fail in as many ways
            raise InputError(
                f"the image processor {type(self._processor).__name__} does not take {names}: {reason_of(error)}"
            ) from error
        if not isinstance(result, Tensor) or result.dim() != 4 or len(result) != len(numbers):
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise InputError(
                f"the image processor {type(self._processor).__name__} made pixel_values {shape} of "
                f"{len(numbers)} images; "
                f"expected ({len(numbers)}, channels, height, width)"
            )
        return result
