"""A small network that sees a token and all tokens at once."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.nn.sizes import check_sizes

__all__ = ["ContextNetwork"]


class ContextNetwork(nn.Module):
    r"""Scores each token by what it is and by what it is among, :math:`v_h^\top \mathrm{GELU}(W x_j + U \bar x + c)`.

    :math:`\bar x` is the mean over the tokens that are not padding. v starts at 0, so that all scores do.

    Args:
        heads: How many scores a token gets.
        key_dim: Width of a token.
        hidden: Width in between.

    Raises:
        ProblemError: If a size is not a whole number of at least 1.

    Example:
        >>> ContextNetwork(heads=4, key_dim=6)(torch.ones(2, 3, 6)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, heads: int, key_dim: int, hidden: int = 64) -> None:
        super().__init__()
        check_sizes("ContextNetwork", heads=heads, key_dim=key_dim, hidden=hidden)
        self.own = nn.Linear(key_dim, hidden)
        self.among = nn.Linear(key_dim, hidden, bias=False)
        self.score = nn.Linear(hidden, heads, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, tokens: Tensor, key_padding: Tensor | None = None) -> Tensor:
        """The scores.

        Args:
            tokens: (B, n, key_dim).
            key_padding: True where a token is padding, bool (B, n); it does not enter the mean.

        Returns:
            (B, n, heads).
        """
        if key_padding is None:
            key_padding = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        real = ~key_padding.unsqueeze(-1)
        # Padding may hold anything, NaN too: it is left out, not multiplied by 0.
        mean = torch.where(real, tokens, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return self.score(nn.functional.gelu(self.own(tokens) + self.among(mean)))
