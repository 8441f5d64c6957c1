"""What a closeness must give, and what convexity gives for free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Self

import torch
from torch import Tensor

from fenchel.preference import Discrete
from fenchel.rounding import SMALL, UNIT
from fenchel.tensors import values_are_known

__all__ = ["AbstractCloseness"]


class AbstractCloseness(ABC):
    r"""A convex function :math:`D(\cdot, u)` of the weights.

    A member writes four primitives in terms of the log preference (..., m or 1, n): value, conjugate, the conjugate's
    gradient (``weights``) and its curvature. The potential is :math:`f = T\lambda`, shape (..., m, N), with one entry
    for each of the N templates that p may use: those of the preference, N = n, unless :meth:`support` says more.
    """

    def bind(self, preference: Discrete) -> Self:
        """This closeness, knowing the templates of a preference; itself where templates do not matter to it."""
        del preference
        return self

    def support(self, preference: Discrete) -> Tensor:
        """The templates that p may use, (..., N, d), those of the preference first."""
        return preference.templates

    @abstractmethod
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D(p, u)` for weights (..., m, N), shape (..., m)."""

    @abstractmethod
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`D^*(f) = \sup_p \langle p, f\rangle - D(p, u)`, shape (..., m)."""

    @abstractmethod
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f)`: the weights that reach the supremum, shape (..., m, N)."""

    @abstractmethod
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`\nabla^2 D^*(f)` as a function that multiplies vectors (..., m, N)."""

    def rest(self, log_preference: Tensor) -> Tensor:
        r"""The weights at which :math:`D(\cdot, u)` is least, :math:`\nabla D^*(0)`, shape (..., m or 1, N)."""
        return self.weights(torch.zeros_like(log_preference), log_preference)

    def displacement(self, potential: Tensor, weights: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` given the weights at f, shape (..., m, N).

        Where f is small it is right to rounding relative to itself, not to the weights.
        """
        apart = weights - self.rest(log_preference)
        counted = potential.detach()
        if log_preference.shape[-1] == potential.shape[-1]:
            counted = counted.masked_fill(torch.isneginf(log_preference), 0)
        small = counted.abs().amax(-1, keepdim=True) <= SMALL * self._modulus_column()
        if values_are_known(small) and not bool(small.any()):
            return apart
        near = self.near_displacement(potential.masked_fill(~small, 0), log_preference)
        return apart if near is None else torch.where(small, near, apart)

    def near_displacement(self, potential: Tensor, log_preference: Tensor) -> Tensor | None:
        r""":math:`\nabla D^*(f) - \nabla D^*(0)` without cancellation for :math:`\lvert f\rvert \le \sigma/2`.

        None where it is not known; bounds at small potentials are then those of a difference.
        """
        del potential, log_preference
        return None

    def usable(self, log_preference: Tensor) -> Tensor | None:
        """Which templates weight of some query can reach, bool (..., 1, N); None where that is all of them."""
        del log_preference
        return None

    def rounding(
        self, mean_error: Tensor, largest_error: Tensor, count: int
    ) -> tuple[Tensor, float | Tensor]:
        r"""How far at most :meth:`weights`, evaluated in float64, are from :math:`\nabla D^*(f)`.

        Where :attr:`is_softmax`, in the dtype of the errors.

        Args:
            mean_error: Error of the potential's entries, root mean square under p, (..., m).
            largest_error: The largest error among them, (..., m).
            count: N.

        Returns:
            Their relative error up to a factor that all share, root mean square under p, (..., m); and the part of all
            weight that may be lost. Here no error is relative, and what is lost is what strong convexity allows for the
            potential's error and some roundings a weight.
        """
        return torch.zeros_like(mean_error), largest_error / self.modulus + 16 * count * UNIT

    def pairing_error(self, largest_error: Tensor) -> float | Tensor:
        r"""By how much :math:`D(p) + D^*(f) - \langle p, f\rangle` may be above 0 at evaluated weights, (..., m).

        Beyond what :meth:`rounding` says of how far they are from p(f): for weights that jump, to others as good.

        Args:
            largest_error: The largest error of the potential, (..., m).
        """
        del largest_error
        return 0.0

    curved: bool = True
    """Whether weights have a derivative almost everywhere, of which steps are made; else there is first order alone."""

    rowwise: bool = False
    r"""Whether weights depend on a query's potential and preference alone, and the curvature is that of weights q."""

    @property
    def is_softmax(self) -> bool:
        """Whether weights are proportional to the preference times the exponential of the potential."""
        return False

    def curvature_weights(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        r"""The q of :math:`\nabla^2 D^* = \operatorname{diag} q - qq^\top/\sum_i q_i` (fact 12), (..., m, n).

        Asked for where ``rowwise`` is true, with tensors whose rows have been taken by :meth:`rows`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} says that it is rowwise and has no curvature_weights"
        )

    def queries(self, part: slice) -> Self:
        """The same for some of the m queries; itself where no tensor of its own has rows for queries."""
        del part
        return self

    def rows(self, take: Callable[[Tensor], Tensor]) -> Self:
        """The same for rows of a block, where tensors of its own have rows for queries; else itself.

        Args:
            take: Gives (g or 1, r or 1) of a tensor that broadcasts to (..., m).
        """
        del take
        return self

    def hessian_product(self, potential: Tensor, vector: Tensor, log_preference: Tensor) -> Tensor:
        r""":math:`\nabla^2 D^*(f)\, v`, shape (..., m, N); :meth:`curvature` where there are many v at one f."""
        return self.curvature(potential, log_preference)(vector)

    @property
    def modulus(self) -> float | Tensor:
        """σ > 0, by which D is strongly convex in the 1-norm of the weights, broadcasting to (..., m)."""
        return 1.0

    def _modulus_column(self) -> float | Tensor:
        return self.modulus.unsqueeze(-1) if isinstance(self.modulus, Tensor) else self.modulus

    def query_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Shapes (..., m or 1) of what it has for each query, by the name that the constructor gives it."""
        return {}

    def to(self, dtype: torch.dtype) -> Self:
        """The same closeness in another dtype."""
        del dtype
        return self

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
