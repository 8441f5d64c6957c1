"""Batches of texts that are cut into windows of tokens, and of ready-made inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, islice
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fenchel.arguments import checked, shown
from fenchel.errors import InputError
from fenchel.io.batches import (
    BEGINNING,
    PADDING,
    Batch,
    Cursor,
    OutputMeasure,
    PatchImages,
    TokenTexts,
    check_known,
    vocabulary_size,
)
from fenchel.io.documents import Document, Documents
from fenchel.io.runs import WHOLE, Shard
from fenchel.io.storage import tensors_digest
from fenchel.tensors import INTEGERS

_LONGEST_BY_DEFAULT = 512
_PIECE = 1 << 20
# Learned positions of these families start after the padding index, so their tables hold that many fewer tokens.
_POSITIONS_AFTER_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "roberta-prelayernorm", "camembert", "data2vec-text", "xmod"}
)


# For each mask of counted tokens: the entry with the tokens' texts, the model's mask, and the model's ids.
_TOKENS = {
    "counted": ("tokens", "attention_mask", "input_ids"),
    "counted_decoder": ("tokens_decoder", "decoder_attention_mask", "decoder_input_ids"),
}
_NAMES = ("inputs", *_TOKENS, "documents", "windows", "tokens", "tokens_decoder", "loss", "score")
_IDS = tuple(ids for _, _, ids in _TOKENS.values())


def model_inputs(batch: Any) -> Any:
    """The model's keyword arguments: the mapping under ``inputs``, or the batch itself."""
    inputs = batch.get("inputs") if isinstance(batch, Mapping) else None
    return inputs if isinstance(inputs, Mapping) else batch


class ReadyBatch:
    """One of :class:`ReadyBatches`, checked: its ``inputs``, the number of its ``rows``, and its other entries."""

    def __init__(self, batch: Any, number: int, config: Any, texts: TokenTexts) -> None:
        self.inputs: Mapping[str, Tensor] = model_inputs(batch)
        self._entries: Mapping[str, Any] = {} if batch is self.inputs else batch
        self._number, self._texts = number, texts
        self.rows = self._batch_size()
        for name in _IDS:
            if name in self.inputs:
                self._check_ids(name, self.inputs[name], config)
        pixels = self.inputs.get("pixel_values")
        if pixels is not None and self._is_one_image(pixels, getattr(config, "num_channels", 3)):
            raise InputError(
                f"model input {number} has pixel_values of shape {tuple(pixels.shape)}, which has no batch dimension; "
                "expected (batch, channels, height, width). For a batch of one write pixel_values.unsqueeze(0)."
            )
        if unknown := [name for name in self._entries if name not in _NAMES]:
            raise InputError(
                f"batch {number} has {shown(unknown[0])}; expected names among {', '.join(_NAMES)}."
            )

    def _batch_size(self) -> int:
        inputs, number = self.inputs, self._number
        is_filled = isinstance(inputs, Mapping) and len(inputs) > 0
        if not is_filled or not all(isinstance(value, Tensor) for value in inputs.values()):
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
        if ids.dtype not in INTEGERS or ids.dim() != 2 or not ids.numel():
            remedy = f" For a batch of one write {name}.unsqueeze(0)." if ids.dim() == 1 else ""
            raise InputError(
                f"model input {self._number} has {name} of shape {tuple(ids.shape)} and {ids.dtype}; expected "
                f"integers of shape (batch, tokens), at least one token.{remedy}"
            )
        check_known(ids.flatten().tolist(), None, config, target=name.startswith("decoder"))

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


class ReadyBatches:
    """Ready-made inputs of the model, such as ``pixel_values``, each one batch.

    A batch is a mapping of the model's keyword arguments to tensors, or a mapping of these under ``inputs`` with any of

    * ``counted``, ``counted_decoder``: (B, n) bool, the tokens that count as queries, and those of a decoder besides an
      encoder.
    * ``documents``, ``windows``: a number from 1 for each row.
    * ``tokens``, ``tokens_decoder``: a list of token texts for each row, as ``TokenTexts`` reads them.
    * ``loss``, ``score``: functions of the model's output, which return one number per row.

    Args:
        inputs: The batches.
        config: The model's configuration, with the size of its vocabulary.
        max_tokens: As of :class:`TokenWindows`, but the last batch counts as a whole. If the inputs have neither ids
            nor a mask, a row counts as one token.
        shard: The share of the batches.
        loader: The file that loaded them, if any.

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
        shard: Shard = WHOLE,
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
        """SHA-256 of all inputs; None if they can be read only once, or are not mappings of dense tensors."""
        if not isinstance(self.inputs, list | tuple):
            return None
        batches = list[dict[str, Any]]()
        for batch in self.inputs:
            inputs = model_inputs(batch)
            values = inputs.values() if isinstance(inputs, Mapping) else [None]
            dense = (isinstance(x, Tensor) and x.layout == torch.strided and not x.is_nested for x in values)
            if not all(dense):
                return None
            others = {} if inputs is batch else {f"beside inputs: {name}": one for name, one in batch.items()}
            others.pop("beside inputs: inputs", None)
            given = {name: one for name, one in others.items() if one is not None and not callable(one)}
            batches.append({**inputs, **given})
        return tensors_digest(batches)

    def batches(self, start: Cursor = BEGINNING) -> Iterator[Batch]:
        """The batches from a place on, ``Batch.after`` of the previous one.

        Raises:
            InputError: If there are no inputs, or one of them is not a mapping of tensors with one batch dimension.
        """
        budget = self.shard.share(self.max_tokens)
        length = len(self.inputs) if isinstance(self.inputs, Sized) else None
        place, rows_before, number = start, 0, 0
        for number, batch in enumerate(self.inputs, start=1):
            ready = ReadyBatch(batch, number, self._config, self._texts)
            rows, inputs = ready.rows, ready.inputs
            rows_before += rows
            if number <= start.document or not self.shard.takes(number - 1):
                continue
            if place.tokens >= budget:
                return
            counted, ids, ids_decoder = (
                ready.counted("counted"),
                ready.ids("tokens"),
                ready.ids("tokens_decoder"),
            )
            tokens = rows if counted is None else int(counted.sum())
            windows = ready.numbers("windows") or (1,) * rows
            place = Cursor(number, 0, place.tokens + tokens, place.documents + windows.count(1))
            yield Batch(
                inputs=dict(inputs),
                counted=counted,
                counted_decoder=ready.counted("counted_decoder"),
                documents=ready.numbers("documents") or tuple(range(rows_before - rows + 1, rows_before + 1)),
                windows=windows,
                tokens=tokens,
                after=place,
                fraction=max(number / length if length else 0.0, place.tokens / budget) or None,
                tokenizer=None if ids is None and ids_decoder is None else self._texts,
                pictures=PatchImages.of(inputs.get("pixel_values"), self._config),
                ids=ids,
                ids_decoder=ids_decoder,
                loss=ready.measure("loss"),
                score=ready.measure("score"),
            )
        if number == 0:
            raise InputError("the iterable yielded no model inputs; expected at least one.")


@dataclass(frozen=True)
class Window:
    """A row of a batch: its tokens and those of the decoder, and which of them count; its document, and its end."""

    tokens: tuple[int, ...]
    counted: list[bool]
    decoder: tuple[int, ...]
    counted_decoder: list[bool]
    document: int
    after: Cursor
    fraction: float | None


# Tokens of a window, those that count, tokens of the decoder, and the share of the document up to its end.
_Cut = tuple[tuple[int, ...], list[bool], tuple[int, ...], float]


class TokenWindows:
    """Batches of windows of tokens from documents, the same in the same order at every pass.

    A document longer than a window is cut into windows whose text starts ``stride`` tokens apart; each window
    gets the tokenizer's special tokens. A token that is in two windows counts in the first and is context in
    the second. A batch is the next ``batch_size`` windows, so the batches depend on the documents alone.

    Args:
        documents: The documents.
        tokenizer: A tokenizer of ``transformers``.
        config: The model's configuration. An encoder-decoder model reads every window twice, as the encoder's text and,
            shifted right by its start token, as the decoder's (teacher forcing), or there the document's target.
        max_length: Number of tokens in a window, special tokens included. Default: the maximum of tokenizer and
            model, at most 512.
        stride: Distance in tokens between the starts of two windows. Default: no overlap.
        batch_size: Number of windows in a batch.
        max_tokens: Stop when this many tokens have been counted, over all shards. The last window is whole, but only
            its first tokens count. Default: no limit.
        shard: The share of the documents.

    Raises:
        InputError: If an option does not suit the tokenizer and the model.

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
        shard: Shard = WHOLE,
    ) -> None:
        self.documents = documents
        self.description = documents.description
        self.tokenizer = tokenizer
        self.batch_size = checked("batch_size", batch_size)
        self.shard = shard
        self.max_tokens = checked("max_tokens", max_tokens)
        self.max_length = longest_window(tokenizer, config, max_length)
        self.prefix, self.suffix = special_tokens(tokenizer)
        special = len(self.prefix) + len(self.suffix)
        self.room = room = self.max_length - special
        if room < 1:
            raise InputError(
                f"max length {self.max_length} leaves no room for text: this tokenizer adds {special} special tokens "
                f"to a window. Give at least {special + 1}."
            )
        self.stride = room if stride is None else checked("stride", stride)
        if self.stride > room:
            raise InputError(
                f"stride {self.stride} would skip {self.stride - room} tokens between windows: a window of "
                f"max length {self.max_length} holds {room} tokens of text. Give a stride of at most {room}."
            )
        self._config = config
        self._padding = padding_token(tokenizer, config)
        self._decoder_start = decoder_start(config)

    @property
    def text_sha256(self) -> str | None:
        """SHA-256 of the source; None if it has no fixed content."""
        return self.documents.text_sha256

    def batches(self, start: Cursor = BEGINNING) -> Iterator[Batch]:
        """The batches from a place on, ``Batch.after`` of the previous one; the last may be smaller.

        Raises:
            InputError: If the source cannot be read, or none of its documents has a token.
        """
        windows = self._windows(start)
        while rows := list(islice(windows, self.batch_size)):
            yield self._batch(rows, start.tokens)
            start = rows[-1].after

    def _windows(self, start: Cursor) -> Iterator[Window]:
        budget = self.shard.share(self.max_tokens)
        place, begun = start, 0
        for document in self.documents:
            if place.tokens >= budget:
                return
            if document.index < start.document or not self.shard.takes(document.index):
                continue
            begun += 1
            for window, (tokens, counted, decoder, share) in enumerate(self._cut(document), start=1):
                if document.index == start.document and window <= start.window:
                    continue
                left, before = budget - place.tokens, accumulate(counted)
                counted = [mark and number <= left for mark, number in zip(counted, before, strict=True)]
                total, documents = place.tokens + sum(counted), place.documents + (window == 1)
                place = Cursor(document.index, window, total, documents)
                counted_decoder = counted if document.target is None else [True] * len(decoder)
                fraction = max(document.fraction_at(share) or 0.0, place.tokens / budget) or None
                yield Window(tokens, counted, decoder, counted_decoder, document.number, place, fraction)
                if place.tokens >= budget:
                    return
        if begun and place.tokens == 0:
            raise InputError(
                f"{self.description} has no token to audit: the tokenizer returns none for its {begun} documents. "
                "Check the file, the text column and the tokenizer."
            )

    def _cut(self, document: Document) -> Iterator[_Cut]:
        if document.target is not None:
            yield from self._pair(document, document.target)
            return
        overlap = 0
        for ids, share in self._texts(document.text):
            tokens = (*self.prefix, *ids, *self.suffix)
            counted = [True] * len(tokens)
            counted[len(self.prefix) : len(self.prefix) + overlap] = [False] * overlap
            yield tokens, counted, self._shifted(tokens), share
            overlap = self.room - self.stride

    def _texts(self, text: str) -> Iterator[tuple[list[int], float]]:
        # A window is yielded once the next token is known, so that the last window has a token of its own.
        waiting: list[int] = []
        for piece, read in pieces(text):
            waiting += token_ids(self.tokenizer, piece)
            begin = 0
            while len(waiting) - begin > self.room:
                yield waiting[begin : begin + self.room], read * (begin + self.room) / len(waiting)
                begin += self.stride
            del waiting[:begin]
        if waiting:
            yield waiting, 1.0

    def _pair(self, document: Document, target: str) -> Iterator[_Cut]:
        if self._decoder_start is None:
            raise InputError(
                f"{self.description} was given with a target column, but the model has no decoder. Leave the target "
                "column out, or audit an encoder-decoder model."
            )
        source = token_ids(self.tokenizer, document.text)
        target_ids = token_ids(self.tokenizer, target, target=True)
        if not source or not target_ids:
            return
        prefix, suffix = self._around_target
        tokens = (*self.prefix, *source, *self.suffix)
        targets = (*prefix, *target_ids, *suffix)
        if max(len(tokens), len(targets)) > self.max_length:
            rooms = self.room, self.max_length - len(prefix) - len(suffix)
            raise InputError(
                f"document {document.number} of {self.description} and its target have {len(source)} and "
                f"{len(target_ids)} tokens; a pair cannot be cut, and a window of max length {self.max_length} holds "
                f"{' and '.join(map(str, dict.fromkeys(rooms)))}. Shorten the pair or raise the max length."
            )
        yield tokens, [True] * len(tokens), self._shifted(targets), 1.0

    @cached_property
    def _around_target(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return special_tokens(self.tokenizer, target=True)

    def _shifted(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return () if self._decoder_start is None else (self._decoder_start, *tokens[:-1])

    def _batch(self, rows: list[Window], tokens_before: int) -> Batch:
        for row in rows:
            check_known(row.tokens, self.tokenizer, self._config)
            check_known(row.decoder, self.tokenizer, self._config, target=True)
        ids, mask = padded([row.tokens for row in rows], self._padding)
        inputs, counted_decoder = {"input_ids": ids, "attention_mask": mask}, None
        if self._decoder_start is not None:
            ids, mask = padded([row.decoder for row in rows], self._padding)
            inputs |= {"decoder_input_ids": ids, "decoder_attention_mask": mask}
            counted_decoder, _ = padded([row.counted_decoder for row in rows], False)
        return Batch(
            inputs=inputs,
            counted=padded([row.counted for row in rows], False)[0],
            counted_decoder=counted_decoder,
            documents=tuple(row.document for row in rows),
            windows=tuple(row.after.window for row in rows),
            tokens=rows[-1].after.tokens - tokens_before,
            after=rows[-1].after,
            fraction=rows[-1].fraction,
            tokenizer=self.tokenizer,
        )


def padded(rows: Sequence[Sequence[int]], padding: int) -> tuple[Tensor, Tensor]:
    """(B, n) values padded on the right, and the (B, n) mask that is 0 at padding."""
    values = [torch.tensor(row) for row in rows]
    padded = pad_sequence(values, batch_first=True, padding_value=padding)
    return padded, pad_sequence([torch.ones(len(row), dtype=torch.int64) for row in rows], batch_first=True)


def longest_window(tokenizer: Any, config: Any, max_length: int | None) -> int:
    """The number of tokens in a window, special tokens included: ``max_length``, or the most that fit, at most 512.

    Raises:
        InputError: If ``max_length`` is more than the model's positions.
    """
    positions = _positions(config)
    if max_length is not None:
        length = checked("max_length", max_length)
        if positions is not None and length > positions:
            raise InputError(
                f"max length {length} is more than the model's {positions} positions. Give at most {positions}."
            )
        return length
    limits = (positions, getattr(tokenizer, "model_max_length", None), _LONGEST_BY_DEFAULT)
    return int(min(limit for limit in limits if isinstance(limit, int | float) and limit > 0))


def _positions(config: Any) -> int | None:
    positions = getattr(config, "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    if getattr(config, "model_type", None) in _POSITIONS_AFTER_PADDING:
        return positions - int(getattr(config, "pad_token_id", None) or 0) - 1
    return positions


def decoder_start(config: Any) -> int | None:
    """The id of the first token of the decoder; None if the model is no encoder-decoder."""
    if not getattr(config, "is_encoder_decoder", False):
        return None
    names = ("decoder_start_token_id", "bos_token_id", "pad_token_id")
    tokens = [token for name in names if isinstance(token := getattr(config, name, None), int)]
    if not tokens:
        raise InputError(
            "the model's configuration names no token that its decoder starts with: set its decoder_start_token_id."
        )
    return tokens[0]


def padding_token(tokenizer: Any, config: Any = None) -> int:
    """The id that fills short rows: of padding, else of the end of a text, else 0; those positions are masked."""
    known = vocabulary_size(config, target=False) or math.inf
    tokens = (getattr(tokenizer, name, None) for name in ("pad_token_id", "eos_token_id"))
    return next((token for token in tokens if isinstance(token, int) and 0 <= token < known), 0)


def special_tokens(tokenizer: Any, *, target: bool = False) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ids of the special tokens that a tokenizer adds before and after a text, or the target of a translation model.

    Raises:
        InputError: If the tokens of the first probe with any are not found between special tokens.
    """
    try:
        ids = token_ids(tokenizer, "a")
    except Exception:  # of any object that is not a tokenizer
        ids = [None]
    if isinstance(tokenizer, type) or not all(isinstance(number, int) for number in ids):
        raise InputError(
            f"tokenizer is {shown(tokenizer)}; expected a tokenizer of transformers, which returns input_ids."
        )
    known = getattr(tokenizer, "convert_ids_to_tokens", None)
    probes = ["a", "the", "0", ".", *(known(list(range(min(len(tokenizer), 100)))) if known else ())]
    for probe in probes:
        text = token_ids(tokenizer, probe, target=target)
        whole = token_ids(tokenizer, probe, add_special_tokens=True, target=target)
        for begin in range(len(whole) - len(text) + 1 if text else 0):
            if whole[begin : begin + len(text)] == text:
                return tuple(whole[:begin]), tuple(whole[begin + len(text) :])
    raise InputError(
        f"{type(tokenizer).__name__} does not put its special tokens around the text, or has no tokens at all, so "
        "documents cannot be cut into windows. Give model inputs instead of texts, with tokenizer=None."
    )


def token_ids(
    tokenizer: Any, text: str, *, add_special_tokens: bool = False, target: bool = False
) -> list[int]:
    """The ids of all tokens of a text, however long; some translation models have another vocabulary for targets."""
    options: dict[str, Any] = {"add_special_tokens": add_special_tokens, "verbose": False}
    encoded = tokenizer(text_target=text, **options) if target else tokenizer(text, **options)
    return list(encoded["input_ids"])


def pieces(text: str) -> Iterator[tuple[str, float]]:
    """Pieces of a million characters of a long text, cut at spaces, and the share of the text up to the end of each."""
    begin = 0
    while begin < len(text):
        end = begin + _PIECE
        if end < len(text):
            space = max(text.rfind(" ", begin + 1, end), text.rfind("\n", begin + 1, end))
            end = space if space > begin else end
        yield text[begin:end], min(1.0, end / len(text))
        begin = end
