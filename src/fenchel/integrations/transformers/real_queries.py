"""Which queries of a batch are real: padding and what the caller excludes are not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fenchel.errors import CaptureError, InputError

__all__ = ["RealQueries"]


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

    def __call__(self, site: str, query: Tensor, empty_rows: Tensor | None, *, decoder: bool) -> Tensor:
        """The real queries at one site.

        Args:
            site: Qualified name of the attention module, for the message.
            query: (B, H, m, d).
            empty_rows: Bool, broadcastable to (B, H, m, 1): queries that attend to nothing, which have no
                answer and are left out; or None.
            decoder: Whether the queries are the decoder's.

        Returns:
            (B, m) bool on the query's device.

        Raises:
            CaptureError: If the batch's padding mask does not fit the queries.
        """
        shape = (query.shape[0], query.shape[2])
        real = self._decoder if decoder else self._main
        if real is None:
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
