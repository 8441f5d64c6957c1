"""A penalty that is quadratic in distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["QuadraticPosition"]


class QuadraticPosition(AbstractPreference):
    r"""Quadratic relative position, :math:`\log u_{ij} = -a_h (i - j)^2 + b_h (i - j)`, :math:`a_h > 0`.

    i is the query's position on the keys' axis. Up to a constant this is a Gaussian around :math:`i - b/2a` of width
    :math:`1/\sqrt{2a}`: with large a the head attends to one shift, and heads with all shifts make a convolution.
    a is exp of the parameter ``log_curvature``; b is the parameter ``drift``, which starts at 0.

    Args:
        heads: Number of heads, or 1 to share a and b.
        width: The width :math:`1/\sqrt{2a}` at the start.

    Raises:
        ProblemError: If ``heads`` or ``width`` is not positive.

    Reference:
        Cordonnier et al. 2020, On the relationship between self-attention and convolutional layers, section 2.3,
        eq. (8), in one dimension.

    Example:
        >>> QuadraticPosition(heads=4, width=2.0).curvature[0].item()
        0.125
    """

    depends_on_distance = True

    def __init__(self, heads: int, width: float = 8.0) -> None:
        super().__init__()
        check_sizes("QuadraticPosition", heads=heads)
        check_positive("QuadraticPosition", width=width)
        self.heads = heads
        self.log_curvature = nn.Parameter(torch.full((heads,), -math.log(2 * width**2)))
        self.drift = nn.Parameter(torch.zeros(heads))

    @property
    def curvature(self) -> Tensor:
        """Each head's a, positive, (heads,)."""
        return table(self.log_curvature).exp()

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The parabola at the distance of q and k."""
        position, heads = inputs.query_position(), self.heads or 1
        curvature, drift = self.curvature, table(self.drift)

        def parabola(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = position(q) - k
            row = head_row(h, heads)
            return (drift[row] - curvature[row] * distance) * distance

        return parabola

    def extra_repr(self) -> str:
        """Number of heads."""
        return f"heads={self.heads}"
