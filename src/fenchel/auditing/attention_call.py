"""What one place of a model attends with, as an audit sees it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fenchel.auditing.sites import AttentionSite

__all__ = ["AttentionCall"]


@dataclass(frozen=True)
class AttentionCall:
    """What one site attends with: its weights are softmax(scaling·⟨query, key⟩ + log_preference).

    Attributes:
        site: Where.
        query: (B, H, m, d_h), as it reaches the attention function.
        key: (B, H_kv, n, d_h), likewise; a head shared by a group of query heads is not repeated.
        scaling: What the model multiplies scores with.
        log_preference: Broadcastable to (B, H, m, n), float32 (float64 for float64 models); -inf where
            masked; size 1 along batch, head and query where it is constant there. None is uniform.
        counted: (B, m) bool, the queries that are real. One that may attend to nothing is not.
        inputs: (B, n, width), x_i, what the key map takes; None for space="key".
        key_weight: (H_kv, d_h, width), the key map; None for space="key".
        key_bias: (H_kv, d_h), its bias; None if it has none, and for space="key".
    """

    site: AttentionSite
    query: Tensor
    key: Tensor
    scaling: float
    log_preference: Tensor | None
    counted: Tensor
    inputs: Tensor | None
    key_weight: Tensor | None
    key_bias: Tensor | None
