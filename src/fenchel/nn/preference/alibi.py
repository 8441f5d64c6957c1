"""A penalty that is linear in distance."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_flags
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_sizes

__all__ = ["ALiBi", "alibi_slopes"]


class ALiBi(AbstractPreference):
    r"""Keys count less the farther away they are, :math:`\log u_{ij} = -s_h \lvert i - j \rvert`.

    i is the query's position on the keys' axis and :math:`s_h > 0` the head's slope. Under :class:`Causal` this is the
    paper's; without it, it is the symmetric form for encoders.

    Args:
        heads: Number of heads, or 1 to share a slope.
        symmetric: Penalise both directions. If False, the log-weight is :math:`-s_h (i - j)`, which favours keys after
            the query: multiply it by :class:`Causal`, or learn it as a drift.
        learned: Whether slopes are learned, as exp of a parameter, so that they stay positive. They start as
            :func:`alibi_slopes`.

    Raises:
        ProblemError: If ``heads`` is not a whole number of at least 1.

    Reference:
        Press et al. 2022, Train short, test long, section 3.

    Example:
        >>> from fenchel.nn.preference import Causal
        >>> Causal() * ALiBi(heads=8)
        Causal() * ALiBi(heads=8)
    """

    depends_on_distance = True
    fixed_slopes: Tensor

    def __init__(self, heads: int, symmetric: bool = True, learned: bool = False) -> None:
        super().__init__()
        check_sizes("ALiBi", heads=heads)
        check_flags(symmetric=symmetric, learned=learned)
        self.heads, self.symmetric, self.learned = heads, symmetric, learned
        self.log_slopes = nn.Parameter(alibi_slopes(heads).log()) if learned else None
        self.register_buffer("fixed_slopes", None if learned else alibi_slopes(heads), persistent=False)

    @property
    def slopes(self) -> Tensor:
        """The slope of each head, positive, (heads,)."""
        return table(self.fixed_slopes) if self.log_slopes is None else table(self.log_slopes).exp()

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """Minus the slope times the distance."""
        position, symmetric, heads, slopes = (
            inputs.query_position(),
            self.symmetric,
            self.heads or 1,
            self.slopes,
        )

        def penalty(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = position(q) - k
            return -slopes[head_row(h, heads)] * (distance.abs() if symmetric else distance)

        return penalty

    def extra_repr(self) -> str:
        """Heads and what differs from the default."""
        options = ("" if self.symmetric else ", symmetric=False") + (", learned=True" if self.learned else "")
        return f"heads={self.heads}{options}"


def alibi_slopes(heads: int) -> Tensor:
    """The paper's slopes, float32 (heads,): :math:`2^{-8/H}, 2^{-16/H}, ...` for a power of two H.

    For other numbers those of the power of two below come first, then every other one of the power of two above.

    Example:
        >>> alibi_slopes(3).tolist()
        [0.0625, 0.00390625, 0.25]
    """
    below = 2 ** math.floor(math.log2(heads))

    def geometric(count: int) -> list[float]:
        return [2.0 ** (-8.0 * (i + 1) / count) for i in range(count)]

    return torch.tensor(geometric(below) + geometric(2 * below)[::2][: heads - below])
