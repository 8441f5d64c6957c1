"""A soft window around the place that is as far into one sequence as the query is into another."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["ProportionalWindow"]


class ProportionalWindow(AbstractPreference):
    r"""A Gaussian around the proportional place, :math:`\log u_{hij} = -(j - c_i)^2 / 2\sigma_h^2`.

    Of m queries and n keys, query i is at the share :math:`(i + \tfrac12)/m` of its own sequence, and
    :math:`c_i = (i + \tfrac12)\,n/m - \tfrac12` at the same share of the other. m and n count what is not padding,
    which is taken to stand at the end; queries before the first one, ``query_offset`` of them, count too: it is 0
    where all queries are given at once. The logarithm of :math:`\sigma_h` is a parameter.

    Args:
        heads: Number of heads, or 1 to share the width.
        width: Every :math:`\sigma` at the start.

    Raises:
        ProblemError: If a size is not positive.

    Reference:
        The papers' section 3.1: the preference is larger for words at similar places in the sentence.

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 2, 4, torch.device("cpu"), torch.float32, query_offset=0)
        >>> (-2 * ProportionalWindow(heads=1, width=1.0)(inputs)[0, 0, 0]).tolist()  # around 0.5
        [0.25, 0.25, 2.25, 6.25]
    """

    def __init__(self, heads: int, width: float = 4.0) -> None:
        super().__init__()
        check_sizes("ProportionalWindow", heads=heads)
        check_positive("ProportionalWindow", width=width)
        self.heads = heads
        self.log_width = nn.Parameter(torch.full((heads,), math.log(width)))

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The Gaussian's logarithm, from a table of places with an entry for every query."""
        precision, heads = torch.exp(-2 * table(self.log_width)) / 2, self.heads or 1
        counts = [
            torch.full((inputs.batch, 1), float(count), device=inputs.device)
            if padding is None
            else (~padding).sum(1, keepdim=True).to(torch.float32)
            for count, padding in (
                (inputs.keys, inputs.key_padding),
                (inputs.queries, inputs.query_padding),
            )
        ]
        share = counts[0] / (counts[1] + inputs.first_query).clamp_min(1)
        places = (inputs.query_positions + 0.5) * share - 0.5

        def from_place(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            distance = k - places[b, q]
            return -distance * distance * precision[head_row(h, heads)]

        return from_place

    def extra_repr(self) -> str:
        """Heads."""
        return f"heads={self.heads}"
