"""Nothing from far away in an image."""

from __future__ import annotations

from torch import Tensor

from fenchel.arguments import checked
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.sizes import check_grid, check_pixels

__all__ = ["GridWindow"]


class GridWindow(AbstractPreference):
    r"""A pixel sees those around it: :math:`u_j = 0` unless j is within ``reach`` rows and columns of i.

    Tokens are the pixels of a grid, row by row. At the border a window has fewer pixels: what lies outside of the
    image is not there, where some implementations put keys of zeros there.

    Args:
        grid: Rows and columns of the image.
        reach: How many rows and columns away a pixel may be: (k − 1) / 2 for a window of k × k.

    Raises:
        ProblemError: If the grid is no two numbers or the reach negative; when called, if tokens do not fill the grid.

    Reference:
        Ramachandran et al. 2019, Stand-alone self-attention in vision models, section 3.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 6, 6, torch.device("cpu"), torch.float32)
        >>> GridWindow((2, 3), reach=1)(inputs)[0, 0, 0].int().tolist()
        [1, 1, 0, 1, 1, 0]
    """

    def __init__(self, grid: tuple[int, int], reach: int) -> None:
        super().__init__()
        self.grid = check_grid("GridWindow", grid)
        checked("reach", reach, name="reach of GridWindow", error=ProblemError)
        self.reach = reach

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k is in the window of query q."""
        position, reach, columns = inputs.query_position(), self.reach, self.grid[1]

        def is_near(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            here = position(q)
            rows, across = k // columns - here // columns, k % columns - here % columns
            return (rows.abs() <= reach) & (across.abs() <= reach)

        return is_near

    def check(self, inputs: AttentionInputs) -> None:
        """Hold tokens against the grid."""
        super().check(inputs)
        check_pixels("GridWindow", self.grid, inputs.keys, (inputs.query_offset or 0) + inputs.queries)

    def extra_repr(self) -> str:
        """Grid and reach."""
        return f"grid={self.grid}, reach={self.reach}"
