"""φ under Kullback and Leibler's closeness, for any preference whose cumulant is known."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from typing_extensions import override

from fenchel.conjugate.abstract import AbstractConjugate

__all__ = ["LogPartition"]


class LogPartition(AbstractConjugate):
    r""":math:`\varphi(\lambda) = \log M(\lambda)`, the cumulant of the preference.

    The inferred distribution is the preference tilted by λ: it has a mean and no list of weights.

    Reference:
        Theorem 1, eqs. (8) and (9).
    """

    @property
    @override
    def leads(self) -> dict[str, tuple[int, ...]]:
        return {"preference": tuple(self.preference.lead)}

    @override
    def value(self, lam: Tensor) -> Tensor:
        return self.preference.log_mgf(lam)

    @override
    def mean(self, lam: Tensor) -> Tensor:
        return self.preference.tilted_mean(lam)

    @override
    def curvature(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        return self.preference.tilted_covariance(lam)

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        return self.preference.reach(lam, direction)
