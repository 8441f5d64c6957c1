"""φ of any preference under the Kullback-Leibler closeness: its cumulant."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.family import Family, Point, RoundingErrors
from fenchel.preference import AbstractPreference
from fenchel.tensors import UNIT, norm

# Error of a mean, in roundings, if the preference has no bound.
OF_MEANS = 64


class CumulantFamily(Family):
    r"""φ under the Kullback-Leibler closeness: the cumulant of a preference, log M(λ).

    The inferred distribution is the preference tilted by λ: it has a mean but no list of weights. Outside the domain of
    log M the value is infinite and the mean NaN. Rows have the shape (..., m) of the queries and cannot be selected.

    Args:
        preference: u.

    Reference:
        Theorem 1, eqs. (8) and (9).
    """

    def __init__(self, preference: AbstractPreference) -> None:
        self.preference = preference

    @property
    @override
    def leads(self) -> dict[str, tuple[int, ...]]:
        return {"preference": tuple(self.preference.lead)}

    @property
    @override
    def width(self) -> int:
        return self.preference.width

    @property
    @override
    def inverts(self) -> bool:
        u = self.preference
        zero = torch.zeros((*u.lead, u.dim), dtype=u.dtype, device=u.device)
        return CumulantPoint(self, zero).resolvent(zero[..., :1] + 1, zero) is not None

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> CumulantPoint:
        return CumulantPoint(self, lam)

    @override
    def rest_mean(self) -> Tensor:
        return self.preference.mean()

    @override
    def value(self, lam: Tensor) -> Tensor:
        inside, value = self.preference.inside(lam), self.preference.log_mgf(lam)
        return value if inside is None else value.masked_fill(~inside, torch.inf)

    @override
    def distribution(self, lam: Tensor) -> AbstractPreference:
        return self.preference.tilted(lam)

    @override
    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        known = self.preference.rounding(lam) if lam.dtype == torch.float64 else None
        if known is None:
            return super().rounding(lam, accurate=accurate)
        return known.unsqueeze(-1).expand_as(lam[..., :1])

    @override
    def smoothness(self) -> Tensor | None:
        bound = self.preference.smoothness()
        return None if bound is None else bound.unsqueeze(-1)

    @override
    def start(self, lam: Tensor, evidence: Tensor) -> Tensor:
        reach = CumulantPoint(self, torch.zeros_like(lam)).reach(lam)
        if reach is not None:
            lam = torch.where(reach > 1, 1, reach / 2) * lam
        return super().start(lam, evidence)

    @override
    def to(self, dtype: torch.dtype) -> CumulantFamily:
        return CumulantFamily(self.preference.to(dtype))


class CumulantPoint(Point):
    """A cumulant at dual points (..., m, d)."""

    family: CumulantFamily

    def _where_finite(self, vectors: Tensor) -> Tensor:
        """NaN outside the domain, where formulas may give meaningless numbers."""
        inside = self.family.preference.inside(self.lam)
        return vectors if inside is None else vectors.masked_fill(~inside.unsqueeze(-1), torch.nan)

    @cached_property
    @override
    def shift(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._where_finite(self.family.preference.tilted_shift(self.lam))

    @cached_property
    @override
    def mean(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        # A mean near 0, far from that at rest, would lose digits in a sum with the shift.
        if self.family.preference.resolves_shift:
            return self._where_finite(self.family.preference.tilted_mean(self.lam))
        return self.family.rest_mean() + self.shift

    @cached_property
    def _covariance(self) -> Callable[[Tensor], Tensor]:
        return self.family.preference.tilted_covariance(self.lam)

    @override
    def product(self, vector: Tensor) -> Tensor:
        return self._covariance(vector)

    @override
    def rounding_errors(self) -> RoundingErrors:
        u, length = self.family.preference, norm(self.lam).squeeze(-1)
        mean = OF_MEANS * UNIT * (self.mean.norm(dim=-1) + self.family.rest_mean().norm(dim=-1))
        shift = torch.minimum(mean, OF_MEANS * UNIT * norm(self.shift).squeeze(-1)).where(length == 0, mean)
        known, more = u.rounding(self.lam), u.mean_rounding()
        if known is not None:
            shift, mean = known.expand_as(length), mean + known
        if more is not None:
            mean = mean + more
        # Bounds of preferences are sums of squares, which may underflow.
        shift = torch.add(shift, length > 0, alpha=torch.finfo(torch.float64).tiny ** 0.5)
        return RoundingErrors(shift, mean, mean, torch.zeros_like(mean))

    @override
    def reach(self, step: Tensor) -> Tensor | None:
        result = self.family.preference.reach(self.lam, step)
        return None if result is None else result.unsqueeze(-1)

    @override
    def resolvent(self, alpha: Tensor, vector: Tensor) -> Tensor | None:
        result = self.family.preference.resolvent(self.lam, alpha.expand_as(vector[..., :1]), vector)
        return None if result is None else alpha * result
