"""One layer of an encoder: attention and a feed-forward network, each with a norm before it and a sum after it."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["EncoderLayer"]


class EncoderLayer(nn.Module):
    r"""What ``torch.nn.TransformerEncoderLayer`` computes with ``norm_first`` and GELU, around any attention.

    .. math:: y = x + \mathrm{attention}(\mathrm{norm}_1(x)), \qquad
              y + \mathrm{linear}_2(\mathrm{gelu}(\mathrm{linear}_1(\mathrm{norm}_2(y))))

    Parameters have the names of torch's layer, so state dicts fit both. A caller that wants some outputs only, or
    gives the attention more than the tokens, calls the parts.

    Args:
        attention: From the normed tokens to themselves; called as ``torch.nn.MultiheadAttention`` is by
            :meth:`forward`.
        width: Of the tokens.
        mlp_width: Of the hidden layer of the feed-forward network.
        dropout: Probability of dropping an element of the attention's output, of the hidden layer and of its output.
            Attention weights are not dropped.
    """

    def __init__(self, attention: nn.Module, width: int, mlp_width: int, dropout: float) -> None:
        super().__init__()
        self.self_attn = attention
        self.linear1 = nn.Linear(width, mlp_width)
        self.linear2 = nn.Linear(mlp_width, width)
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, L, width) to tokens, by self-attention."""
        templates = self.norm1(tokens)
        attended, _ = self.self_attn(templates, templates, templates, need_weights=False)
        return self.after_attention(tokens, attended)

    def after_attention(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """The sum with what the tokens attended to, and the feed-forward network with its sum."""
        tokens = tokens + self.dropout(attended)
        hidden = self.dropout(nn.functional.gelu(self.linear1(self.norm2(tokens))))
        return tokens + self.dropout(self.linear2(hidden))
