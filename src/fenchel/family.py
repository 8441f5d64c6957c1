r"""The convex function φ of a preference and a closeness, at rows of dual points.

.. math:: \varphi(\lambda) = D^*(T\lambda), \qquad h(\lambda) = \nabla\varphi(\lambda), \qquad
          \mathcal{D}(\lambda) = \langle\lambda, \nabla\varphi(0) + z\rangle
          - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - \varphi(\lambda)

Problems, solvers, certificates and gradients use a preference and a closeness only through φ. Everything is expressed
by the shift of the mean, :math:`s(\lambda) = \nabla\varphi(\lambda) - \nabla\varphi(0)`: the gradient of the dual is
:math:`z - \lambda/\alpha - s(\lambda)`, without a difference of two means. Solvers have g groups of r rows with k
coordinates, problems rows of any leading shape (..., m).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.blocks import Part
from fenchel.preference import AbstractPreference
from fenchel.tensors import UNIT, norm, total

Line = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class RoundingErrors:
    r"""Bounds on the rounding errors of a point, (..., m).

    Attributes:
        shift: Of the shift of the mean.
        mean: Of the mean.
        offset: Of the mean less the centre of the templates.
        weights: Of the weights, in total variation.
        spread: :math:`\sqrt{\sum_ip_i\lVert t_i-h\rVert^2}`, by which relative errors of the weights move the mean.
        radius: The largest norm of a template less their centre.
        fenchel_young: Bound on :math:`D(p) + D^*(f) - \langle p, f\rangle` at the computed weights, beyond these.
    """

    shift: Tensor
    mean: Tensor
    offset: Tensor
    weights: Tensor
    spread: float | Tensor = 0.0
    radius: float | Tensor = 0.0
    fenchel_young: float | Tensor = 0.0


class Point(ABC):
    r"""φ at dual points: the mean, the shift to rounding relative to itself, and the second derivative.

    Args:
        family: φ.
        lam: λ, (g, r, k).
    """

    weights: Tensor | None = None
    """p as a list of weights, (g, r, n); None if it is not."""

    def __init__(self, family: Family, lam: Tensor) -> None:
        self.family, self.lam = family, lam

    @property
    @abstractmethod
    def shift(self) -> Tensor:
        r""":math:`s(\lambda)`, (g, r, k)."""

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        r""":math:`h(\lambda)`, (g, r, k)."""

    @abstractmethod
    def product(self, vector: Tensor) -> Tensor:
        r""":math:`\nabla^2\varphi(\lambda)v`, (g, r, k)."""

    @abstractmethod
    def rounding_errors(self) -> RoundingErrors:
        """Bounds on the rounding errors of mean, shift and weights."""

    def matrices(self, rows: Tensor) -> Tensor:
        r""":math:`\nabla^2\varphi(\lambda)` of the rows that are marked in ``rows`` (g, r), (any, k, k)."""
        identity = torch.eye(self.lam.shape[-1], dtype=self.lam.dtype, device=self.lam.device)
        columns = [self.product(unit.expand_as(self.lam).contiguous())[rows] for unit in identity]
        return torch.stack(columns, -1)

    def along(self, direction: Tensor, size: Tensor) -> tuple[Line, Tensor]:
        r"""The following function of t, (g, r, 1), with its derivative.

        .. math:: t \mapsto \langle s(\lambda + t\,\mathtt{size}\,\delta) - s(\lambda), \delta\rangle / \mathtt{size}

        Returns:
            The function, and its rounding error where it is 0, (g, r, 1).
        """

        def look(t: Tensor) -> tuple[Tensor, Tensor]:
            there = self.family.at(self.lam + t * size * direction)
            moved = total((there.shift - self.shift) * direction) / size
            return moved, total(there.product(direction) * direction)

        return look, torch.zeros_like(size)

    def reach(self, step: Tensor) -> Tensor | None:
        """The multiple of a step (g, r, k) that reaches the border of the domain, (g, r, 1); None if there is none."""
        del step
        return None

    def resolvent(self, alpha: Tensor, vector: Tensor) -> Tensor | None:
        r""":math:`(I/\alpha + \nabla^2\varphi)^{-1}v`; None if it has no closed form."""
        del alpha, vector
        return None


class Family(ABC):
    """φ for rows of queries."""

    selectable: bool = False
    """Whether some of the rows can be selected."""

    bounds_float32: bool = False
    """Whether rounding is also bounded in float32; otherwise Newton's method runs only in float64."""

    modulus: float | Tensor = 1.0
    """σ > 0, the modulus of strong convexity of D in the 1-norm of the weights, broadcasting to (g, r)."""

    @property
    def inverts(self) -> bool:
        """Whether :meth:`Point.resolvent` has a closed form: a Newton step then costs no more than mixing."""
        return False

    @property
    @abstractmethod
    def leads(self) -> dict[str, tuple[int, ...]]:
        """The leading shapes (..., m or 1) of its tensors, by name."""

    @property
    @abstractmethod
    def width(self) -> int:
        """Count of numbers in memory for one row of a point."""

    @abstractmethod
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> Point:
        """φ at dual points (g, r, k).

        Args:
            lam: λ.
            before: The point from which a step led here, or None.
            short: Where that step ended early, bool (g, r, 1). If the gradient has kinks, the curvature is then the
                mean of those on both sides: that of the last piece may lead back over the kink, in ever shorter steps.
        """

    def shift(self, lam: Tensor) -> Tensor:
        r""":math:`s(\lambda)`, (g, r, k), with an absolute error of :meth:`rounding`."""
        return self.at(lam).shift

    @abstractmethod
    def rest_mean(self) -> Tensor:
        r"""The mean at λ = 0, :math:`\nabla\varphi(0)`, which evidence shifts: μ under KL, μ̃ (38) under transport."""

    @abstractmethod
    def value(self, lam: Tensor) -> Tensor:
        """φ(λ), (g, r)."""

    @abstractmethod
    def distribution(self, lam: Tensor) -> AbstractPreference:
        """p(λ) as a distribution, one for each row."""

    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        """Bound on the error of :meth:`shift`, or of ``at(lam).shift`` where accurate, (g, r, 1)."""
        if lam.dtype != torch.float64:
            return torch.full_like(lam[..., :1], torch.inf)
        if accurate:
            return self.at(lam).rounding_errors().shift.unsqueeze(-1)
        # Final bounds are those of the certificate.
        return torch.finfo(lam.dtype).eps * norm(self.shift(lam))

    @abstractmethod
    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every curvature, (g or 1, r or 1, 1); None if there is none."""

    def safe_alpha(self, lam: Tensor) -> Tensor:
        """An α from which Newton's method converges for evidence of any size along ``lam``, (g, r, 1)."""
        bound = self.smoothness()
        if bound is None:
            bound = 1 + norm(self.at(torch.zeros_like(lam)).product(lam / norm(lam)))
        return (1 / bound.clamp(min=torch.finfo(lam.dtype).tiny)).expand_as(lam[..., :1])

    def start(self, lam: Tensor, evidence: Tensor) -> Tensor:
        """Where to start: the first-order point, or one between it and 0.

        Args:
            lam: αz, (g, r, k).
            evidence: z, (g, r, k).
        """
        # If the mean shifts much farther than the evidence, or numbers overflow, 0 is the better start.
        return torch.where(norm(self.shift(lam)) <= 10 * norm(evidence), lam, 0)

    def take(self, part: Part) -> Family:
        """The same for some of the rows."""
        raise NotImplementedError(f"{type(self).__name__} does not support selecting rows")

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same in another dtype."""


@dataclass(frozen=True)
class Block:
    """Some queries for a solver: g groups of r rows, or any leading shape if rows cannot be selected.

    Attributes:
        family: φ.
        evidence: z, (g, r, d).
        alpha: α, (g or 1, r or 1, 1).
        beyond: ‖αz‖ outside the coordinates, (g, r, 1), if they do not contain all of it.
        wide: Function that returns the same block in a wider dtype, before rounding to this one.
    """

    family: Family
    evidence: Tensor
    alpha: Tensor
    beyond: Tensor | None = None
    wide: Callable[[], Block] | None = None

    def _changed(self, family: Family, change: Callable[[Tensor], Tensor], wide: Any) -> Block:
        beyond = None if self.beyond is None else change(self.beyond)
        return Block(family, change(self.evidence), change(self.alpha), beyond, wide)

    def take(self, part: Part) -> Block:
        """Some of the rows."""
        wide = self.wide
        taken = None if wide is None else lambda: wide().take(part)
        return self._changed(self.family.take(part), part.pick, taken)

    def to(self, dtype: torch.dtype) -> Block:
        """The same rows in another dtype; in a wider one as they were before rounding, if known."""
        if dtype == self.evidence.dtype:
            return self
        narrower = torch.finfo(dtype).bits < torch.finfo(self.evidence.dtype).bits
        if self.wide is not None and not narrower:
            return self.wide()
        wide = (lambda: self) if narrower else None
        return self._changed(self.family.to(dtype), lambda x: x.to(dtype), wide)


OF_MEANS = 64
"""Error of a mean, in roundings, if the preference has no bound."""


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

    def zero(self) -> Tensor:
        """λ = 0, (..., m or 1, d)."""
        u = self.preference
        return torch.zeros((*u.lead, u.dim), dtype=u.dtype, device=u.device)

    @property
    @override
    def inverts(self) -> bool:
        return CumulantPoint(self, self.zero()).resolvent(self.zero()[..., :1] + 1, self.zero()) is not None

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> CumulantPoint:
        return CumulantPoint(self, lam)

    @override
    def rest_mean(self) -> Tensor:
        return self.preference.tilted_mean(self.zero())

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
