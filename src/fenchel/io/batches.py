"""Batches of model inputs with their documents, windows, tokens and patches; checks of ready-made ones."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import CaptureError, InputError
from fenchel.io.storage import STRICT, NonNegativeInt
from fenchel.tensors import INTEGERS

_LONGEST_SIDE = 96
_MOST_EXTRA = 16  # positions before the patches: class, distillation and register tokens


@dataclass(frozen=True)
class PatchGrid:
    """A grid of patches in a sequence: row by row, after ``extra`` other positions.

    Attributes:
        rows: Number of patches from top to bottom.
        columns: Number of patches from left to right.
        extra: Number of positions before them, such as that of a class token.
    """

    rows: int
    columns: int
    extra: int

    def name(self, position: int) -> str:
        """The name of a position (from 0).

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
    """The images of a batch as inputs of a model.

    Attributes:
        pixels: (B, C, H, W).
        patch: Height and width of a patch.
        mean: (C, 1, 1) mean by which each channel, scaled to [0, 1], was normalised; None if unknown.
        deviation: Standard deviation likewise.
    """

    pixels: Tensor
    patch: tuple[int, int]
    mean: Tensor | None = None
    deviation: Tensor | None = None

    @classmethod
    def of(cls, pixels: Tensor | None, config: Any, processor: Any = None) -> PatchImages | None:
        """The images of a batch; None if there are none, or the model does not cut them into patches.

        Args:
            pixels: (B, C, H, W), or None.
            config: The model's configuration, with a ``patch_size``.
            processor: The image processor, with ``image_mean`` and ``image_std``.
        """
        size: Any = getattr(config, "patch_size", None)
        patch: Any = tuple(size) if isinstance(size, list | tuple) else (size, size)
        is_pair = len(patch) == 2 and all(isinstance(side, int) and side > 0 for side in patch)
        if pixels is None or pixels.dim() != 4 or not is_pair:
            return None
        moments = list[Tensor]()
        if getattr(processor, "do_normalize", False):
            numbers = (getattr(processor, name, None) for name in ("image_mean", "image_std"))
            given = [torch.tensor(one).double().reshape(-1, 1, 1) for one in numbers if one is not None]
            moments = [one for one in given if len(one) in (1, pixels.shape[1])]
        return cls(pixels, patch, *(moments if len(moments) == 2 else ()))

    def grid(self, positions: int) -> PatchGrid | None:
        """The grid of patches in a sequence of this length; None if they do not fit it, as after merging patches."""
        height, width = self.pixels.shape[-2:]
        rows, columns = height // self.patch[0], width // self.patch[1]
        extra = positions - rows * columns
        return PatchGrid(rows, columns, extra) if rows and columns and 0 <= extra <= _MOST_EXTRA else None

    def thumbnail(self, row: int) -> str:
        """An image, cut to whole patches and scaled to at most 96 pixels a side, as a data URI."""
        from PIL import Image

        pixels = self.pixels[row].detach().double().cpu()
        if self.mean is not None and self.deviation is not None:
            pixels = pixels * self.deviation + self.mean
        else:
            low, high = pixels.aminmax()
            pixels = (pixels - low) / (high - low).clamp(min=1e-12)
        height, width = (
            size // patch * patch for size, patch in zip(pixels.shape[-2:], self.patch, strict=True)
        )
        pixels = (pixels[:, :height, :width].clamp(0, 1) * 255).round().to(torch.uint8)
        picture = Image.fromarray((pixels.permute(1, 2, 0) if len(pixels) == 3 else pixels[0]).numpy())
        picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        file = io.BytesIO()
        picture.save(file, "JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


# From the output of a model for B rows to (B,) numbers.
OutputMeasure = Callable[[Any], Tensor]


@dataclass(frozen=True)
class Cursor:
    """A place between two batches, from which an interrupted run is resumed; integers, for JSON.

    Attributes:
        document: Index (from 0) of the document of the next window.
        window: Number of windows of that document before this place.
        tokens: Number of tokens counted before this place.
        documents: Number of documents with at least one token before this place.
    """

    __pydantic_config__ = STRICT

    document: NonNegativeInt
    window: NonNegativeInt
    tokens: NonNegativeInt
    documents: NonNegativeInt


BEGINNING = Cursor(0, 0, 0, 0)


@dataclass(frozen=True)
class Batch:
    """The inputs of one call of a model, and the tokens that count. Tensors are on the CPU.

    Rows are padded on the right whatever the tokenizer's ``padding_side``: nothing is generated, and padding on the
    right moves no position and is hidden by every causal mask.

    Attributes:
        inputs: The model's keyword arguments.
        counted: (B, n) bool, the tokens of the encoder (or of the only stack) that count as queries: neither padding
            nor tokens that overlap the previous window. None: all of them.
        counted_decoder: (B, m) bool, the same for the decoder of an encoder-decoder model. None: all of them,
            or none.
        documents: (B,) number of each row's document, from 1: its line in a text file, its row in a table.
        windows: (B,) number of each row's window within its document, from 1.
        tokens: Number of tokens that count; of rows, if the inputs do not tell the number of tokens.
        after: Start of the next batch.
        fraction: Share of the source read so far, from 0 to 1; None if its length is unknown.
        tokenizer: Decodes the tokens; None if there is none.
        pictures: The images and their patches; None if the input is no image.
        ids: (B, n) ids of the tokens, if they are no input. Default: the model's ``input_ids``.
        ids_decoder: (B, m), the same for the decoder.
        loss: From the output of the model to (B,) numbers, lower is better; None if not given.
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
    loss: OutputMeasure | None = field(default=None, repr=False)
    score: OutputMeasure | None = field(default=None, repr=False)

    @property
    def has_decoder(self) -> bool:
        """Whether there are tokens of a decoder besides those of an encoder."""
        return (
            "decoder_input_ids" in self.inputs
            or self.ids_decoder is not None
            or self.counted_decoder is not None
        )

    def tokens_of(self, *, decoder: bool) -> Tensor | None:
        """(B, n) ids of the tokens; None if the input is not text."""
        ids, name = (self.ids_decoder, "decoder_input_ids") if decoder else (self.ids, "input_ids")
        return self.inputs.get(name) if ids is None else ids

    def real_tokens(self, *, decoder: bool) -> Tensor | None:
        """(B, n), nonzero where a token is not padding; None if there is no mask."""
        ids = self.ids_decoder if decoder else self.ids
        if ids is not None:
            return ids != PADDING
        return self.inputs.get("decoder_attention_mask" if decoder else "attention_mask")

    def of_sequences(self, count: int) -> Batch:
        """The batch for a layer that attends in ``count`` sequences: itself, or with each row cut into equal parts.

        A part keeps its row's document; its number is that of the window.

        Raises:
            CaptureError: If ``count`` is not a multiple of the number of rows.
        """
        rows = len(self.documents)
        parts, left = divmod(count, rows)
        if left or not parts:
            raise CaptureError(
                f"a layer attends over {count} sequences, but the batch has {rows} rows, so queries cannot be "
                "assigned to rows. Give one input per batch"
            )
        if parts == 1:
            return self
        documents = (document for document in self.documents for _ in range(parts))
        windows = tuple(range(1, parts + 1)) * rows
        return Batch(
            {}, None, None, tuple(documents), windows, self.tokens, self.after, self.fraction, self.tokenizer
        )


_PAD = "[PAD]"

_SPECIAL = re.compile(r"\[\S+\]|<\S+>")
_BEGINS = ("▁", "Ġ")


def _number_of(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


# The id of padding in ``TokenTexts``.
PADDING = _number_of(_PAD)


class TokenTexts:
    """A tokenizer of texts that are cut into tokens already; the id of a token depends on its text alone.

    Texts in square or angle brackets are special tokens. If words begin with a space, ``▁`` or ``Ġ``, other texts
    continue a word; else those that begin with ``##`` do.

    Example:
        >>> texts = TokenTexts()
        >>> ids = texts.ids([["[CLS]", "no", "##thing"], ["[CLS]"]], 3)
        >>> tuple(ids.shape), texts.decode(ids[0].tolist()), texts.decode(ids[1].tolist())
        ((2, 3), '[CLS] nothing', '[CLS] [PAD] [PAD]')
    """

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._begin = 0

    def ids(self, rows: Sequence[Sequence[str]], length: int) -> Tensor:
        """(rows, length) ids of texts, padded on the right."""
        padded = [[*row, *[_PAD] * (length - len(row))] for row in rows]
        return torch.tensor([[self._number(text) for text in row] for row in padded], dtype=torch.int64)

    @property
    def all_special_ids(self) -> list[int]:
        """The special tokens among those seen so far."""
        return [number for number, text in self._texts.items() if _SPECIAL.fullmatch(text)]

    def get_vocab(self) -> dict[str, int]:
        """Every text seen so far, with its id."""
        return {text: number for number, text in self._texts.items()}

    def convert_ids_to_tokens(self, number: int) -> str:
        """The text of a token, with ``▁`` for a leading space."""
        return self._texts.get(number, str(number))

    def decode(self, numbers: Sequence[int]) -> str:
        """The text of a sequence of tokens."""
        spaced = self._begin * 20 > len(self._texts)
        decoded = ""
        for number in numbers:
            text = self.convert_ids_to_tokens(number)
            begins = text.startswith(_BEGINS) or (not spaced and not text.startswith("##"))
            begins = begins or _SPECIAL.fullmatch(text) is not None
            word = text[1:] if text.startswith(_BEGINS) else text.removeprefix("##") if decoded else text
            decoded += f" {word}" if decoded and begins else word
        return decoded

    def _number(self, text: str) -> int:
        text = f"▁{text[1:]}" if text.startswith(" ") else text
        number = _number_of(text)
        if number not in self._texts:
            self._texts[number] = text
            self._begin += text.startswith(_BEGINS)
        return number


def check_known(ids: Sequence[int], tokenizer: Any, config: Any, *, target: bool = False) -> None:
    """Raise if the model has no embedding for a token.

    Args:
        ids: The ids of the tokens.
        tokenizer: The tokenizer, if any.
        config: The model's configuration; without a size of the vocabulary nothing is checked.
        target: Whether they are tokens of an encoder-decoder's target.

    Raises:
        InputError: Naming the first such token.
    """
    known = vocabulary_size(config, target=target)
    if known is None or not ids or 0 <= min(ids) <= max(ids) < known:
        return
    number = next(number for number in ids if not 0 <= number < known)
    if tokenizer is None:
        raise InputError(f"token id {number} is out of range; expected 0 to {known - 1}. Correct the ids.")
    token = tokenizer.convert_ids_to_tokens(number) if hasattr(tokenizer, "convert_ids_to_tokens") else number
    raise InputError(
        f"the tokenizer maps {token!r} to id {number}, but the model has ids 0 to {known - 1}. Use the tokenizer that "
        "the model was trained with, or resize the model's embeddings."
    )


def vocabulary_size(config: Any, *, target: bool) -> int | None:
    """The size of a model's vocabulary; None if unknown."""
    names = ("decoder_vocab_size", "vocab_size") if target else ("vocab_size",)
    sizes = (getattr(config, name, None) for name in names)
    return next((size for size in sizes if isinstance(size, int) and size > 0), None)


# For each mask of counted tokens: the entry with the tokens' texts, the model's mask, and the model's ids.
_TOKENS = {
    "counted": ("tokens", "attention_mask", "input_ids"),
    "counted_decoder": ("tokens_decoder", "decoder_attention_mask", "decoder_input_ids"),
}
_TEXTS = tuple(texts for texts, _, _ in _TOKENS.values())
_NAMES = ("inputs", *_TOKENS, "documents", "windows", *_TEXTS, "loss", "score")
_IDS = tuple(ids for _, _, ids in _TOKENS.values())


def model_inputs(batch: Any) -> Any:
    """The model's keyword arguments: the mapping under ``inputs``, or the batch itself."""
    inputs = batch.get("inputs") if isinstance(batch, Mapping) else None
    return inputs if isinstance(inputs, Mapping) else batch


class ReadyBatch:
    """One of :class:`~fenchel.io.windows.ReadyBatches`, checked.

    Args:
        batch: The model's keyword arguments, or a mapping with these under ``inputs`` and other entries.
        number: Its number, from 1.
        config: The model's configuration.
        texts: Assigns ids to the texts of tokens.

    Attributes:
        inputs: The model's keyword arguments.
        rows: Number of rows.

    Raises:
        InputError: If the inputs are not tensors with one batch dimension, the model does not know an id, or there is
            an entry of another name.
    """

    def __init__(self, batch: Any, number: int, config: Any, texts: TokenTexts) -> None:
        self.inputs: Mapping[str, Tensor] = model_inputs(batch)
        self._entries: Mapping[str, Any] = {} if batch is self.inputs else batch
        self._number, self._texts = number, texts
        self.rows = self._batch_size()
        for name in _IDS:
            if (ids := self.inputs.get(name)) is not None:
                self._check_ids(name, ids, config)
        pixels = self.inputs.get("pixel_values")
        if pixels is not None and self._is_one_image(pixels, getattr(config, "num_channels", 3)):
            raise self._without_batch("pixel_values", pixels, "(batch, channels, height, width)")
        if unknown := [name for name in self._entries if name not in _NAMES]:
            raise InputError(
                f"batch {number} has {shown(unknown[0])}; expected names among {', '.join(_NAMES)}."
            )

    def _batch_size(self) -> int:
        inputs, number = self.inputs, self._number
        if not isinstance(inputs, Mapping) or not all(isinstance(value, Tensor) for value in inputs.values()):
            raise InputError(
                f"model input {number} is {shown(inputs)}; expected a mapping of the names of the model's arguments to "
                "tensors, such as {'input_ids': tensor}."
            )
        sizes = {name: value.shape[0] for name, value in inputs.items() if value.dim() > 0}
        # The patches of all images are concatenated, beside a grid with one row per image.
        if self._grids:
            return sizes.get("input_ids", sizes[self._grids[0]])
        if len(set(sizes.values())) != 1:
            raise InputError(
                f"model input {number} has tensors of different batch sizes, {sizes}; expected one."
            )
        return next(iter(sizes.values()))

    @property
    def _grids(self) -> list[str]:
        return [name for name, value in self.inputs.items() if name.endswith("grid_thw") and value.dim()]

    def _is_one_image(self, pixels: Tensor, channels: int) -> bool:
        # Patches have three dimensions too: rows, patches, width.
        if self._grids or pixels.dim() != 3 or len(pixels) not in (1, 3, channels):
            return pixels.dim() == 2 and not self._grids
        others = [other for name, other in self.inputs.items() if name != "pixel_values" and other.dim()]
        has_rows = any(len(other) == len(pixels) for other in others)
        return pixels.shape[1] == pixels.shape[2] or (len(pixels) == channels and not has_rows)

    def _check_ids(self, name: str, ids: Tensor, config: Any) -> None:
        if ids.dim() == 1:
            raise self._without_batch(name, ids, "(batch, tokens)")
        if ids.dtype not in INTEGERS or ids.dim() != 2 or not ids.numel():
            raise InputError(
                f"model input {self._number} has {name} of shape {tuple(ids.shape)} and {ids.dtype}; expected "
                "integers of shape (batch, tokens), at least one token."
            )
        check_known(ids.flatten().tolist(), None, config, target=name.startswith("decoder"))

    def _without_batch(self, name: str, tensor: Tensor, expected: str) -> InputError:
        return InputError(
            f"model input {self._number} has {name} of shape {tuple(tensor.shape)}, which has no batch dimension; "
            f"expected {expected}. For a batch of one write {name}.unsqueeze(0)."
        )

    @property
    def has_texts(self) -> bool:
        """Whether there are texts of tokens."""
        return any(self._entries.get(name) is not None for name in _TEXTS)

    def counted(self, name: str) -> Tensor | None:
        """The tokens that count: as given, else those with a text, else those that the model's mask lets through."""
        mask = self._entries.get(name)
        if mask is None:
            texts, mask_name, ids_name = _TOKENS[name]
            if (ids := self.ids(texts)) is not None:
                return ids != PADDING
            mask, ids = self.inputs.get(mask_name), self.inputs.get(ids_name)
            if mask is not None and mask.dim() == 2:
                return mask.bool()
            return None if ids is None else torch.ones_like(ids, dtype=torch.bool)
        is_mask = isinstance(mask, Tensor) and mask.dtype == torch.bool and mask.dim() == 2
        if not is_mask or len(mask) != self.rows:
            got = f"{tuple(mask.shape)} of {mask.dtype}" if isinstance(mask, Tensor) else shown(mask)
            raise self._error(name, got, f"a tensor ({self.rows}, tokens) of torch.bool")
        return mask.cpu()

    def ids(self, name: str) -> Tensor | None:
        """(rows, tokens) ids of the texts of tokens, padded on the right."""
        rows = self._entries.get(name)
        if rows is None:
            return None
        expected = f"a list of token texts for each of {self.rows} rows"
        if not isinstance(rows, list | tuple) or len(rows) != self.rows:
            raise self._error(name, shown(rows), expected)
        for row in rows:
            if not isinstance(row, list | tuple) or not all(isinstance(text, str) for text in row):
                raise self._error(name, f"a row {shown(row)}", expected)
        mask = self._entries.get(name.replace("tokens", "counted"))
        longest = max(map(len, rows))
        length = longest if mask is None else mask.shape[1]
        if longest > length:
            raise self._error(name, f"a row of {longest} tokens", f"at most {length}, as in its counted")
        return self._texts.ids(rows, length)

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """A number for each row."""
        numbers = self._entries.get(name)
        if isinstance(numbers, Tensor):
            numbers = numbers.tolist()
        if numbers is None:
            return None
        fits = isinstance(numbers, list | tuple) and len(numbers) == self.rows
        if not fits or not all(type(number) is int and number >= 1 for number in numbers):
            raise self._error(name, shown(numbers), f"{self.rows} whole numbers from 1")
        return tuple(numbers)

    def measure(self, name: str) -> OutputMeasure | None:
        """A function of the model's output."""
        function: OutputMeasure | None = self._entries.get(name)
        if function is None or callable(function):
            return function
        expected = "a function of the model's output that returns one number per row"
        raise self._error(name, shown(function), expected)

    def _error(self, name: str, got: str, expected: str) -> InputError:
        return InputError(f"batch {self._number} has {name} {got}; expected {expected}.")
