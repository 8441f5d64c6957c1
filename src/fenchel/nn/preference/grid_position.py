"""One learned number for every offset of rows and columns of a grid."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_grid, check_pixels, check_sizes

__all__ = ["GridPosition"]


class GridPosition(AbstractPreference):
    r"""A learned log-weight for every head and offset in an image, :math:`\log u_{ij} = w_{h,\Delta r,\Delta c}`.

    Tokens are the pixels of a grid, row by row, and the offset is that of query i from key j, in rows and columns. The
    parameter ``bias`` (heads, 2 · rows − 1, 2 · columns − 1), whose first entry belongs to keys farthest below and to
    the right, is drawn from a normal distribution with standard deviation 0.02. Swin has it, with its table flattened
    to rows and transposed.

    Args:
        heads: Number of heads, or 1 to share the bias.
        grid: Rows and columns of the image, or of the window.

    Raises:
        ProblemError: If a size is not positive; when called, if tokens do not fill the grid.

    Reference:
        Liu et al. 2021, Swin transformer, eq. (4).

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(2, 8, 6, 6, torch.device("cpu"), torch.float32)
        >>> GridPosition(heads=8, grid=(2, 3))(inputs).shape
        torch.Size([1, 8, 6, 6])
    """

    def __init__(self, heads: int, grid: tuple[int, int]) -> None:
        super().__init__()
        check_sizes("GridPosition", heads=heads)
        self.heads, self.grid = heads, check_grid("GridPosition", grid)
        rows, columns = self.grid
        self.bias = nn.Parameter(0.02 * torch.randn(heads, 2 * rows - 1, 2 * columns - 1))

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The entry of the bias at the offset of q from k."""
        position, (rows, columns), heads = inputs.query_position(), self.grid, self.heads or 1
        bias = table(self.bias)

        def at_offset(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            here = position(q)
            down, across = here // columns - k // columns, here % columns - k % columns
            return bias[head_row(h, heads), down + rows - 1, across + columns - 1]

        return at_offset

    def check(self, inputs: AttentionInputs) -> None:
        """Hold tokens against the grid."""
        super().check(inputs)
        check_pixels("GridPosition", self.grid, inputs.keys, (inputs.query_offset or 0) + inputs.queries)

    def extra_repr(self) -> str:
        """Heads and grid."""
        return f"heads={self.heads}, grid={self.grid}"
