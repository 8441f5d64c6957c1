"""Language modelling on windows of text: which tokens are hidden from the model or to be predicted by it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import InputError, ModelError
from fenchel.integrations.transformers.language_head import LanguageHead
from fenchel.io.batches import Batch, Cursor
from fenchel.io.tokens import special_tokens
from fenchel.io.windows import TokenWindows
from fenchel.swap.observation import IGNORED, Observation, observe
from fenchel.swap.step import Place, Step

__all__ = ["LanguageTask"]


class LanguageTask:
    """Windows of text with the tokens that a language model has to predict.

    * masked: of every window's counted tokens that are no special ones, a seeded ``mask_probability`` (at least one)
      is replaced by the mask token, all of them, and is to be predicted. The choice depends on the seed, the document
      and the window alone, so every arm, batch size and resumed session sees the same.
    * causal: every counted token but the first of a window is to be predicted from those before it.
    * seq2seq: the decoder reads the target (without one, the text itself) shifted right, and predicts it.

    Args:
        windows: The text.
        head: What the model predicts.
        mask_probability: Share of the tokens that are hidden, for masked models.
        seed: Of the choice.

    Raises:
        ModelError: If a masked model's tokenizer has no mask token.
    """

    def __init__(
        self, windows: TokenWindows, head: LanguageHead, *, mask_probability: float, seed: int
    ) -> None:
        self._windows = windows
        self._head = head
        self._mask_probability = mask_probability
        self._seed = seed
        tokenizer = windows.tokenizer
        self._special = set(getattr(tokenizer, "all_special_ids", ()))
        self._mask_token = getattr(tokenizer, "mask_token_id", None)
        if head == "masked" and self._mask_token is None:
            raise ModelError(
                f"the tokenizer ({type(tokenizer).__name__}) has no mask token, and a masked language model predicts "
                "what that stands for. Set tokenizer.mask_token, or use the tokenizer that the model was trained with"
            )
        suffix = special_tokens(tokenizer)[1]
        self._last_label = suffix[-1] if suffix else IGNORED

    def description(self) -> dict[str, Any]:
        """See ``Task``."""
        masking = {"mask_probability": self._mask_probability} if self._head == "masked" else {}
        return {
            "task": self._head,
            "texts": self._windows.description,
            "text_sha256": self._windows.text_sha256,
            "max_length": self._windows.max_length,
            "stride": self._windows.stride,
            "max_tokens": self._windows.max_tokens,
            **masking,
        }

    def observed(self, model: Any, step: Step, inputs: dict[str, Tensor]) -> Observation:
        """See ``Task``."""
        assert step.counted is not None  # noqa: S101 - what ``steps`` gives
        return observe(model, inputs, step.counted, step.counted_decoder, step.labels)

    def steps(self, place: Place) -> Iterator[Step]:
        """See ``Task``."""
        cursor = Cursor(**{name: count for name, count in place.items() if name != "unit"})
        unit = place.get("unit", 0)
        for batch in self._windows.batches(cursor):
            step = self._step(batch, unit)
            unit += len(batch.documents)
            yield step

    def _step(self, batch: Batch, unit: int) -> Step:
        inputs = dict(batch.inputs)
        if batch.counted is None:
            raise InputError("windows of text always say which of their tokens count")
        labels = self._labels(batch, inputs, batch.counted)
        after = {**asdict(batch.after), "unit": unit + len(batch.documents)}
        return Step(
            inputs=inputs,
            counted=batch.counted,
            counted_decoder=batch.counted_decoder,
            labels=labels,
            units=torch.arange(unit, unit + len(batch.documents)),
            after=after,
            documents=batch.after.documents,
            tokens=batch.after.tokens,
            fraction=batch.fraction,
        )

    def _labels(self, batch: Batch, inputs: dict[str, Tensor], counted: Tensor) -> Tensor:
        if self._head == "masked":
            return self._hide(batch, inputs, counted)
        if self._head == "causal":
            following = torch.full_like(inputs["input_ids"], IGNORED)
            following[:, :-1] = inputs["input_ids"][:, 1:].masked_fill(~counted[:, 1:], IGNORED)
            return following
        return self._decoder_labels(batch, inputs)

    def _hide(self, batch: Batch, inputs: dict[str, Tensor], counted: Tensor) -> Tensor:
        ids = inputs["input_ids"]
        candidates = counted & ~torch.isin(ids, torch.tensor(sorted(self._special), dtype=ids.dtype))
        labels = torch.full_like(ids, IGNORED)
        for row, (document, window) in enumerate(zip(batch.documents, batch.windows, strict=True)):
            places = candidates[row].nonzero().flatten()
            if not len(places):
                continue
            name = f"{self._seed}/{document}/{window}".encode()
            digest = int.from_bytes(hashlib.sha256(name).digest()[:7], "big")
            generator = torch.Generator().manual_seed(digest)
            draws = torch.rand(len(places), generator=generator)
            chosen = draws < self._mask_probability
            chosen[draws.argmin()] = True
            labels[row, places[chosen]] = ids[row, places[chosen]]
        inputs["input_ids"] = ids.masked_fill(labels != IGNORED, int(self._mask_token or 0))
        return labels

    def _decoder_labels(self, batch: Batch, inputs: dict[str, Tensor]) -> Tensor:
        ids, real = inputs["decoder_input_ids"], inputs["decoder_attention_mask"].bool()
        labels = torch.full_like(ids, IGNORED)
        labels[:, :-1] = ids[:, 1:].masked_fill(~real[:, 1:], IGNORED)
        # What follows the last token that the decoder reads is not in the batch: it is what ends every text.
        last = real.sum(1) - 1
        labels[torch.arange(len(ids)), last] = self._last_label
        counted = batch.counted_decoder
        return labels if counted is None else labels.masked_fill(~counted, IGNORED)
