"""The two layouts of torch's sequences, and sequences without a batch."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["SequenceLayout"]


@dataclass(frozen=True)
class SequenceLayout:
    """Where the batch is in the sequences of one call.

    Attributes:
        batch_first: (B, tokens, width) rather than (tokens, B, width).
        batched: Whether there is a batch; without one sequences are (tokens, width), and B is 1 inside.
    """

    batch_first: bool
    batched: bool

    def to_batch_first(self, sequence: Tensor) -> Tensor:
        """A sequence of the caller as (B, tokens, width)."""
        if not self.batched:
            return sequence.unsqueeze(0)
        return sequence if self.batch_first else sequence.transpose(0, 1)

    def to_heads(self, sequence: Tensor, heads: int) -> Tensor:
        """A sequence of the caller, cut into heads, as (B, H, tokens, d)."""
        return self.to_batch_first(sequence).unflatten(-1, (heads, -1)).transpose(1, 2)

    def from_heads(self, sequence: Tensor) -> Tensor:
        """From (B, H, tokens, d) to a sequence of the caller, of width H·d."""
        if not self.batched:
            return sequence.squeeze(0).transpose(0, 1).flatten(1)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return sequence.permute(order).flatten(2)

    def without_batch(self, statistic: Tensor) -> Tensor:
        """From (B, ...) to what a caller without a batch expects."""
        return statistic if self.batched else statistic.squeeze(0)
