"""The last part of a translator: from the inferred mean and the decoder's state to the next word."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.models.translation.sentence_dropout import SentenceDropout

__all__ = ["HEADS", "Head"]

HEADS = ("add", "concat")
"""Ways to put h and s together, by name."""


class Head(nn.Module):
    r"""Puts the inferred mean h and the state s together, and scores every word of the target language.

    * ``add``: :math:`x = h + s`, as the papers' figure 2a draws it.
    * ``concat``: :math:`x = \tanh(W [h; s])`.

    The scores are :math:`E x + b`; E are the embeddings of the target's words, or weights of its own.

    Args:
        vocabulary: How many numbers words have.
        width: Of h and s.
        kind: ``add`` or ``concat``.
        dropout: Probability in [0, 1) with which elements of x are dropped before words are scored.
        tied: Whether E are the embeddings.

    Reference:
        The papers' figure 2a; Luong et al. 2015, equations (5) and (6).

    Example:
        >>> head = Head(vocabulary=20, width=8, kind="concat")
        >>> head(head.joined(torch.ones(2, 5, 8), torch.ones(2, 5, 8))).shape
        torch.Size([2, 5, 20])
    """

    def __init__(
        self, vocabulary: int, width: int, kind: str = "concat", *, dropout: float = 0.0, tied: bool = False
    ) -> None:
        super().__init__()
        self.kind = kind
        self.join = nn.Linear(2 * width, width, bias=False) if kind == "concat" else None
        self.dropout = SentenceDropout(dropout)
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, width).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def joined(self, h: Tensor, state: Tensor) -> Tensor:
        """x, (..., width), from h and s of that shape."""
        if self.join is None:
            return h + state
        return torch.tanh(self.join(torch.cat((h, state), -1)))

    def forward(self, x: Tensor, embeddings: Tensor | None = None) -> Tensor:
        """Scores (B, m, vocabulary).

        Args:
            x: (B, m, width).
            embeddings: E where it is not the head's own, (vocabulary, width).
        """
        weight = embeddings if self.weight is None else self.weight
        assert weight is not None  # noqa: S101 - the translator gives it to a head that is tied
        return nn.functional.linear(self.dropout(x), weight, self.bias)

    def extra_repr(self) -> str:
        """How it puts both together."""
        return f"kind={self.kind!r}, tied={self.weight is None}"
