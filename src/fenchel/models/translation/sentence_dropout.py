"""Dropout that drops the same elements at every word of a sentence."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["SentenceDropout"]


class SentenceDropout(nn.Dropout):
    """Dropout with one draw a sentence: an element that is dropped is dropped at all of its words.

    What a recurrent layer remembers is then not washed out from word to word, and fewer numbers are drawn.

    Reference:
        Gal and Ghahramani 2016, A theoretically grounded application of dropout in recurrent neural networks.

    Example:
        >>> import torch
        >>> dropped = SentenceDropout(0.5)(torch.ones(1, 7, 64))
        >>> bool((dropped == dropped[:, :1]).all())
        True
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """The states with elements dropped.

        Args:
            input: (B, n, width).
        """
        mask = self.mask(input)
        return input if mask is None else input * mask

    def mask(self, states: Tensor) -> Tensor | None:
        """What to multiply with, (B, 1, width); None where nothing is dropped.

        Args:
            states: (B, n, width).
        """
        if not self.training or self.p == 0:
            return None
        keep = 1 - self.p
        return states.new_empty(len(states), 1, states.shape[-1]).bernoulli_(keep).div_(keep)
