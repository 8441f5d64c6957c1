"""A learned vector for every offset of rows and columns of a grid, added to the keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.arguments import checked
from fenchel.arguments.tensor import check_device, check_dtype
from fenchel.errors import ProblemError
from fenchel.nn.evidence.arguments import check_heads, check_pair
from fenchel.nn.evidence.positional import AbstractPositionalEvidence
from fenchel.nn.evidence.templates import RelativeTemplates
from fenchel.nn.first_query import first_query_position
from fenchel.nn.sizes import check_grid, check_pixels, check_positive, check_sizes

__all__ = ["RelativeGridKeys"]


class RelativeGridKeys(AbstractPositionalEvidence):
    r"""Offsets in an image, :math:`z_i = q_i` and :math:`t_{ij} = k_j + (a_{\text{rows}}, b_{\text{columns}})`.

    Tokens are the pixels of a grid, row by row. Half of the coordinates say how many rows the key is below the query,
    the other half how many columns to its right. Beyond ``reach`` in either direction offsets share its vectors; with
    :class:`~fenchel.nn.preference.GridWindow` of the same reach no query sees farther. The parameters ``rows`` and
    ``columns`` (heads, 2 · reach + 1, dim / 2), which begin with the offset −reach, are drawn from a normal
    distribution with standard deviation 0.02.

    Args:
        heads: Number of heads, or 1 to share the vectors.
        dim: d of each head, even.
        grid: Rows and columns of the image.
        reach: The largest offset that has vectors of its own: (k − 1) / 2 for a window of k × k.
        scale: Scale of the templates; the paper has none.

    Raises:
        ProblemError: If an argument cannot be used; when called, if there are other heads, another d, or tokens that do
            not fill the grid.

    Reference:
        Ramachandran et al. 2019, Stand-alone self-attention in vision models, eq. (3).

    Example:
        >>> z, templates, scale = RelativeGridKeys(1, 4, grid=(2, 3), reach=1)(*torch.ones(2, 1, 2, 6, 4))
        >>> templates.relative.shape, templates.row_index[0].tolist()
        (torch.Size([1, 1, 9, 4]), [4, 5, 5, 7, 8, 8])
    """

    def __init__(self, heads: int, dim: int, grid: tuple[int, int], reach: int, scale: float = 1.0) -> None:
        super().__init__()
        check_sizes("RelativeGridKeys", heads=heads, dim=dim)
        height, width = check_grid("RelativeGridKeys", grid)
        checked("reach", reach, name="reach of RelativeGridKeys", error=ProblemError)
        check_positive("RelativeGridKeys", scale=scale)
        if dim % 2:
            raise ProblemError(
                f"dim of RelativeGridKeys is {dim}; expected an even number: half is for rows, half for columns."
            )
        self.grid, self.reach, self.scale = (height, width), reach, scale
        self.rows = nn.Parameter(0.02 * torch.randn(heads, 2 * reach + 1, dim // 2))
        self.columns = nn.Parameter(0.02 * torch.randn(heads, 2 * reach + 1, dim // 2))

    def forward(
        self, query: Tensor, key: Tensor, query_offset: int | None = None
    ) -> tuple[Tensor, RelativeTemplates, float]:
        """The query, and keys with the vectors of their offsets."""
        check_pair(query, key)
        heads, offsets, half = self.rows.shape
        check_heads("RelativeGridKeys", heads, query)
        check_dtype("query", query, self.rows.dtype, "RelativeGridKeys")
        check_device("query", query, self.rows.device, "RelativeGridKeys")
        for name, tensor in (("query", query), ("key", key)):
            if tensor.shape[-1] != 2 * half:
                raise ProblemError(
                    f"{name} has shape {tuple(tensor.shape)}, but RelativeGridKeys was built with dim={2 * half}, the "
                    "last."
                )
        first = first_query_position(query_offset, query.shape[2], key.shape[2])
        last = first + query.shape[2]
        check_pixels("RelativeGridKeys", self.grid, key.shape[2], last)
        queries = torch.arange(first, last, device=key.device).unsqueeze(-1)
        keys = torch.arange(key.shape[2], device=key.device)
        row, column = (
            (at(keys) - at(queries)).clamp(-self.reach, self.reach) + self.reach
            for at in (lambda x: x // self.grid[1], lambda x: x % self.grid[1])
        )
        both = (
            self.rows.unsqueeze(2).expand(-1, -1, offsets, -1),
            self.columns.unsqueeze(1).expand(-1, offsets, -1, -1),
        )
        relative = torch.cat(both, -1).flatten(1, 2).unsqueeze(0)
        return query, RelativeTemplates(key, relative.to(query.dtype), row * offsets + column), self.scale

    def extra_repr(self) -> str:
        """Sizes."""
        heads, _, half = self.rows.shape
        scale = "" if self.scale == 1 else f", scale={self.scale}"
        return f"heads={heads}, dim={2 * half}, grid={self.grid}, reach={self.reach}{scale}"
