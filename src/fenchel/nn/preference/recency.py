"""What lies long ago says less, before anybody looks."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_positive, check_sizes

__all__ = ["Recency"]


class Recency(AbstractPreference):
    r"""Importance decays with the time since, :math:`\log u_{hj} = -\rho_h g_j`, of events that are no steps apart.

    The gap :math:`g_j \ge 0`, how long ago key j was, is the last of the numbers in the layer's inputs at that key. The
    rate :math:`\rho_h` is exp of a parameter, so that it stays positive. Queries share it, (B, heads, 1, n).

    Args:
        heads: Number of heads, or 1 to share the rate.
        rate: Every :math:`\rho` at the start, in one over the unit of the gaps.

    Raises:
        ProblemError: If a size or the rate is not positive; when called, if ``key_inputs`` is None.

    Reference:
        Rajkomar et al. 2018, Scalable and accurate deep learning with electronic health records: attention to events
        at times; the textbook's 15.4.5.

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> events = torch.tensor([[[0.3, 2.0], [0.1, 1.0]]])  # a number, and how long ago
        >>> inputs = AttentionInputs(1, 1, 1, 2, events.device, events.dtype, key_inputs=events)
        >>> Recency(heads=1, rate=0.5)(inputs).flatten().tolist()
        [-1.0, -0.5]
    """

    def __init__(self, heads: int, rate: float = 0.1) -> None:
        super().__init__()
        check_sizes("Recency", heads=heads)
        check_positive("Recency", rate=rate)
        self.heads = heads
        self.log_rate = nn.Parameter(torch.full((heads,), math.log(rate)))

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """Minus the rate times the gap of key k, from a table with an entry for every key and head."""
        gaps = inputs.required("key_inputs", reader="Recency")[..., -1]
        decay, heads = table(gaps.unsqueeze(-1) * -self.log_rate.exp()), self.heads or 1

        def of_key(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return decay[b, k, head_row(h, heads)]

        return of_key

    def extra_repr(self) -> str:
        """Heads."""
        return f"heads={self.heads}"
