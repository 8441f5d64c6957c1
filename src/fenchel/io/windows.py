"""What gives batches: texts cut into windows, and inputs that are ready."""

from __future__ import annotations

import ctypes
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import checked, shown
from fenchel.errors import InputError
from fenchel.io.batches import Batch, Cursor, KnownOfBatch, patch_images
from fenchel.io.documents import Document, Documents
from fenchel.io.runs import Shard
from fenchel.io.tokens import (
    TokenTexts,
    check_known,
    decoder_start,
    longest_window,
    padding_token,
    pieces,
    special_tokens,
    token_ids,
)
from fenchel.tensors import INTEGERS


def tensors_digest(batches: Iterable[Mapping[str, Tensor]]) -> str:
    """SHA-256 of tensors with their names, shapes and types.

    Args:
        batches: Dense tensors by name.

    Returns:
        64 hexadecimal digits.

    Example:
        >>> import torch
        >>> one = [{"x": torch.zeros(2)}]
        >>> tensors_digest(one) == tensors_digest([{"x": torch.zeros(2)}])
        True
        >>> tensors_digest(one) == tensors_digest([{"y": torch.zeros(2)}])
        False
    """
    digest = hashlib.sha256()
    for batch in batches:
        for name, tensor in sorted(batch.items()):
            digest.update(f"{len(name)} {name} {tuple(tensor.shape)} {tensor.dtype} ".encode())
            _add(digest, tensor)
        digest.update(b";")
    return digest.hexdigest()


def _add(digest: hashlib._Hash, tensor: Tensor) -> None:
    kept = tensor.detach().cpu().contiguous()
    # Tensors show their memory through numpy only, which reading needs for nothing else.
    if kept.numel():
        digest.update((ctypes.c_ubyte * (kept.numel() * kept.element_size())).from_address(kept.data_ptr()))


_BEGINNING = Cursor()
_ONLY_SHARD = Shard()


class ReadyBatches:
    """Inputs that are ready for the model, such as ``pixel_values``, each given as one batch.

    A batch is a mapping of the model's keyword arguments to tensors, or a mapping of these under ``inputs`` with any of

    * ``counted``, ``counted_decoder``: (B, n) bool, which tokens count as queries, and those of a decoder beside an
      encoder.
    * ``documents``, ``windows``: a number from 1 for each row.
    * ``tokens``, ``tokens_decoder``: a list of token texts for each row, as
      :class:`~fenchel.io.batches.TokenTexts` reads them; shorter rows are padded at the end.
    * ``loss``, ``score``: functions of what the model returns, which give one number a row.

    Args:
        inputs: The batches.
        config: The model's configuration; it says which ids there are.
        max_tokens: Stop at the first batch at which this many tokens have been counted, over all shards.
            Where inputs carry neither ids nor a mask, a row counts as one. Default: no limit.
        shard: Which of the batches to take.
        loader: The file that gave them, if one did.

    Raises:
        InputError: If an option is out of range.

    Example:
        >>> images = ReadyBatches([{"pixel_values": torch.zeros(2, 3, 8, 8)}])
        >>> [batch.documents for batch in images.batches()]
        [(1, 2)]
    """

    max_length = None
    stride = None

    def __init__(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        config: Any = None,
        max_tokens: int | None = None,
        shard: Shard = _ONLY_SHARD,
        loader: str | None = None,
    ) -> None:
        self.description = "ready-made model inputs" if loader is None else f"what {loader} loads"
        self.reads = "inputs" if loader is None else "examples"
        self._config, self._texts = config, TokenTexts()
        self.inputs = inputs
        self.max_tokens = checked("max_tokens", max_tokens)
        self.shard = shard

    @property
    def text_sha256(self) -> str | None:
        """Of all inputs; None where they cannot be read twice, or are none."""
        if not isinstance(self.inputs, list | tuple):
            return None
        inputs = [_inputs_of(batch) for batch in self.inputs]
        if not all(map(_is_dense, inputs)):
            return None
        return tensors_digest(
            {**own, **({} if own is batch else _beside_inputs(batch))}
            for own, batch in zip(inputs, self.inputs, strict=True)
        )

    def batches(self, start: Cursor = _BEGINNING) -> Iterator[Batch]:
        """Gives the batches from a place on.

        Args:
            start: ``Batch.after`` of the last batch that was dealt with. Default: the beginning.

        Yields:
            One batch for each mapping.

        Raises:
            InputError: If there are no inputs, or one of them is not a mapping of tensors with one batch
                dimension.
        """
        budget = self.shard.share(self.max_tokens)
        length = len(self.inputs) if isinstance(self.inputs, Sized) else None
        place, rows_before, number = start, 0, 0
        for number, batch in enumerate(self.inputs, start=1):
            inputs = _inputs_of(batch)
            rows = _rows(inputs, number)
            _check_batched(inputs, number, self._config)
            self._check_ids(inputs, number)
            rows_before += rows
            if number <= start.document or not self.shard.takes(number - 1):
                continue
            if place.tokens >= budget:
                return
            known = KnownOfBatch(batch if batch is not inputs else {}, inputs, rows, number, self._texts)
            counted = known.counted("counted")
            tokens = rows if counted is None else int(counted.sum())
            windows = known.numbers("windows") or (1,) * rows
            place = Cursor(number, 0, place.tokens + tokens, place.documents + windows.count(1))
            yield Batch(
                inputs=dict(inputs),
                counted=counted,
                counted_decoder=known.counted("counted_decoder"),
                documents=known.numbers("documents") or tuple(range(rows_before - rows + 1, rows_before + 1)),
                windows=windows,
                tokens=tokens,
                after=place,
                fraction=max(number / length if length else 0.0, place.tokens / budget) or None,
                tokenizer=self._texts if known.has_texts else None,
                pictures=patch_images(inputs.get("pixel_values"), self._config),
                ids=known.ids("tokens"),
                ids_decoder=known.ids("tokens_decoder"),
                loss=known.measure("loss"),
                score=known.measure("score"),
            )
        if number == 0:
            raise InputError("there are no model inputs to read: the iterable gave none.")

    def _check_ids(self, inputs: Mapping[str, Tensor], number: int) -> None:
        for name, target in (("input_ids", False), ("decoder_input_ids", True)):
            ids = inputs.get(name)
            if ids is None:
                continue
            if ids.dtype not in INTEGERS or ids.dim() != 2 or not ids.numel():
                raise InputError(
                    f"model input {number} has {name} of shape {tuple(ids.shape)} and {ids.dtype}; expected whole "
                    "numbers (batch, tokens), of one token at least."
                )
            check_known(ids.flatten().tolist(), None, self._config, target=target)


def ready_made(texts: Any, tokenizer: Any) -> bool:
    """Whether what is to be read are model inputs rather than texts.

    Args:
        texts: A path, strings, or mappings of tensors.
        tokenizer: The tokenizer, if one was given.
    """
    if isinstance(texts, str | Path):
        return False
    if isinstance(texts, Mapping):
        raise InputError(
            "texts is one mapping; expected a list of them, each what the model is called with. "
            "Write [inputs]."
        )
    if not isinstance(texts, Iterable):
        raise InputError(f"texts is {shown(texts)}; expected a path, strings, or mappings of model inputs.")
    first = texts[0] if isinstance(texts, Sequence) and texts else None
    return isinstance(first, Mapping) or (first is None and tokenizer is None)


def _inputs_of(batch: Any) -> Any:
    """The model's keyword arguments, which are the batch itself where nothing else is known of it."""
    own = batch.get("inputs") if isinstance(batch, Mapping) else None
    return own if isinstance(own, Mapping) else batch


def _beside_inputs(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    """What is given beside the inputs of a batch, as tensors to digest; functions have no content."""
    result = {}
    for name, value in batch.items():
        if name == "inputs" or value is None or callable(value):
            continue
        if not isinstance(value, Tensor):
            value = torch.frombuffer(bytearray(json.dumps(value, default=repr).encode()), dtype=torch.uint8)
        result[f"beside inputs: {name}"] = value
    return result


def _is_dense(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) and all(
        isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested
        for value in inputs.values()
    )


def _check_batched(inputs: Mapping[str, Tensor], number: int, config: Any) -> None:
    """Refuse one text or one image that stands where a batch of them is expected."""
    single = [
        name for name in ("input_ids", "decoder_input_ids") if name in inputs and inputs[name].dim() == 1
    ]
    has_grid = any(name.endswith(_GRID) for name in inputs)
    if (
        "pixel_values" in inputs
        and not has_grid
        and _is_one_image(inputs, getattr(config, "num_channels", 3))
    ):
        single.append("pixel_values")
    for name in single:
        shape = tuple(inputs[name].shape)
        expected = "(batch, channels, height, width)" if name == "pixel_values" else "(batch, tokens)"
        raise InputError(
            f"model input {number} has {name} of shape {shape}, which has no batch dimension; expected "
            f"{expected}. For a "
            f"batch of one write {name}.unsqueeze(0)."
        )


def _is_one_image(inputs: Mapping[str, Tensor], channels: int) -> bool:
    """Whether ``pixel_values`` have no batch: patches that are cut have three dimensions too, rows, patches, width."""
    pixels = inputs["pixel_values"]
    if pixels.dim() != 3 or len(pixels) not in (1, 3, channels):
        return pixels.dim() == 2
    others = [other for name, other in inputs.items() if name != "pixel_values" and other.dim()]
    has_rows = any(len(other) == len(pixels) for other in others)
    return pixels.shape[1] == pixels.shape[2] or (len(pixels) == channels and not has_rows)


_GRID = "grid_thw"


def _rows(inputs: Mapping[str, Tensor], number: int) -> int:
    if not isinstance(inputs, Mapping) or not all(isinstance(value, Tensor) for value in inputs.values()):
        raise InputError(
            f"model input {number} is a {type(inputs).__name__}, not a mapping of names to tensors. Without "
            "a tokenizer, give what the model is called with, such as {'pixel_values': tensor}."
        )
    sizes = {name: value.shape[0] for name, value in inputs.items() if value.dim() > 0}
    # The patches of all images, one after another, stand beside a grid with a row an image.
    grids = [size for name, size in sizes.items() if name.endswith(_GRID)]
    if grids:
        return sizes.get("input_ids", grids[0])
    if len(set(sizes.values())) != 1:
        raise InputError(f"model input {number} has no one batch size: its tensors have {sizes} rows.")
    return next(iter(sizes.values()))


@dataclass(frozen=True)
class _Window:
    tokens: tuple[int, ...]
    counted: list[bool]
    decoder: tuple[int, ...]
    counted_decoder: list[bool]
    document: int = 0
    after: Cursor = _BEGINNING
    fraction: float | None = None


class TokenWindows:
    """Documents of text as batches of token windows, the same ones in the same order at every pass.

    A document longer than a window is cut into windows whose text starts ``stride`` tokens apart; each window
    gets the tokenizer's special tokens. A token that two windows share counts in the first and is context in
    the second. A batch is the next ``batch_size`` windows, so where batches begin and end depends on the
    documents alone.

    Args:
        documents: What to read.
        tokenizer: A tokenizer of ``transformers``.
        config: The model's configuration: its positions bound the window, and it says whether there is a
            decoder. An encoder-decoder model reads every window twice, as the encoder's text and, shifted
            right by its start token, as the decoder's (teacher forcing); documents with a target give that to
            the decoder instead.
        max_length: Tokens in a window, special tokens included. Default: what tokenizer and model can take,
            at most 512.
        stride: Tokens from the start of one window's text to that of the next. Default: no overlap.
        batch_size: Windows in a batch.
        max_tokens: Stop when this many tokens have been counted, over all shards. The last window is given
            whole, so that its attention is unchanged, and only as many of its tokens count as are wanted.
            Default: no limit.
        shard: Which of the documents to take.

    Raises:
        InputError: If an option cannot be met by this tokenizer and model.

    Example:
        >>> class Letters:
        ...     model_max_length, pad_token_id, eos_token_id = 512, 0, None
        ...     def __call__(self, text, **options):
        ...         return {"input_ids": [ord(letter) for letter in text]}
        >>> from fenchel.io.documents import open_documents
        >>> documents = open_documents(["abcdef", "xy"])
        >>> windows = TokenWindows(documents, Letters(), max_length=4, stride=2, batch_size=2)
        >>> for batch in windows.batches():
        ...     print(batch.documents, batch.windows, batch.tokens, batch.counted.int().tolist())
        (1, 1) (1, 2) 6 [[1, 1, 1, 1], [0, 0, 1, 1]]
        (2,) (1,) 2 [[1, 1]]
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: Any,
        *,
        config: Any = None,
        max_length: int | None = None,
        stride: int | None = None,
        batch_size: int = 16,
        max_tokens: int | None = None,
        shard: Shard = _ONLY_SHARD,
    ) -> None:
        self.documents = documents
        self.tokenizer = tokenizer
        self.batch_size = checked("batch_size", batch_size)
        self.shard = shard
        self.max_tokens = checked("max_tokens", max_tokens)
        self.max_length = longest_window(tokenizer, config, max_length)
        self._prefix, self._suffix = special_tokens(tokenizer)
        room = self.max_length - len(self._prefix) - len(self._suffix)
        if room < 1:
            raise InputError(
                f"max length {self.max_length} leaves no room for text: this tokenizer adds "
                f"{self.max_length - room} special tokens to a window. Give at least "
                f"{self.max_length - room + 1}."
            )
        self.stride = room if stride is None else checked("stride", stride)
        if self.stride > room:
            raise InputError(
                f"stride {self.stride} would skip {self.stride - room} tokens between windows: a window of "
                f"max length {self.max_length} holds {room} tokens of text. Give a stride of at most {room}."
            )
        self._room = room
        self._config = config
        self._padding = padding_token(tokenizer, config)
        self._decoder_start = decoder_start(config)

    @property
    def description(self) -> str:
        """The source as it was given."""
        return self.documents.description

    @property
    def text_sha256(self) -> str | None:
        """SHA-256 of the source, or None where it has no fixed content to hash."""
        return self.documents.text_sha256

    def batches(self, start: Cursor = _BEGINNING) -> Iterator[Batch]:
        """Gives the batches from a place on.

        Args:
            start: ``Batch.after`` of the last batch that was dealt with. Default: the beginning.

        Yields:
            Batches of ``batch_size`` windows; the last one may be smaller.

        Raises:
            InputError: If the source cannot be read on, or none of its documents has a token.
        """
        windows = self._windows(start)
        while rows := list(islice(windows, self.batch_size)):
            yield self._batch(rows, start.tokens)
            start = rows[-1].after

    def _windows(self, start: Cursor) -> Iterator[_Window]:
        budget = self.shard.share(self.max_tokens)
        place, begun = start, 0
        for document in self.documents:
            if place.tokens >= budget:
                return
            if document.index < start.document or not self.shard.takes(document.index):
                continue
            begun += 1
            for number, (window, share) in enumerate(self._cut(document), start=1):
                if document.index == start.document and number <= start.window:
                    continue
                counted = _first(window.counted, budget - place.tokens)
                shared = window.counted_decoder is window.counted
                place = Cursor(
                    document=document.index,
                    window=number,
                    tokens=place.tokens + sum(counted),
                    documents=place.documents + (number == 1),
                )
                fraction = max(document.fraction_at(share) or 0.0, place.tokens / budget) or None
                yield replace(
                    window,
                    counted=counted,
                    counted_decoder=counted if shared else window.counted_decoder,
                    document=document.number,
                    after=place,
                    fraction=fraction,
                )
                if place.tokens >= budget:
                    return
        if begun and place.tokens == 0:
            raise InputError(
                f"{self.description} has no token to audit: the tokenizer turns every one of its {begun} "
                "documents into nothing. Check the file, the text column and the tokenizer."
            )

    def _cut(self, document: Document) -> Iterator[tuple[_Window, float]]:
        if document.target is not None:
            yield from self._pair(document, document.target)
            return
        overlap = 0
        for ids, share in self._texts(document.text):
            tokens = (*self._prefix, *ids, *self._suffix)
            first_new = len(self._prefix) + overlap
            counted = [
                position < len(self._prefix) or position >= first_new for position in range(len(tokens))
            ]
            yield _Window(tokens, counted, self._shifted(tokens), counted), share
            overlap = self._room - self.stride

    def _texts(self, text: str) -> Iterator[tuple[list[int], float]]:
        # A window is given once a token beyond it is known, so the last window of a document is never all
        # overlap.
        waiting: list[int] = []
        for piece, read in pieces(text):
            waiting += token_ids(self.tokenizer, piece)
            begin = 0
            while len(waiting) - begin > self._room:
                yield waiting[begin : begin + self._room], read * (begin + self._room) / len(waiting)
                begin += self.stride
            del waiting[:begin]
        if waiting:
            yield waiting, 1.0

    def _pair(self, document: Document, target: str) -> Iterator[tuple[_Window, float]]:
        if self._decoder_start is None:
            raise InputError(
                f"{self.description} was given with a target column, but the model has no decoder to read "
                "it. Leave the target column out, or audit an encoder-decoder model."
            )
        source = token_ids(self.tokenizer, document.text)
        goal = token_ids(self.tokenizer, target, target=True)
        if not source or not goal:
            return
        prefix, suffix = self._around_target
        tokens = (*self._prefix, *source, *self._suffix)
        goals = (*prefix, *goal, *suffix)
        if max(len(tokens), len(goals)) > self.max_length:
            rooms = self._room, self.max_length - len(prefix) - len(suffix)
            raise InputError(
                f"document {document.number} of {self.description} and its target have {len(source)} and "
                f"{len(goal)} tokens; a pair cannot be cut, and a window of max length {self.max_length} holds "
                f"{' and '.join(map(str, dict.fromkeys(rooms)))}. Shorten the pair or raise the max length."
            )
        yield _Window(tokens, [True] * len(tokens), self._shifted(goals), [True] * len(goals)), 1.0

    @cached_property
    def _around_target(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return special_tokens(self.tokenizer, target=True)

    def _shifted(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return () if self._decoder_start is None else (self._decoder_start, *tokens[:-1])

    def _batch(self, rows: list[_Window], tokens_before: int) -> Batch:
        for row in rows:
            check_known(row.tokens, self.tokenizer, self._config)
            check_known(row.decoder, self.tokenizer, self._config, target=True)
        ids, mask = _padded([row.tokens for row in rows], self._padding)
        counted, _ = _padded([row.counted for row in rows], False)
        inputs = {"input_ids": ids, "attention_mask": mask}
        counted_decoder = None
        if self._decoder_start is not None:
            decoder_ids, decoder_mask = _padded([row.decoder for row in rows], self._padding)
            inputs |= {"decoder_input_ids": decoder_ids, "decoder_attention_mask": decoder_mask}
            counted_decoder, _ = _padded([row.counted_decoder for row in rows], False)
        return Batch(
            inputs=inputs,
            counted=counted,
            counted_decoder=counted_decoder,
            documents=tuple(row.document for row in rows),
            windows=tuple(row.after.window for row in rows),
            tokens=rows[-1].after.tokens - tokens_before,
            after=rows[-1].after,
            fraction=rows[-1].fraction,
            tokenizer=self.tokenizer,
        )


def _padded(rows: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """(B, n) values padded on the right, and the (B, n) mask of what is not padding."""
    length = max(len(row) for row in rows)
    values = torch.tensor([[*row, *[padding] * (length - len(row))] for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in rows])
    return values, mask


def _first(counted: list[bool], limit: float) -> list[bool]:
    """The same marks, with only the first ``limit`` of them set."""
    return [
        mark and before < limit for mark, before in zip(counted, accumulate(counted, initial=0), strict=False)
    ]
