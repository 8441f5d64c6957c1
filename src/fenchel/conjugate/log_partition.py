"""φ under Kullback and Leibler's closeness, for any preference whose cumulant is known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.conjugate.abstract import AbstractConjugate
from fenchel.preference import AbstractPreference

__all__ = ["LogPartition"]


class LogPartition(AbstractConjugate):
    r""":math:`\varphi(\lambda) = \log M(\lambda)`, the cumulant of the preference.

    The inferred distribution is the preference tilted by λ: it has a mean and no list of weights. Outside of the domain
    of log M the value is infinite and the mean NaN, whatever formulas give there.

    Reference:
        Theorem 1, eqs. (8) and (9).
    """

    @property
    @override
    def leads(self) -> dict[str, tuple[int, ...]]:
        return {"preference": tuple(self.preference.lead)}

    @override
    def value(self, lam: Tensor) -> Tensor:
        inside, value = self.preference.inside(lam), self.preference.log_mgf(lam)
        return value if inside is None else value.masked_fill(~inside, torch.inf)

    @override
    def mean(self, lam: Tensor) -> Tensor:
        return self._where_finite(lam, self.preference.tilted_mean(lam))

    @override
    def shift(self, lam: Tensor) -> Tensor:
        return self._where_finite(lam, self.preference.tilted_shift(lam))

    @override
    def mean_by(self, lam: Tensor, shift: Tensor) -> Tensor:
        """By itself: a mean near 0 that is far from the mean at rest has digits which the sum would lose."""
        return self.mean(lam) if self.resolves_shift else super().mean_by(lam, shift)

    def _where_finite(self, lam: Tensor, vectors: Tensor) -> Tensor:
        """NaN outside of the domain, where formulas may give numbers that mean nothing."""
        inside = self.preference.inside(lam)
        return vectors if inside is None else vectors.masked_fill(~inside.unsqueeze(-1), torch.nan)

    @override
    def rest_mean(self) -> Tensor:
        return self.preference.tilted_mean(self._rest())

    @override
    def curvature(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        return self.preference.tilted_covariance(lam)

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        return self.preference.reach(lam, direction)

    @override
    def inside(self, lam: Tensor) -> Tensor | None:
        return self.preference.inside(lam)

    @property
    @override
    def resolves_shift(self) -> bool:
        return self.preference.resolves_shift

    @override
    def rounding(self, lam: Tensor) -> Tensor | None:
        return self.preference.rounding(lam)

    @override
    def mean_rounding(self) -> Tensor | None:
        return self.preference.mean_rounding()

    @override
    def resolvent(self, lam: Tensor, alpha: Tensor, vector: Tensor) -> Tensor | None:
        return self.preference.resolvent(lam, alpha, vector)

    @override
    def unsettled(self, lam: Tensor) -> Tensor | None:
        return self.preference.unsettled(lam)

    @override
    def smoothness(self) -> Tensor | None:
        return self.preference.smoothness()

    @property
    @override
    def width(self) -> int:
        return self.preference.width

    @override
    def distribution(self, lam: Tensor) -> AbstractPreference:
        return self.preference.tilted(lam)
