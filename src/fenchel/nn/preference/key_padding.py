"""Keys that stand for nothing."""

from __future__ import annotations

from torch import Tensor

from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs

__all__ = ["KeyPadding"]


class KeyPadding(AbstractPreference):
    r"""Padding has no weight: :math:`u_j = 0` where ``inputs.key_padding`` is True, whatever the query.

    Uniform where ``inputs.key_padding`` is None.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> padding = torch.tensor([[False, False, True]])
        >>> inputs = AttentionInputs(1, 2, 4, 3, padding.device, torch.float32, key_padding=padding)
        >>> KeyPadding()(inputs)
        tensor([[[[ True,  True, False]]]])
    """

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where key k of example b is not padding."""
        if inputs.key_padding is None:
            return None
        real = ~inputs.key_padding

        def is_real(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return real[b, k]

        return is_real
