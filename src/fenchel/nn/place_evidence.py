r"""What a query says of a place: observations :math:`x \approx c` with a precision Λ, as evidence on (x, xxᵀ).

.. math:: z = \bigl(\Lambda c,\ -\tfrac12\Lambda\bigr), \qquad
          \langle(x, xx^\top), z\rangle = -\tfrac12(x - c)^\top\Lambda(x - c) + \text{constant}

so that at first order the density over places is u times a Gaussian likelihood of precision αΛ: always a density.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.nn.value_signal import inverse_and_determinant

__all__ = ["ContentPlace", "QueryPlace", "evidence_of"]

LEAST_WIDTH = 1e-3
"""Standard deviation, in sizes of the signal, below which no place is observed: precisions stay within float32."""


def evidence_of(centre: Tensor, precision: Tensor) -> Tensor:
    """Z of places (..., k) that are observed with precisions (..., k, k), (..., k + k²)."""
    linear = (precision @ centre.unsqueeze(-1)).squeeze(-1)
    return torch.cat([linear, -precision.flatten(-2) / 2], -1)


class QueryPlace(nn.Module):
    """Place and precision from the query alone: a linear map, and what makes it a place and a precision.

    Args:
        embed_dim: Width of queries.
        num_heads: H.
        dimensions: k.
        width: Standard deviation with which places are observed where the map gives 0.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dimensions: int,
        width: float,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self._heads, self._k, self._width = num_heads, dimensions, width
        numbers = dimensions + dimensions * (dimensions + 1) // 2
        self.map = nn.Linear(embed_dim, num_heads * numbers, device=device, dtype=dtype)

    def forward(
        self, query: Tensor, key: Tensor, places: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, H, m, k) and precisions (B, H, m, k, k) of queries (B, m, E)."""
        del key, places, counted
        raw = self.map(query).unflatten(-1, (self._heads, -1)).transpose(1, 2)
        raw = raw.float() if raw.dtype in (torch.float16, torch.bfloat16) else raw
        centre, rest = raw[..., : self._k].sigmoid(), raw[..., self._k :]
        diagonal = nn.functional.softplus(rest[..., : self._k] + math.log(math.e - 1)) / self._width
        # Beyond it a precision would leave what the dtype holds.
        root = torch.diag_embed(diagonal.clamp(max=1 / LEAST_WIDTH))
        if self._k == 2:
            below = (rest[..., 2] / self._width).clamp(-1 / LEAST_WIDTH, 1 / LEAST_WIDTH)
            root = root + nn.functional.pad(below[..., None, None], (0, 1, 1, 0))
        return centre, root @ root.mT


class ContentPlace(nn.Module):
    """Place and precision from what is there: mean and spread of the places, in dot-product attention to the keys.

    Args:
        embed_dim: Width of queries and keys.
        num_heads: H.
        width: Standard deviation that is added to the spread.
        bias: Whether the projections have a bias.
        device: Of the parameters.
        dtype: Of the parameters.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        width: float,
        bias: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self._heads, self._width = num_heads, max(width, LEAST_WIDTH)
        self.query_proj, self.key_proj = (
            nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype) for _ in range(2)
        )

    def forward(
        self, query: Tensor, key: Tensor, places: Tensor, counted: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Centres (B, H, m, k) and precisions (B, H, m, k, k) of queries (B, m, E) that look at keys (B, n, E)."""
        heads = (self._heads, -1)
        q, k = (
            map_of(x).unflatten(-1, heads).transpose(1, 2)
            for map_of, x in ((self.query_proj, query), (self.key_proj, key))
        )
        q, k = (x.float() if x.dtype in (torch.float16, torch.bfloat16) else x for x in (q, k))
        places = places.to(q.dtype)
        offsets = places - places.mean(-2, keepdim=True)
        squares = (offsets.unsqueeze(-1) * offsets.unsqueeze(-2)).flatten(-2)
        shown = torch.cat([offsets, squares], -1)
        shown = shown.expand(q.shape[0], *shown.shape[-2:]).unsqueeze(1).expand(-1, self._heads, -1, -1)
        mask = None
        if counted is not None:
            mask = (counted | ~counted.any(-1, keepdim=True))[:, None, None]
        averages = nn.functional.scaled_dot_product_attention(q, k, shown, attn_mask=mask)
        dim = places.shape[-1]
        mean, second = averages[..., :dim], averages[..., dim:].unflatten(-1, (dim, dim))
        spread = second - mean.unsqueeze(-1) * mean.unsqueeze(-2)
        identity = torch.eye(dim, dtype=q.dtype, device=q.device)
        middle = places.mean(-2, keepdim=True)
        middle = middle if middle.dim() == 2 else middle.unsqueeze(1)
        return mean + middle, inverse_and_determinant(spread + self._width**2 * identity)[0]
