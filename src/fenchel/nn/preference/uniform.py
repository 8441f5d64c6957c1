"""No belief at all."""

from __future__ import annotations

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["Uniform"]


class Uniform(AbstractPreference):
    r"""Everything is as likely as everything else, :math:`\log u_i = 0`: plain dot-product attention.

    It is the identity of multiplication, and gives None instead of a tensor.

    Reference:
        Vaswani et al. 2017, Attention is all you need, section 3.2.1.

    Example:
        >>> from fenchel.nn.preference import Causal
        >>> Uniform() * Causal()
        Causal()
    """

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """None: nothing is added to a score."""
        return None
