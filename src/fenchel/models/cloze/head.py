"""From what was inferred for a place to its word: f_out of figure 2c."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["WordHead"]


class WordHead(nn.Module):
    r"""A fully connected network, and scores of all words from their own embeddings.

    .. math:: W_{\mathrm{word}}\,\mathrm{norm}(\mathrm{gelu}(W h + c)) + b

    The matrix of embeddings is given with every call, so that there is one of it.

    Args:
        width: Of what is inferred and of the embeddings.
        vocabulary: How many words there are.
        norm_eps: Of the norm.

    Reference:
        The papers' figure 2c, FCN and softmax; Press and Wolf 2017, Using the output embedding to improve language
        models.

    Example:
        >>> embeddings = nn.Embedding(30, 8)
        >>> WordHead(8, 30)(torch.randn(2, 5, 8), embeddings.weight).shape
        torch.Size([2, 5, 30])
    """

    def __init__(self, width: int, vocabulary: int, norm_eps: float = 1e-12) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, inferred: Tensor, embeddings: Tensor) -> Tensor:
        """Logits (..., vocabulary).

        Args:
            inferred: (..., width).
            embeddings: Of the words (vocabulary, width).
        """
        hidden = self.norm(nn.functional.gelu(self.linear(inferred)))
        return nn.functional.linear(hidden, embeddings, self.bias)
