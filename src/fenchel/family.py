r"""The convex function φ of a preference and a closeness, at rows of dual points, and φ over templates.

.. math:: \varphi(\lambda) = D^*(T\lambda), \qquad h(\lambda) = \nabla\varphi(\lambda), \qquad
          \mathcal{D}(\lambda) = \langle\lambda, \nabla\varphi(0) + z\rangle
          - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - \varphi(\lambda)

Problems, solvers, certificates and gradients use a preference and a closeness only through φ. Everything is expressed
by the shift of the mean, :math:`s(\lambda) = \nabla\varphi(\lambda) - \nabla\varphi(0)`: the gradient of the dual is
:math:`z - \lambda/\alpha - s(\lambda)`, without a difference of two means. Solvers have g groups of r rows with k
coordinates, problems rows of any leading shape (..., m).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from fenchel.blocks import Part
from fenchel.closeness import KL, AbstractCloseness
from fenchel.preference import AbstractPreference, Discrete
from fenchel.preference.abstract import SMALL
from fenchel.tensors import centre, column, dot, listed, needs_gradient, norm, summed, total, values_are_known

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

    # p as a list of weights, (g, r, n); None if it is not.
    weights: Tensor | None = None

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

    # Whether some of the rows can be selected.
    selectable: bool = False

    # Whether rounding is also bounded in float32; otherwise Newton's method runs only in float64.
    bounds_float32: bool = False

    # σ > 0, the modulus of strong convexity of D in the 1-norm of the weights, broadcasting to (g, r).
    modulus: float | Tensor = 1.0

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


class TemplateFamily(Family):
    r"""φ over templates under a closeness whose weights are functions of each query's logits.

    Their curvature is :math:`\operatorname{diag} q - qq^\top/\sum q` (fact 12). Derived quantities are computed once,
    when first needed: create a new family for every use if gradients matter.

    Args:
        given: Templates, (g, n, d).
        log_preference: Log u, normalised, (g or 1, r or 1, n).
        closeness: D, bound to the templates by its method ``bind``.
    """

    selectable = True

    def __init__(
        self, given: Tensor, log_preference: Tensor, closeness: AbstractCloseness | None = None
    ) -> None:
        self.given, self.log_preference = given, log_preference
        self.closeness = KL() if closeness is None else closeness
        self.bounds_float32, self.modulus = self.closeness.is_softmax, self.closeness.modulus

    @property
    @override
    def leads(self) -> dict[str, tuple[int, ...]]:
        templates = (*self.given.shape[:-2], 1)
        log_weights = tuple(self.log_preference.shape[:-1])
        return {"templates": templates, "log_weights": log_weights, **self.closeness.query_shapes()}

    @property
    @override
    def width(self) -> int:
        return max(self.given.shape[-2:])

    @cached_property
    def usable(self) -> Tensor | None:
        """Templates to which some query can give weight, bool (g or 1, 1, n); None for all."""
        return self.closeness.usable(self.log_preference)

    @cached_property
    def centre(self) -> Tensor:
        """The mean of the usable templates, (g, 1, d); subtracting it changes only rounding (fact 3)."""
        return centre(self.given, self.usable)

    @cached_property
    def templates(self) -> Tensor:
        """The templates less their centre, (g, n, d)."""
        return self.given - self.centre

    @cached_property
    def radius(self) -> Tensor:
        """The largest norm of a usable template less the centre, (g, 1, 1)."""
        lengths = norm(self.templates)
        if self.usable is not None:
            lengths = lengths.masked_fill(~self.usable.mT, 0)
        return lengths.amax(-2, keepdim=True)

    @cached_property
    def _depth(self) -> float:
        """Templates with log weights below this, negated, underflow if logits are within a quarter of it."""
        numbers = torch.finfo(self.log_preference.dtype)
        return -4 * math.log(numbers.tiny * numbers.eps)

    @cached_property
    def _levels(self) -> tuple[float, float] | None:
        """The largest absolute log weight within the depth, and of all finite ones; None for a uniform preference."""
        log_u = self.log_preference
        low, high = listed(torch.stack(log_u.aminmax()))
        if low == high:
            return None
        if low == -torch.inf:
            low = float(log_u.masked_fill(torch.isneginf(log_u), 0).amin())
        near = low if low >= -self._depth else float(log_u.masked_fill(log_u < -self._depth, 0).amin())
        return max(abs(near), abs(high)), max(abs(low), abs(high))

    def level(self, reach: Tensor) -> float | Tensor:
        """The largest absolute log weight of templates that may have weight if logits are at most ``reach``."""
        near, largest = self._levels or (0.0, 0.0)
        if near == largest:
            return near
        return torch.where(reach <= self._depth / 4, near, reach.new_tensor(largest))

    @cached_property
    def is_plain_softmax(self) -> bool:
        """Whether weights are a softmax of only the logits: log weights are known, all equal and without gradient."""
        log_u = self.log_preference
        known = self.closeness.is_softmax and values_are_known(log_u) and not needs_gradient(log_u)
        return known and self._levels is None

    @cached_property
    def rest_weights(self) -> Tensor:
        """The weights nearest the preference, at λ = 0, (g or 1, r or 1, n): u under KL, ũ (37) under transport."""
        return self.closeness.rest(self.log_preference)

    @cached_property
    def rest(self) -> Tensor:
        """The mean at λ = 0, less the centre, (g, r or 1, d)."""
        return self.rest_weights @ self.templates

    @override
    def rest_mean(self) -> Tensor:
        return self.centre + self.rest

    @override
    def value(self, lam: Tensor) -> Tensor:
        return self.closeness.conjugate(lam @ self.given.mT, self.log_preference)

    @override
    def distribution(self, lam: Tensor) -> Discrete:
        weights = self.closeness.weights(lam @ self.given.mT, self.log_preference)
        positive = weights > 0
        return Discrete(self.given, weights.where(positive, 1).log().masked_fill(~positive, -torch.inf))

    def _mean(self, lam: Tensor) -> Tensor:
        if not self.closeness.is_softmax:
            return self.closeness.weights(lam @ self.templates.mT, self.log_preference) @ self.templates
        mask = None if self._levels is None else self.log_preference.expand(*lam.shape[:2], -1).unsqueeze(0)
        # One fused attention call; an expanded query takes a slow path.
        query, keys = lam.contiguous().unsqueeze(0), self.templates.unsqueeze(0)
        return scaled_dot_product_attention(query, keys, keys, attn_mask=mask, scale=1.0).squeeze(0)

    @override
    def shift(self, lam: Tensor) -> Tensor:
        return self._mean(lam) - self.rest

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> TemplatePoint:
        point = TemplatePoint(self, lam)
        if before is not None and short is not None and not self.closeness.is_softmax:
            point.average_curvature(before, short)
        return point

    @override
    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        if not self.closeness.is_softmax and lam.dtype != torch.float64:
            return super().rounding(lam, accurate=accurate)
        unit, (n, k), length = torch.finfo(lam.dtype).eps / 2, self.templates.shape[-2:], norm(lam)
        of_logits = (summed(k) + 8) * unit * length * self.radius
        if not self.closeness.is_softmax:
            # The shift is a difference of means here, however small it is.
            relative, lost = map(column, self.closeness.rounding(of_logits[..., 0], of_logits[..., 0], n))
            return (2 * self.radius * (relative + 2 * lost + (summed(n) + 8) * unit)).expand_as(length)
        of_weights = (summed(n) + 8 + 4 * self.level(length * self.radius)) * unit
        moved = (2 * length * self.radius).clamp(max=1) if accurate else 1.0
        return 2 * self.radius * (of_logits + of_weights * moved)

    @override
    def smoothness(self) -> Tensor:
        r""":math:`\max_i\lVert t_i\rVert^2/\sigma`: D* is 1/σ-smooth in the maximum norm."""
        return self.radius.square() / column(self.closeness.modulus)

    @override
    def start(self, lam: Tensor, evidence: Tensor) -> Tensor:
        return lam

    @override
    def take(self, part: Part) -> TemplateFamily:
        closeness = self.closeness.rows(lambda own: part.pick(own.unsqueeze(-1)).squeeze(-1))
        given, preference = part.of_groups(self.given), part.pick(self.log_preference)
        if closeness is self.closeness and given is self.given and preference is self.log_preference:
            return self  # with what has been computed
        return TemplateFamily(given, preference, closeness)

    @override
    def to(self, dtype: torch.dtype) -> TemplateFamily:
        return TemplateFamily(self.given.to(dtype), self.log_preference.to(dtype), self.closeness.to(dtype))


class TemplatePoint(Point):
    """φ over templates at dual points, with explicit weights (g, r, n)."""

    family: TemplateFamily

    def __init__(self, family: TemplateFamily, lam: Tensor) -> None:
        super().__init__(family, lam)
        self.templates = family.templates
        self._closeness, self._preference = family.closeness, family.log_preference
        self._logits = lam @ self.templates.mT
        if family.is_plain_softmax:
            weights = self._logits.softmax(-1)
        else:
            weights = self._closeness.weights(self._logits, self._preference)
        self.weights: Tensor = weights  # pyright: ignore[reportIncompatibleVariableOverride]

    @cached_property
    def entropy(self) -> Tensor:
        """Of the weights, in nats, (g, r, 1)."""
        if not self._closeness.is_softmax:
            return total(torch.special.entr(self.weights))
        # From logits, with one logarithm for each row, not each weight; negligible weights have very negative logits.
        below = self._logits if self.family.is_plain_softmax else self._preference + self._logits
        below = below - below.amax(-1, keepdim=True)
        if not self.family.is_plain_softmax:
            below.clamp_(min=-1e4)  # else 0 · −∞ where masked
        return -self.weights.amax(-1, keepdim=True).log() - dot(self.weights, below)

    @cached_property
    def curved(self) -> Tensor:
        """The weights q of the curvature, (g, r, n)."""
        return self._closeness.curvature_weights(self.weights, self._preference)

    @cached_property
    def _mass(self) -> Tensor:
        return total(self.curved)

    @cached_property
    def _mean(self) -> Tensor:
        return self.curved @ self.templates / self._mass

    def average_curvature(self, before: TemplatePoint, short: Tensor) -> None:
        """Average the curvature with that of another point where ``short``, bool (g, r, 1)."""
        self.curved = torch.where(short, (before.curved + self.curved) / 2, self.curved)

    @cached_property
    @override
    def shift(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        moved = self._closeness.displacement(self._logits, self.weights, self._preference)
        return moved @ self.templates

    @property
    @override
    def mean(self) -> Tensor:
        return self.family.rest_mean() + self.shift

    @override
    def product(self, vector: Tensor) -> Tensor:
        lifted = (vector @ self.templates.mT).mul_(self.curved)
        return lifted @ self.templates - self._mass * self._mean * total(self._mean * vector)

    @override
    def matrices(self, rows: Tensor) -> Tensor:
        centred = self.templates[rows.nonzero()[:, 0]] - self._mean[rows].unsqueeze(1)
        return centred.mT @ (self.curved[rows].unsqueeze(-1) * centred)

    @override
    def along(self, direction: Tensor, size: Tensor) -> tuple[Line, Tensor]:
        lifted = direction @ self.templates.mT
        lifted = lifted - total(self.curved * lifted) / self._mass
        here, step = total(self.weights * lifted), size * lifted

        def look(t: Tensor) -> tuple[Tensor, Tensor]:
            weights = self._closeness.weights(torch.addcmul(self._logits, t, step), self._preference)
            along = weights * lifted
            value = first = total(along)
            mass: Tensor | float = 1.0
            if not self._closeness.is_softmax:
                curved = self._closeness.curvature_weights(weights, self._preference)
                along, mass = curved * lifted, total(curved)
                first = total(along)
            return (value - here) / size, total(along.mul_(lifted)) - first.square() / mass

        return look, 8 * torch.finfo(lifted.dtype).eps * total(self.weights * lifted.abs()) / size

    @override
    def rounding_errors(self) -> RoundingErrors:
        unit, (count, dim) = torch.finfo(self.lam.dtype).eps / 2, self.templates.shape[-2:]
        closeness, rest = self._closeness, self.family.rest
        # Squares in units of the radius, which neither under- nor overflow.
        one = self.family.radius.clamp(min=torch.finfo(self.lam.dtype).tiny)
        scale = one.squeeze(-1)
        squares = (self.templates / one).square().sum(-1, keepdim=True)
        if self.family.usable is not None:
            squares = squares.masked_fill(~self.family.usable.mT, 0)

        def moments(weights: Tensor, mean: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            moment, length = (weights @ squares).squeeze(-1), norm(mean).squeeze(-1)
            more = (2 * summed(count) + dim + 4) * unit
            spread = (moment - (length / scale).square()).clamp(min=0) + 2 * more * moment
            return scale * (moment * (1 + more)).sqrt(), length, scale * spread.sqrt()

        length, radius = norm(self.lam).squeeze(-1), self.family.radius.squeeze(-1)
        reach = length * radius
        moment, offset, spread = moments(self.weights, rest + self.shift)
        moment_at_rest, _, spread_at_rest = moments(self.family.rest_weights, rest)
        # Errors of <t, λ>, and of adding log u = log p + φ(λ) - <t, λ>; |φ(λ)| is at most ‖λ‖ times a moment.
        each, adding = (summed(dim) + 3) * unit * length, 2 * unit * length
        largest = each * radius + adding * radius
        relative, lost = closeness.rounding(
            each * moment + adding * (moment + moment_at_rest), largest, count
        )
        nothing = torch.zeros_like(length)
        at_zero, _ = closeness.rounding(nothing, nothing, count)
        if closeness.is_softmax:
            of_level = 4 * self.family.level(reach) * unit  # of log u, when it was normalised
            relative, at_zero = relative + of_level, at_zero + of_level
        of_sums, whole = (2 * summed(count) + 8) * unit, radius * lost
        at_rest = at_zero * spread_at_rest + of_sums * moment_at_rest + whole
        shift = relative * spread + of_sums * moment + at_rest
        modulus = closeness.modulus
        near = reach <= SMALL * modulus
        if type(closeness).near_displacement is not AbstractCloseness.near_displacement:
            curved = moment_at_rest.square() * (at_zero + 2 * of_sums + 2 * (summed(dim) + 15) * unit)
            shift = torch.where(near, 3 * length / modulus * (curved + radius * whole), shift)
        # Sums of products may underflow.
        shift = shift + 64 * torch.finfo(self.lam.dtype).tiny * (1 + radius) * (length > 0)
        of_offset = shift + at_rest
        return RoundingErrors(
            shift=shift,
            mean=of_offset + 2 * unit * (2 * norm(self.family.centre).squeeze(-1) + offset),
            offset=of_offset,
            weights=(relative / 2 + (summed(count) + 4) * unit + lost).clamp(max=1),
            spread=spread,
            radius=radius,
            fenchel_young=closeness.pairing_error(largest),
        )


class CoupledFamily(TemplateFamily):
    """φ over templates under any closeness, such as optimal transport, with the curvature that it defines."""

    selectable = False

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> CoupledPoint:
        return CoupledPoint(self, lam)

    shift = Family.shift
    start = Family.start
    rounding = Family.rounding


class CoupledPoint(TemplatePoint):
    """φ of a coupled family at dual points."""

    @cached_property
    def _curvature(self) -> Callable[[Tensor], Tensor]:
        return self._closeness.curvature(self._logits, self._preference)

    @override
    def product(self, vector: Tensor) -> Tensor:
        return self._curvature(vector @ self.templates.mT) @ self.templates

    matrices = Point.matrices
    along = Point.along
