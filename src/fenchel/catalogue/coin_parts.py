"""Inferences between two templates, whose softmax is a sigmoid: coins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.catalogue.parts import Parts
from fenchel.closeness import KL

__all__ = ["CoinParts"]


@dataclass(frozen=True, kw_only=True)
class CoinParts(Parts):
    r"""Parts with two templates of one number each, such as the sides 0 and 1 of a coin.

    .. math:: p_1 = \sigma\bigl(\log u_1 - \log u_0 + \alpha z (t_1 - t_0)\bigr) \qquad\text{at first order}

    That is what the softmax of two is, computed entry by entry.

    Example:
        >>> sides = torch.tensor([0.0, 1.0]).view(1, 1, 2, 1)
        >>> CoinParts(templates=sides, evidence=torch.tensor([[[[2.0], [-1.0]]]]), values=sides).answer().flatten()
        tensor([0.8808, 0.2689])
    """

    def answer(self, estimator: str = "first_order") -> Tensor:
        """The mean of the values, (B, H, m, d_v)."""
        if estimator != "first_order" or not (self.closeness is None or isinstance(self.closeness, KL)):
            return super().answer(estimator)
        first, second = self.templates.unbind(-2)
        alpha = self.alpha.unsqueeze(-1) if isinstance(self.alpha, Tensor) else self.alpha
        tilt = self.evidence * (second - first).unsqueeze(-2)
        tilt = tilt if isinstance(alpha, float) and alpha == 1 else alpha * tilt
        if self.log_preference is not None:
            tilt = tilt + (self.log_preference[..., 1:] - self.log_preference[..., :1])
        low, high = (value.unsqueeze(-2) for value in self.values.unbind(-2))
        return torch.lerp(low, high, torch.sigmoid(tilt))
