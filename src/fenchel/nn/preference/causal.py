"""Nothing from the future."""

from __future__ import annotations

from torch import Tensor

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["Causal"]


class Causal(AbstractPreference):
    r"""A query sees no key behind it: :math:`u_j = 0` for j > i, i being the query's position on the keys' axis.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(1, 1, 2, 3, torch.device("cpu"), torch.float32, query_offset=1)
        >>> Causal()(inputs)
        tensor([[[[ True,  True, False],
                  [ True,  True,  True]]]])
    """

    depends_on_distance = True

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k is not later than query q."""
        position = inputs.query_position()

        def is_past(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return k <= position(q)

        return is_past
