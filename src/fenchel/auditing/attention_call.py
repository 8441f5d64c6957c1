"""What one place of a model attends with, as an audit sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.sites import AttentionSite
from fenchel.preference.discrete import log_weights

__all__ = ["AttentionCall"]


@dataclass(frozen=True)
class AttentionCall:
    """What one site attends with: its weights are softmax(scaling·⟨query, key⟩ + log_preference).

    Attributes:
        site: Where.
        query: (B, H, m, d_h), as it reaches the attention function.
        key: (B, H_kv, n, d_h), likewise; a head shared by a group of query heads is not repeated.
        scaling: What the model multiplies scores with.
        preference: The log preference, broadcastable to (B, H, m, n), float32 (float64 for float64 models), -inf where
            masked; bool, True where a query may attend, where it is nothing but a mask, which as numbers would be
            the largest array of a long context. Size 1 along batch, head and query where it is constant there. None
            is uniform.
        counted: (B, m) bool, the queries that are real. One that may attend to nothing is not.
        inputs: (B, n, width), x_i, what the key map takes; None for space="key".
        key_weight: (H_kv, d_h, width), the key map; None for space="key".
        key_bias: (H_kv, d_h), its bias; None if it has none, and for space="key".
        value: (B, H_kv, n, d_v), what the weights act on; None where it is not known.
    """

    site: AttentionSite
    query: Tensor
    key: Tensor
    scaling: float
    preference: Tensor | None
    counted: Tensor
    inputs: Tensor | None
    key_weight: Tensor | None
    key_bias: Tensor | None
    value: Tensor | None = None

    @property
    def log_preference(self) -> Tensor | None:
        """The preference as numbers, made anew where it is kept as a mask."""
        if self.preference is None:
            return None
        return log_weights(
            self.preference, torch.float64 if self.query.dtype == torch.float64 else torch.float32
        )
