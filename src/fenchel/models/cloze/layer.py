"""A transformation layer as BERT has it, around attention as inference: each norm comes after its sum."""

from __future__ import annotations

from torch import Tensor, nn

from fenchel.nn import MultiheadAttention

__all__ = ["FeedForward", "TransformationLayer"]


class FeedForward(nn.Module):
    r"""A network on every place by itself, with its sum and norm.

    .. math:: \mathrm{norm}(x + W_2\,\mathrm{gelu}(W_1 x + b_1) + b_2)

    Args:
        width: Of the places.
        mlp_width: Of the hidden layer.
        dropout: Probability of dropping an element of what is added.
        norm_eps: Of the norm.
    """

    def __init__(self, width: int, mlp_width: int, dropout: float, norm_eps: float) -> None:
        super().__init__()
        self.linear1 = nn.Linear(width, mlp_width)
        self.linear2 = nn.Linear(mlp_width, width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, places: Tensor) -> Tensor:
        """Places (..., width) to places."""
        added = self.linear2(nn.functional.gelu(self.linear1(places)))
        return self.norm(places + self.dropout(added))


class TransformationLayer(nn.Module):
    r"""Self-attention with its sum and norm, and a :class:`FeedForward`: a layer of BERT.

    .. math:: y = \mathrm{norm}(x + \mathrm{attention}(x)), \qquad \mathrm{FeedForward}(y)

    Args:
        attention: From the tokens to themselves.
        mlp_width: Of the hidden layer of the feed-forward network.
        dropout: Probability of dropping an element of what is added to a sum. Attention weights are not dropped.
        norm_eps: Of the norms.

    Reference:
        Devlin et al. 2019, BERT; Vaswani et al. 2017, Attention is all you need, section 3.1.
    """

    def __init__(
        self, attention: MultiheadAttention, mlp_width: int, dropout: float, norm_eps: float
    ) -> None:
        super().__init__()
        width = attention.embed_dim
        self.self_attn = attention
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.feed_forward = FeedForward(width, mlp_width, dropout, norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, padding: Tensor) -> Tensor:
        """Tokens (B, n, width) to tokens.

        Args:
            tokens: Of each row.
            padding: True where there is none, bool (B, n).
        """
        attended, _ = self.self_attn(tokens, tokens, tokens, key_padding_mask=padding, need_weights=False)
        return self.feed_forward(self.norm(tokens + self.dropout(attended)))
