"""Batches of model inputs with their documents, windows, tokens and patches; batches of images."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import checked, reason_of
from fenchel.errors import CaptureError, InputError, require_packages
from fenchel.io.documents import file_sha256, listed_names, readable_file, table_rows, text_of
from fenchel.io.runs import WHOLE, Shard
from fenchel.io.storage import STRICT, NonNegativeInt

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

        The size of patches is that of the model's configuration, the mean and deviation those of the image processor.
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
        return Batch(
            inputs={},
            counted=None,
            counted_decoder=None,
            documents=tuple(document for document in self.documents for _ in range(parts)),
            windows=tuple(range(1, parts + 1)) * rows,
            tokens=self.tokens,
            after=self.after,
            fraction=self.fraction,
            tokenizer=self.tokenizer,
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
    """Raise if a model whose configuration has the size of its vocabulary has no embedding for a token.

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


# Endings of the files that are read as images.
SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")

# Number of images that an error names, and the most pixels of a side.
_NAMED, _MOST_PIXELS = 3, 4096


@dataclass(frozen=True)
class ImageFiles:
    """Images, each of which has been decoded once.

    Attributes:
        description: The folder or file as the user gave it.
        paths: The files, in the order of their names; of a table the rows, as if they were files in it.
        sha256: SHA-256 of the names and bytes of all files; of a table, of the file.
        labels: The class of each image, if known.
        stored: The bytes of each image, if they are rows of a table.
    """

    description: str
    paths: tuple[Path, ...]
    sha256: str
    labels: tuple[str, ...] | None = None
    stored: tuple[bytes, ...] | None = field(default=None, repr=False)

    def read(self, number: int, mode: str = "RGB") -> Any:
        """The decoded image of Pillow; the first of several frames.

        Args:
            number: Index of the image, from 0.
            mode: Mode of Pillow, such as ``RGB`` or ``L``.

        Raises:
            InputError: If it can no longer be read.
        """
        try:
            return _picture(self.content(number), mode)
        except (OSError, InputError) as error:
            raise InputError(f"{self.paths[number]} can no longer be read: {reason_of(error)}") from error

    def content(self, number: int) -> bytes:
        """The bytes of an image."""
        return self.paths[number].read_bytes() if self.stored is None else self.stored[number]


def open_images(source: str | Path, *, label_column: str | None = None) -> ImageFiles:
    """Open the images of a folder, of its folders named by class, or of a table; or one image.

    Args:
        source: A folder of images, or of folders of images named by class; a Parquet file with a column of images as
            the ``datasets`` library writes it; or an image.
        label_column: Column of a Parquet file that holds the class of each image, by name or number.

    Raises:
        InputError: If the folder does not exist, has no image, or has files that cannot be read as images; or if a
            column is missing or named without a table.
        MissingExtraError: If Pillow is not installed.
    """
    place: Path = checked("images", source)
    if place.suffix.lower() == ".parquet" and not place.is_dir():
        return _images_of_table(place, str(source), label_column)
    if label_column is not None:
        raise InputError(
            f"label column {label_column!r} was given, but {place} is not a table. Leave it out and use one folder "
            "per class, or give a parquet file."
        )
    paths, labels = _image_paths(place)
    names = [path.name if labels is None else f"{path.parent.name}/{path.name}" for path in paths]
    result = ImageFiles(str(source), paths, "", labels)
    return replace(result, sha256=_readable(result, names, place))


def _readable(images: ImageFiles, names: Sequence[str], place: Path) -> str:
    """Decode every image, and return the digest of their names and bytes.

    Raises:
        InputError: Naming the first images that cannot be read.
    """
    digest, wrong = hashlib.sha256(), []
    for number, name in enumerate(names):
        try:
            content = images.content(number)
            _picture(content, "RGB")
        except (OSError, InputError) as error:
            wrong.append(f"{name} ({reason_of(error)})")
            continue
        digest.update(f"{len(name)} {name} {len(content)} ".encode())
        digest.update(content)
    if wrong:
        more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
        raise InputError(
            f"{len(wrong)} of {len(names)} images in {place} cannot be read: {', '.join(wrong[:_NAMED])}{more}. Fix "
            "or remove them."
        )
    return digest.hexdigest()


def _image_paths(place: Path) -> tuple[tuple[Path, ...], tuple[str, ...] | None]:
    """The image files, and the classes by which their folders are named."""
    if place.is_file():
        return (place,), None
    if not place.is_dir():
        raise InputError(f"there is no folder {place}. Give a folder of images, or one image.")
    try:
        files = sorted(place.iterdir())
        if paths := _with_suffix(files):
            return paths, None
        folders = [path for path in files if path.is_dir()]
        paths = tuple(path for folder in folders for path in _with_suffix(sorted(folder.iterdir())))
    except OSError as error:
        raise InputError(f"{place} cannot be read: {reason_of(error)}") from error
    if not paths:
        others = sum(path.is_file() for path in files)
        inside = f"; it has {others} other files" if others else ""
        raise InputError(
            f"{place} has no image{inside}. Expected files that end in {', '.join(SUFFIXES)}, in it or in one folder "
            "per class."
        )
    return paths, tuple(path.parent.name for path in paths)


def _with_suffix(paths: list[Path]) -> tuple[Path, ...]:
    return tuple(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _images_of_table(path: Path, description: str, label_column: str | None) -> ImageFiles:
    rows = {f"row {number}": row for number, row, _ in table_rows(readable_file(path))}
    if not rows:
        raise InputError(f"{path} has no rows. Give a parquet file with at least one image.")
    # The datasets library writes an image as its bytes and its path.
    column = next((name for row in rows.values() for name, value in row.items() if _has_bytes(value)), None)
    if column is None:
        raise InputError(
            f"{path} has no column of images, such as the datasets library writes; it has "
            f"{listed_names(rows['row 1'])}. Give a parquet file with one, or a folder of images."
        )
    labels = None
    if label_column is not None:
        where = {name: f"{name} of {path}" for name in rows}
        labels = tuple(text_of(row, label_column, where[name], label=True) for name, row in rows.items())
    stored = tuple((row[column] or {}).get("bytes") or b"" for row in rows.values())
    paths = tuple(path / name for name in rows)
    images = ImageFiles(description, paths, file_sha256(path), labels, stored)
    _readable(images, list(rows), path)
    return images


def _has_bytes(value: Any) -> bool:
    return isinstance(value, dict) and "bytes" in value


def _picture(content: bytes, mode: str) -> Any:
    """An image of Pillow. The size is checked before decoding, since a few hundred bytes can claim any size."""
    require_packages("report", "PIL")
    from PIL import Image, UnidentifiedImageError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # such sizes are refused below
            with Image.open(io.BytesIO(content)) as picture:
                if max(picture.size) > _MOST_PIXELS:
                    raise InputError(
                        f"{picture.height:,} x {picture.width:,} pixels; a side may have at most {_MOST_PIXELS:,}"
                    )
                if picture.format == "PNG":
                    # Its decoder checks neither checksums nor the end of the file.
                    with Image.open(io.BytesIO(content)) as again:
                        again.verify()
                return picture.convert(mode)
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError("not an image") from None
    except Exception as error:  # decoders raise exceptions of many types on broken files
        raise InputError(f"broken: {reason_of(error)}") from error


class ImageBatches:
    """Batches of images, processed by the model's image processor; each image is a document.

    Args:
        images: The images.
        processor: An image processor of ``transformers``, called with a list of images; ``input_name``, if it has one,
            is the model's argument for them.
        config: The model's configuration, with the number of channels and the size of patches.
        batch_size: Number of images in a batch.
        shard: The share of the images.

    Raises:
        InputError: If an option is out of range; while reading, if the processor rejects an image.
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
        shard: Shard = WHOLE,
    ) -> None:
        self._name = str(getattr(processor, "input_name", "pixel_values"))
        self._images, self._processor, self._config = images, processor, config
        self._mode = "L" if getattr(config, "num_channels", 3) == 1 else "RGB"
        self.batch_size = checked("batch_size", batch_size)
        self.shard = shard
        self.description, self.text_sha256 = images.description, images.sha256

    def batches(self, start: Cursor = BEGINNING) -> Iterator[Batch]:
        """The batches from a place on, ``Batch.after`` of the previous one, each of images of one size.

        Raises:
            InputError: If an image cannot be read or processed.
        """
        taken = [number for number in range(len(self._images.paths)) if self.shard.takes(number)]
        left = [number for number in taken if number >= start.document]
        for begin in range(0, len(left), self.batch_size):
            numbers = left[begin : begin + self.batch_size]
            pixels, done = self._pixels(numbers), begin + len(numbers)
            yield Batch(
                inputs={self._name: pixels},
                counted=None,
                counted_decoder=None,
                documents=tuple(number + 1 for number in numbers),
                windows=(1,) * len(numbers),
                tokens=len(numbers),
                after=Cursor(numbers[-1] + 1, 0, start.tokens + done, start.documents + done),
                fraction=(len(taken) - len(left) + done) / len(taken),
                pictures=PatchImages.of(pixels, self._config, self._processor),
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
                f"the image processor {type(self._processor).__name__} returned pixel_values {shape} for "
                f"{len(numbers)} images; expected ({len(numbers)}, channels, height, width)"
            )
        return result
