"""What a model reads: the decoder's inputs for a text, and which queries of a batch are real."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.transformers.registry import check_model
from fenchel.tensors import INTEGERS, MASK, check_device, check_tensor

__all__ = ["RealQueries", "decoder_inputs"]


def _setting(model: nn.Module, name: str) -> int | None:
    for holder in (getattr(model, "config", None), getattr(model, "generation_config", None)):
        found: Any = getattr(holder, name, None)
        if isinstance(found, int):
            return found
    return None


def decoder_inputs(model: nn.Module, labels_ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
    """The target tokens shifted right behind the start token, so that position i predicts target token i.

    Padding may be on either side: the start token stands where the first real token was, and the last one is
    not read.

    Args:
        model: An encoder-decoder model of transformers.
        labels_ids: Token ids (B, m) of the target text; -100, which losses ignore, counts as padding.
        mask: (B, m), nonzero where a target token is real; without it every token but -100 is.

    Returns:
        ``decoder_input_ids`` (B, m) and ``decoder_attention_mask`` (B, m) int64, as the model takes them.

    Raises:
        ModelError: If the model has no decoder, or no start or padding token for it.
        InputError: If the shapes do not fit.

    Example:
        >>> from transformers import T5Config, T5Model
        >>> sizes = {"vocab_size": 9, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
        >>> model = T5Model(T5Config(**sizes, decoder_start_token_id=0))
        >>> decoder_inputs(model, torch.tensor([[5, 6, 1]]))["decoder_input_ids"].tolist()
        [[0, 5, 6]]
    """
    check_model(model)
    kind = type(model).__name__
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ModelError(f"{kind} is not an encoder-decoder model, so it takes no decoder inputs")
    start = _setting(model, "decoder_start_token_id")
    if start is None:
        raise ModelError(
            f"the configuration of {kind} has no decoder_start_token_id, so what its decoder starts from is "
            "not known. Set model.config.decoder_start_token_id (T5 uses the padding token, others a "
            "beginning-of-sequence token)"
        )
    check_tensor("labels_ids", labels_ids, "(batch, tokens)", dtypes=INTEGERS, error=InputError)
    if mask is not None:
        check_tensor("mask", mask, "(batch, tokens)", dtypes=(*INTEGERS, *MASK), error=InputError)
        check_device("mask", mask, labels_ids.device, "labels_ids", error=InputError)
    if labels_ids.ndim != 2 or (mask is not None and mask.shape != labels_ids.shape):
        got = f"{tuple(labels_ids.shape)} and {None if mask is None else tuple(mask.shape)}"
        raise InputError(
            f"labels_ids and mask have shapes {got}; expected two of the same shape (batch, tokens)"
        )
    if labels_ids.is_meta or labels_ids.shape[1] == 0:
        raise InputError(
            f"labels_ids have shape {tuple(labels_ids.shape)} on {labels_ids.device}; expected at least one token of a "
            "device that has values"
        )

    real = labels_ids != -100
    if mask is not None:
        real = real & (mask != 0)
    ignored = labels_ids == -100
    if bool(ignored.any()):
        padding = _setting(model, "pad_token_id")
        labels_ids = labels_ids.masked_fill(ignored, start if padding is None else padding)
    first = real.int().argmax(-1, keepdim=True)
    shifted = labels_ids.roll(1, dims=-1)
    shifted = shifted.scatter(-1, torch.zeros_like(first), start).scatter(-1, first, start)
    return {"decoder_input_ids": shifted, "decoder_attention_mask": real.long()}


class RealQueries:
    """The real queries of one batch, for the main stack and for the decoder of an encoder-decoder model.

    Args:
        inputs: What the model is given; ``attention_mask`` and ``decoder_attention_mask`` (B, n) say what is
            padding.
        counted: (B, n) bool, or None: further restricts the main stack.
        counted_decoder: (B, m) bool, or None: further restricts the decoder.

    Raises:
        InputError: If a restriction does not have the shape of the mask that it restricts.
    """

    def __init__(
        self, inputs: Mapping[str, Tensor], counted: Tensor | None, counted_decoder: Tensor | None
    ) -> None:
        self._main = self._intersect(inputs, "attention_mask", "counted", counted)
        self._decoder = self._intersect(inputs, "decoder_attention_mask", "counted_decoder", counted_decoder)

    @staticmethod
    def _intersect(
        inputs: Mapping[str, Tensor], key: str, name: str, counted: Tensor | None
    ) -> Tensor | None:
        mask = inputs.get(key)
        real = None if mask is None or mask.ndim != 2 else mask != 0
        if counted is None:
            return real
        if counted.dtype != torch.bool or counted.ndim != 2:
            raise InputError(
                f"{name} has dtype {counted.dtype} and shape {tuple(counted.shape)}; expected bool (batch, "
                "queries)"
            )
        if real is None:
            return counted
        if real.shape != counted.shape:
            raise InputError(
                f"{name} has shape {tuple(counted.shape)}, but {key} has {tuple(real.shape)}; they must be "
                "the same"
            )
        return real & counted.to(real.device)

    def fits(self, query: Tensor, *, decoder: bool) -> bool:
        """Whether something is known of as many queries (B, H, m, d) as there are."""
        real = self._decoder if decoder else self._main
        return real is not None and tuple(real.shape) == (query.shape[0], query.shape[2])

    def __call__(
        self, site: str, query: Tensor, empty_rows: Tensor | None, *, decoder: bool, masked: bool = True
    ) -> Tensor:
        """The real queries at one site.

        Args:
            site: Qualified name of the attention module, for the message.
            query: (B, H, m, d).
            empty_rows: Bool, broadcastable to (B, H, m, 1): queries that attend to nothing, which have no
                answer and are left out; or None.
            decoder: Whether the queries are the decoder's.
            masked: Whether the call masks anything. Where it does not, and the padding mask is of another sequence (the
                text beside an image), all queries are real.

        Returns:
            (B, m) bool on the query's device.

        Raises:
            CaptureError: If the batch's padding mask does not fit the queries.
        """
        shape = (query.shape[0], query.shape[2])
        real = self._decoder if decoder else self._main
        if real is None or (real.shape != shape and not masked):
            real = torch.ones(shape, dtype=torch.bool, device=query.device)
        elif real.shape != shape:
            raise CaptureError(
                f"{site} has queries of shape {shape} (batch, queries), but the padding mask of the batch is "
                f"{tuple(real.shape)}, so which queries are real is not known. Leave the mask out if nothing "
                "is padded"
            )
        real = real.to(query.device)
        if empty_rows is not None:
            real = real & ~empty_rows.any(1).squeeze(-1)
        return real
