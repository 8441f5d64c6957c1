"""Inputs that are ready for a model, in the place of windows of text, with what is known of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import checked, shown
from fenchel.data.batch import Batch, Cursor
from fenchel.data.digest import tensors_digest
from fenchel.data.known_of_batch import KnownOfBatch
from fenchel.data.patches import patch_images
from fenchel.data.shard import Shard
from fenchel.data.text.tokenization import check_known
from fenchel.data.token_texts import TokenTexts
from fenchel.errors import InputError

__all__ = ["ReadyBatches", "ready_made"]

_BEGINNING = Cursor()
_ONLY_SHARD = Shard()


class ReadyBatches:
    """Inputs that are ready for the model, such as ``pixel_values``, each given as one batch.

    A batch is a mapping of the model's keyword arguments to tensors, or a mapping of these under ``inputs`` with any of

    * ``counted``, ``counted_decoder``: (B, n) bool, which tokens count as queries, and those of a decoder beside an
      encoder.
    * ``documents``, ``windows``: a number from 1 for each row.
    * ``tokens``, ``tokens_decoder``: a list of token texts for each row, as
      :class:`~fenchel.data.token_texts.TokenTexts` reads them; shorter rows are padded at the end.
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
        return tensors_digest(inputs) if all(map(_is_dense, inputs)) else None

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
            known = KnownOfBatch(batch if batch is not inputs else {}, rows, number, self._texts)
            counted = known.counted("counted")
            if counted is None:
                counted = _mask(inputs, "attention_mask", "input_ids")
            counted_decoder = known.counted("counted_decoder")
            if counted_decoder is None:
                counted_decoder = _mask(inputs, "decoder_attention_mask", "decoder_input_ids")
            tokens = rows if counted is None else int(counted.sum())
            windows = known.numbers("windows") or (1,) * rows
            place = Cursor(number, 0, place.tokens + tokens, place.documents + windows.count(1))
            yield Batch(
                inputs=dict(inputs),
                counted=counted,
                counted_decoder=counted_decoder,
                documents=known.numbers("documents") or tuple(range(rows_before - rows + 1, rows_before + 1)),
                windows=windows,
                tokens=tokens,
                after=place,
                fraction=number / length if length else None,
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
            if (
                ids.is_floating_point()
                or ids.is_complex()
                or ids.dtype == torch.bool
                or ids.dim() != 2
                or not ids.numel()
            ):
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


def _is_dense(inputs: Any) -> bool:
    return isinstance(inputs, Mapping) and all(
        isinstance(value, Tensor) and value.layout == torch.strided and not value.is_nested
        for value in inputs.values()
    )


def _mask(inputs: Mapping[str, Tensor], mask: str, ids: str) -> Tensor | None:
    if mask in inputs and inputs[mask].dim() == 2:
        return inputs[mask].bool()
    return torch.ones_like(inputs[ids], dtype=torch.bool) if ids in inputs else None


def _check_batched(inputs: Mapping[str, Tensor], number: int, config: Any) -> None:
    """Refuse one text or one image that stands where a batch of them is expected."""
    pixels = inputs.get("pixel_values")
    single = [
        name for name in ("input_ids", "decoder_input_ids") if name in inputs and inputs[name].dim() == 1
    ]
    # Patches that are cut already have three dimensions too: rows, patches, width.
    if pixels is not None and (
        pixels.dim() == 2
        or (pixels.dim() == 3 and len(pixels) == getattr(config, "num_channels", 3))
        or (pixels.dim() == 3 and len(pixels) in (1, 3) and pixels.shape[1] == pixels.shape[2])
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


def _rows(inputs: Mapping[str, Tensor], number: int) -> int:
    if not isinstance(inputs, Mapping) or not all(isinstance(value, Tensor) for value in inputs.values()):
        raise InputError(
            f"model input {number} is a {type(inputs).__name__}, not a mapping of names to tensors. Without "
            "a tokenizer, give what the model is called with, such as {'pixel_values': tensor}."
        )
    sizes = {name: value.shape[0] for name, value in inputs.items() if value.dim() > 0}
    if len(set(sizes.values())) != 1:
        raise InputError(f"model input {number} has no one batch size: its tensors have {sizes} rows.")
    return next(iter(sizes.values()))
