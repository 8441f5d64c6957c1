"""What a preference may look at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.errors import ProblemError

__all__ = ["AttentionInputs"]


@dataclass(frozen=True)
class AttentionInputs:
    """What is known before any query meets a key: sizes, positions, and the inputs of the attention layer.

    Letters: B batch, H heads of the queries, m queries, n keys. Key j is at position j; query i is at position
    ``query_offset + i`` on the same axis.

    Attributes:
        batch: B.
        heads: H.
        queries: m.
        keys: n.
        device: Where the layer computes.
        dtype: In what it computes; log-weights come in it.
        query_inputs: The layer's inputs at the queries, (B, m, width).
        key_inputs: The layer's inputs at the keys, the sentence or the image, (B, n, width).
        key_padding: True where a key is padding, bool (B, n), as in :class:`torch.nn.MultiheadAttention`.
        query_offset: Position of the first query; n - m when decoding with a cache.

    Raises:
        ProblemError: If a size is negative, or a tensor has another shape, device or dtype than the sizes say.

    Example:
        >>> inputs = AttentionInputs(1, 2, 3, 5, torch.device("cpu"), torch.float32, query_offset=2)
        >>> inputs.query_positions.tolist()
        [2, 3, 4]
    """

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device
    dtype: torch.dtype
    query_inputs: Tensor | None = None
    key_inputs: Tensor | None = None
    key_padding: Tensor | None = None
    query_offset: int = 0

    def __post_init__(self) -> None:
        for name in ("batch", "heads", "queries", "keys", "query_offset"):
            if getattr(self, name) < 0:
                raise ProblemError(f"{name} is {getattr(self, name)}; it has to be at least 0.")
        for name, tensor, tokens in (
            ("query_inputs", self.query_inputs, self.queries),
            ("key_inputs", self.key_inputs, self.keys),
        ):
            if tensor is not None and (tensor.dim() != 3 or tensor.shape[:2] != (self.batch, tokens)):
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}; expected (batch, tokens, width) with batch "
                    f"{self.batch} and {tokens} tokens."
                )
            self._check_device(name, tensor)
        padding = self.key_padding
        if padding is not None and padding.dtype != torch.bool:
            raise ProblemError(
                f"key_padding has dtype {padding.dtype}; expected torch.bool, True where a key is padding."
            )
        if padding is not None and padding.shape != (self.batch, self.keys):
            raise ProblemError(
                f"key_padding has shape {tuple(padding.shape)}; expected (batch, keys) = ({self.batch}, {self.keys})."
            )
        self._check_device("key_padding", padding)

    def _check_device(self, name: str, tensor: Tensor | None) -> None:
        if tensor is not None and tensor.device != self.device:
            raise ProblemError(
                f"{name} is on {tensor.device}, but the layer computes on {self.device}; move it there."
            )

    @property
    def query_positions(self) -> Tensor:
        """Absolute positions of the queries, int64 (m,)."""
        return torch.arange(self.query_offset, self.query_offset + self.queries, device=self.device)

    @property
    def key_positions(self) -> Tensor:
        """Absolute positions of the keys, int64 (n,)."""
        return torch.arange(self.keys, device=self.device)
