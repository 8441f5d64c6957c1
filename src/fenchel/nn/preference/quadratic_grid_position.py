"""A penalty that is quadratic in the distance on an image from a centre beside the query: convolution as attention."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_grid, check_positive, check_sizes

__all__ = ["QuadraticGridPosition"]


class QuadraticGridPosition(AbstractPreference):
    r"""Each head looks to one side, :math:`\log u_{hij} = -a_h\lVert x_j - x_i - \Delta_h\rVert^2`, :math:`a_h > 0`.

    :math:`x_i` is the row and column of query i. Tokens are the pixels of a grid, row by row; with ``padding`` the keys
    are those of the grid with as many further rows and columns on every side, whose values a convolution takes to be 0.
    The centres :math:`\Delta_h` start as the shifts of a kernel, one a head, and are learned; a is exp of the parameter
    ``log_curvature``.

    **As a grows this is convolution.** Where z = 0 and :math:`x_i + \Delta_h` is a pixel c of the keys, the weight
    beside it is at most ``leakage``,

    .. math:: 1 - p_c = \frac{S}{1 + S} \le S \le 4\varepsilon(1 + \varepsilon), \qquad
              S = \sum_{j \ne c} e^{-a\lVert x_j - x_c\rVert^2}, \qquad \varepsilon = \frac{e^{-a}}{1 - e^{-3a}}

    since S is at most the sum over all of :math:`\mathbb{Z}^2` but 0, which is
    :math:`(1 + 2\sum_{k \ge 1} e^{-ak^2})^2 - 1`, and :math:`k^2 \ge 1 + 3(k - 1)`. So a head's output is within
    :math:`4\varepsilon(1 + \varepsilon)` times the largest :math:`\lVert v_j - v_c\rVert` of the shifted pixel's value,
    and heads that are mapped by :math:`W_h` and added are within :math:`\sum_h \lVert W_h\rVert` times that of a
    convolution with the kernel :math:`W`: an error of order :math:`e^{-a}`.

    Args:
        grid: Rows and columns of the image, whose pixels are the queries.
        heads: Number of heads, one a shift; 1 is one centre for all.
        kernel: Rows and columns of the shifts, as many as heads; None is K x K for K² heads. They are those of
            ``torch.nn.Conv2d(kernel, padding="same")``: from -(K - 1) // 2 to K // 2.
        width: The width :math:`1/\sqrt{2a}` at the start.
        padding: Further rows and columns of keys, or one number for both.

    Raises:
        ProblemError: If sizes are not positive, or heads are not as many as shifts; when called, if tokens do not fill
            the grids.

    Reference:
        Cordonnier et al. 2020, On the relationship between self-attention and convolutional layers, theorem 1, lemma 1
        and section 2.3, eq. (8).

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 9, 6, 20, torch.device("cpu"), torch.float32)
        >>> u = QuadraticGridPosition((2, 3), heads=9, width=0.2, padding=1)
        >>> u(inputs).softmax(-1)[0, 0, 0].argmax().item()             # up and to the left of the first pixel: padding
        0
        >>> QuadraticGridPosition((2, 3), heads=5)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: heads of QuadraticGridPosition is 5, which is no grid of K x K centres; ...
    """

    def __init__(
        self,
        grid: tuple[int, int],
        heads: int,
        kernel: tuple[int, int] | None = None,
        width: float = 0.5,
        padding: int | tuple[int, int] = 0,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        self.grid = check_grid(name, grid)
        check_sizes(name, heads=heads)
        check_positive(name, width=width)
        self.padding = _checked_padding(name, padding)
        self.heads = heads
        rows, columns = (
            torch.arange(-((size - 1) // 2), size // 2 + 1, dtype=torch.get_default_dtype())
            for size in _checked_kernel(name, heads, kernel)
        )
        self.centre = nn.Parameter(torch.cartesian_prod(rows, columns).view(heads, 2))
        self.log_curvature = nn.Parameter(torch.full((heads,), -math.log(2 * width**2)))

    @property
    def curvature(self) -> Tensor:
        """Each head's a, positive, (heads,)."""
        return table(self.log_curvature).exp()

    @property
    def leakage(self) -> Tensor:
        """At most how much weight a head has beside its centre, where that is a key and z = 0, (heads,)."""
        curvature = self.curvature
        beside = torch.exp(-curvature) / -torch.expm1(-3 * curvature)
        return (4 * beside * (1 + beside)).clamp_max(1)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The paraboloid at the shift from q to k."""
        # All pixels begin with the first, however many keys there are.
        all_pixels = inputs.query_offset is None and inputs.queries == self.grid[0] * self.grid[1]
        position, heads = _own if all_pixels else inputs.query_position(), self.heads or 1
        curvature, centre = self.curvature, table(self.centre)
        own = self.grid[1]
        others = own + 2 * self.padding[1]
        up, left = self.padding

        def paraboloid(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            here, row = position(q), head_row(h, heads)
            down = k // others - here // own - up - centre[row, torch.zeros_like(row)]
            across = k % others - here % own - left - centre[row, torch.ones_like(row)]
            return -curvature[row] * (down * down + across * across)

        return paraboloid

    def check(self, inputs: AttentionInputs) -> None:
        """Hold tokens against the grids."""
        super().check(inputs)
        (rows, columns), (up, left) = self.grid, self.padding
        last = (inputs.query_offset or 0) + inputs.queries
        keys = (rows + 2 * up) * (columns + 2 * left)
        if inputs.keys != keys or last > rows * columns:
            raise ProblemError(
                f"there are {inputs.keys} keys, and queries up to place {last} (counted from 1); expected {keys} keys, "
                f"the grid {rows} x {columns} of QuadraticGridPosition with a padding of {self.padding}, and queries "
                f"up to place {rows * columns}. Pad the image that keys and values are made of, not the queries'."
            )

    def extra_repr(self) -> str:
        """Grid, heads and padding."""
        padding = f", padding={self.padding}" if any(self.padding) else ""
        return f"grid={self.grid}, heads={self.heads}{padding}"


def _own(index: Tensor) -> Tensor:
    return index


def _checked_padding(name: str, padding: int | tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of padding."""
    both = padding if isinstance(padding, tuple | list) else (padding, padding)
    for size in both:
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 2**24 or len(both) != 2:
            raise ProblemError(
                f"padding of {name} is {shown(padding)}; expected a whole number of at least 0, or two: rows, columns"
            )
    return both[0], both[1]


def _checked_kernel(name: str, heads: int, kernel: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of the centres."""
    if kernel is None:
        side = math.isqrt(heads)
        if side * side != heads:
            raise ProblemError(
                f"heads of {name} is {heads}, which is no grid of K x K centres; expected a square, such as "
                f"{side * side} or {(side + 1) ** 2}, or kernel=(rows, columns) with rows times columns {heads}, such "
                f"as kernel=(1, {heads})."
            )
        return side, side
    if not isinstance(kernel, tuple | list) or len(kernel) != 2:
        raise ProblemError(
            f"kernel of {name} is {shown(kernel)}; expected two numbers, rows and columns, such as (3, 3), or None"
        )
    for size_name, size in zip(("rows", "columns"), kernel, strict=True):
        check_sizes(f"the kernel of {name}", **{size_name: size})
    if kernel[0] * kernel[1] != heads:
        raise ProblemError(
            f"heads of {name} is {heads}, but its kernel {kernel[0]} x {kernel[1]} has {kernel[0] * kernel[1]} "
            f"centres; build it with heads={kernel[0] * kernel[1]}."
        )
    return kernel[0], kernel[1]
