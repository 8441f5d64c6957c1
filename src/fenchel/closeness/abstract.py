"""What a closeness must give, and what convexity gives for free."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

__all__ = ["AbstractCloseness"]


class AbstractCloseness(ABC):
    r"""A convex function :math:`D(\cdot, u)` of the weights, least at the preference u.

    A member writes four primitives in terms of the log preference (..., m or 1, n): value, conjugate, the conjugate's
    gradient (``weights``) and its Hessian's product. The potential is :math:`f = T\lambda`, shape (..., m, n).
    """

    @abstractmethod
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D(p, u)` for weights (..., m, n), shape (..., m); ``inf`` where p leaves the support of u."""

    @abstractmethod
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D^*(f) = \sup_p \langle p, f\rangle - D(p, u)`, shape (..., m)."""

    @abstractmethod
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f)`: the weights that reach the supremum, shape (..., m, n)."""

    @abstractmethod
    def hessian_product(self, weights: Tensor, vector: Tensor) -> Tensor:
        r""":math:`\nabla^2 D^*(f)\, v` at the potential whose weights are given, shape (..., m, n)."""

    def fenchel_young_gap(self, weights: Tensor, potential: Tensor, log_preference: Tensor) -> Tensor:
        r"""How far weights and potential are from belonging together, shape (..., m).

        .. math:: D(p, u) + D^*(f) - \langle p, f\rangle \ge 0,

        zero exactly where :math:`p = \nabla D^*(f)` (the Fenchel–Young inequality).

        Example:
            >>> import torch
            >>> from fenchel import KL
            >>> f, log_u = torch.randn(1, 4).double(), torch.zeros(1, 4).double().log_softmax(-1)
            >>> p = KL().weights(f, log_u)
            >>> bool(KL().fenchel_young_gap(p, f, log_u).abs() < 1e-12)
            True
        """
        finite = potential.masked_fill(weights == 0, 0)
        pairing = (weights * finite).sum(-1)
        return self.value(weights, log_preference) + self.conjugate(potential, log_preference) - pairing
