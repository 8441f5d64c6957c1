"""BERT's embeddings: what stands where, in which of two segments, and in which language."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ClozeEmbeddings"]


class ClozeEmbeddings(nn.Module):
    r"""The sum of what is learned of a word, its place, its segment and its language, normed.

    .. math:: x_i = \mathrm{norm}(w_{\mathrm{word}(i)} + p_{\mathrm{place}(i)} + s_{\mathrm{segment}(i)}
              + l_{\mathrm{language}(i)})

    Args:
        vocabulary: How many numbers words have; 0 is padding.
        width: Of the embeddings.
        longest: How many places there are.
        segments: How many segments there are.
        languages: How many languages there are; with 0 nothing is learned of them.
        dropout: Probability of dropping an element of the sum.
        norm_eps: Of the norm.

    Reference:
        Devlin et al. 2019, BERT, figure 2; Conneau and Lample 2019, Cross-lingual language model pretraining, figure 1.

    Example:
        >>> embeddings = ClozeEmbeddings(vocabulary=30, width=8, longest=16)
        >>> embeddings(torch.tensor([[3, 9, 4, 0]])).shape
        torch.Size([1, 4, 8])
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        longest: int,
        segments: int = 2,
        languages: int = 0,
        dropout: float = 0.1,
        norm_eps: float = 1e-12,
    ) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position = nn.Embedding(longest, width)
        self.segment = nn.Embedding(segments, width)
        self.language = nn.Embedding(languages, width) if languages else None
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        numbers: Tensor,
        segments: Tensor | None = None,
        positions: Tensor | None = None,
        languages: Tensor | None = None,
    ) -> Tensor:
        """Embeddings (B, n, width).

        Args:
            numbers: Of the words (B, n).
            segments: Of each (B, n); None is 0 everywhere.
            positions: Of each (B, n); None counts from 0.
            languages: Of each (B, n); None is 0 everywhere.
        """
        if positions is None:
            positions = torch.arange(numbers.shape[1], device=numbers.device).expand_as(numbers)
        none = torch.zeros_like(numbers)
        found = self.word(numbers) + self.position(positions)
        found = found + self.segment(none if segments is None else segments)
        if self.language is not None:
            found = found + self.language(none if languages is None else languages)
        return self.dropout(self.norm(found))
