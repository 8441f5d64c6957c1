r"""What solvers and certificates ask of a preference and a closeness: φ at rows of dual points.

Shapes: g groups of r rows with k coordinates. Everything is written in the shift of the mean, :math:`s(\lambda) =
\nabla\varphi(\lambda) - \nabla\varphi(0)`, with which the gradient of the dual is :math:`z - \lambda/\alpha -
s(\lambda)` and two means are never subtracted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from fenchel.closeness import KL, AbstractCloseness
from fenchel.tensors import SMALL, dot, listed, needs_gradient, norm, summed, total, values_are_known

Line = Callable[[Tensor], tuple[Tensor, Tensor]]


def _column(number: float | Tensor, like: Tensor) -> Tensor:
    """One number, or one a row (g or 1, r or 1), so that it multiplies columns (g, r, 1) as ``like`` has them."""
    result = torch.as_tensor(number, dtype=like.dtype, device=like.device)
    return result if result.dim() == 0 else result.unsqueeze(-1)


def rows_where(mask: Tensor, most: int) -> Tensor:
    """Indices (g, r') of the rows marked in ``mask`` (g, r), r' = ``most`` being the most that a group has.

    Groups with fewer are filled up with rows that are not marked, so that the result is rectangular.
    """
    return torch.argsort(mask.to(torch.uint8), dim=-1, descending=True, stable=True)[:, :most]


def gather_rows(value: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (g, r') of a tensor (g, r, ...); one row that stands for all stays one row."""
    if value.shape[1] == 1:
        return value
    if index.shape[0] == 1:
        return value.index_select(1, index[0])
    value = value.expand(index.shape[0], *value.shape[1:])
    features = value.shape[2:]
    place = index.reshape(*index.shape, *(1,) * len(features)).expand(*index.shape, *features)
    return value.gather(1, place)


@dataclass(frozen=True)
class Part:
    """Some rows of a block.

    Attributes:
        groups: Of which groups, (g',); None is all.
        index: Which rows of these, (g', r'); None is all.
    """

    groups: Tensor | None
    index: Tensor | None

    @classmethod
    def of(cls, wanted: Tensor, *, whole: bool) -> Part | None:
        """The rows that are marked, bool (g, r), or all where they cannot be taken apart; None where there are none."""
        if whole:
            return cls(None, None) if bool(wanted.any()) else None
        of_group = wanted.sum(1)
        # One look for all that depends on it.
        counts = listed(of_group)
        most = max(counts)
        if most == 0:
            return None
        if all(counts):
            return cls(None, None if most == wanted.shape[1] else rows_where(wanted, most))
        groups = of_group.nonzero().squeeze(-1)
        return cls(groups, rows_where(wanted[groups], most))

    def split(self, wanted: Tensor, width: int, array_bytes: int) -> list[Part]:
        """Parts of these rows whose arrays of ``width`` numbers a row, in float64, are of about that size at most."""
        groups, rows = wanted.shape if self.index is None else self.index.shape
        if 8 * groups * rows * width <= array_bytes:
            return [self]
        index = self.index
        if index is None:
            index = torch.arange(rows, device=wanted.device).expand(groups, -1)
        each = max(1, array_bytes // (8 * groups * width))
        return [Part(self.groups, part) for part in index.split(each, dim=1)]

    @property
    def is_all(self) -> bool:
        """Whether these are all rows."""
        return self.groups is None and self.index is None

    def of_groups(self, x: Tensor) -> Tensor:
        """The groups of a tensor (g or 1, ...)."""
        return x if self.groups is None or len(x) == 1 else x[self.groups]

    def pick(self, x: Tensor) -> Tensor:
        """The rows of a tensor (g or 1, r or 1, ...)."""
        x = self.of_groups(x)
        return x if self.index is None else gather_rows(x, self.index)

    def put(self, into: Tensor, rows: Tensor) -> Tensor:
        """A tensor (g, r, ...) with these rows replaced."""
        if self.index is None:
            return rows
        groups = torch.arange(len(into), device=into.device) if self.groups is None else self.groups
        return into.index_put((groups.unsqueeze(-1), self.index), rows)


class Point(ABC):
    r"""Φ at dual points: the shift to rounding relative to itself, and the second derivative."""

    @property
    @abstractmethod
    def shift(self) -> Tensor:
        r""":math:`s(\lambda)`, (g, r, k)."""

    @abstractmethod
    def product(self, vector: Tensor) -> Tensor:
        r""":math:`\nabla^2\varphi(\lambda)v`, (g, r, k)."""

    @abstractmethod
    def matrices(self, rows: Tensor) -> Tensor:
        r""":math:`\nabla^2\varphi(\lambda)` of the rows that are marked in ``rows`` (g, r), (any, k, k)."""

    @abstractmethod
    def along(self, direction: Tensor, size: Tensor) -> tuple[Line, Tensor]:
        r"""The line whose value and derivative at t, each (g, r, 1), are those of s in units of ``size``.

        .. math:: t \mapsto \langle s(\lambda + t\,\mathtt{size}\,\delta) - s(\lambda), \delta\rangle / \mathtt{size}

        With it what rounding may leave of a value that is 0, (g, r, 1).
        """

    def reach(self, step: Tensor) -> Tensor | None:
        """How many times a step (g, r, k) stays in the domain, (g, r, 1); None where any number does."""
        del step
        return None

    def resolvent(self, alpha: Tensor, vector: Tensor) -> Tensor | None:
        r""":math:`(I/\alpha + \nabla^2\varphi)^{-1}v` where it has a closed form."""
        del alpha, vector
        return None


class Family(ABC):
    """Φ for rows of queries."""

    selectable = True
    """Whether some of the rows can be taken by themselves."""

    @property
    def inverts(self) -> bool:
        """Whether :meth:`Point.resolvent` is there: Newton's method then costs no more than mixing."""
        return False

    @property
    def bounds_float32(self) -> bool:
        """Whether rounding is bounded in float32 too; else Newton's method is for float64 alone."""
        return False

    @property
    @abstractmethod
    def width(self) -> int:
        """Numbers that a row of a point holds."""

    @abstractmethod
    def shift(self, lam: Tensor) -> Tensor:
        r""":math:`s(\lambda)`, (g, r, k), with an absolute error of :meth:`rounding`."""

    @abstractmethod
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> Point:
        """Φ at dual points (g, r, k).

        Args:
            lam: λ.
            before: The point from which a step led here, or None.
            short: Where that step ended early, bool (g, r, 1). Where the gradient has kinks the curvature is then that
                on both sides: the last piece alone may lead back over the kink, in ever shorter steps.
        """

    @abstractmethod
    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        """Bound on the error of :meth:`shift`, or of ``at(lam).shift`` where accurate, (g, r, 1)."""

    def rounding_of_rows(self, lam: Tensor) -> Tensor:
        """The same bound for ``at(lam).shift``, from what each row looks like, which is as much work as a point."""
        return self.rounding(lam, accurate=True)

    @abstractmethod
    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every curvature, (g or 1, r or 1, 1); None where there is none."""

    def safe_alpha(self, lam: Tensor) -> Tensor:
        """An α from which Newton's method arrives for evidence of any size along ``lam``, (g, r, 1)."""
        bound = self.smoothness()
        if bound is None:
            bound = 1 + norm(self.at(torch.zeros_like(lam)).product(lam / norm(lam)))
        return (1 / bound.clamp(min=torch.finfo(lam.dtype).tiny)).expand_as(lam[..., :1])

    def start(self, lam: Tensor, evidence: Tensor) -> Tensor:
        """The first-order point, or one between it and 0 where it is outside of the domain.

        Args:
            lam: αz, (g, r, k).
            evidence: z, (g, r, k).
        """
        del evidence
        return lam

    def over_templates(self) -> TemplateFamily | None:
        """The same where p is a list of weights; else None."""
        return None

    def take(self, part: Part) -> Family:
        """The same for some of the rows."""
        raise NotImplementedError(f"{type(self).__name__} cannot be taken apart")

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same in another dtype, computed from what was given."""


@dataclass(frozen=True)
class Block:
    """Some queries, as solvers see them: g groups of r rows, or where rows are not taken apart of any leading shape.

    Attributes:
        family: Φ.
        evidence: z, (g, r, d).
        alpha: α, (g or 1, r or 1, 1).
        beyond: ‖αz‖ outside of the coordinates, (g, r, 1), where they do not hold all of it.
        wide: Gives the same in a wider dtype, where this is what rounding has left of it.
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
        """The same rows in another dtype; what they were before they were rounded, where that is the dtype."""
        if dtype == self.evidence.dtype:
            return self
        narrower = torch.finfo(dtype).bits < torch.finfo(self.evidence.dtype).bits
        if self.wide is not None and not narrower:
            return self.wide()
        wide = (lambda: self) if narrower else None
        return self._changed(self.family.to(dtype), lambda x: x.to(dtype), wide)


def centre(templates: Tensor, usable: Tensor | None) -> Tensor:
    """The mean of the templates (..., n, d) that some query may use, marked in ``usable`` (..., 1, n), (..., 1, d)."""
    if usable is None:
        return templates.mean(-2, keepdim=True)
    some = usable.to(templates.dtype)
    return some @ templates / some.sum(-1, keepdim=True).clamp(min=1)


class TemplateFamily(Family):
    r"""Templates under a closeness whose weights are functions of each query's logits.

    Solvers take those whose curvature is :math:`\operatorname{diag} q - qq^\top/\sum q` (fact 12).

    Args:
        given: Templates, (g, n, d).
        log_preference: Log u, normalised, (g or 1, r or 1, n).
        closeness: D.
    """

    def __init__(
        self, given: Tensor, log_preference: Tensor, closeness: AbstractCloseness | None = None
    ) -> None:
        self.given, self.log_preference = given, log_preference
        self.closeness = KL() if closeness is None else closeness

    @property
    @override
    def width(self) -> int:
        return self.given.shape[-2]

    @property
    @override
    def bounds_float32(self) -> bool:
        return self.closeness.is_softmax

    @cached_property
    def usable(self) -> Tensor | None:
        """Which templates some query can reach, bool (g or 1, 1, n); None where that is all."""
        return self.closeness.usable(self.log_preference)

    @cached_property
    def centre(self) -> Tensor:
        """A vector that all templates share: without it nothing changes but rounding (fact 3), (g, 1, d)."""
        return centre(self.given, self.usable)

    @cached_property
    def templates(self) -> Tensor:
        """Less their centre, (g, n, d)."""
        return self.given - self.centre

    @cached_property
    def radius(self) -> Tensor:
        """The largest norm of a template that can be used, (g, 1, 1)."""
        lengths = norm(self.templates)
        if self.usable is not None:
            lengths = lengths.masked_fill(~self.usable.mT, 0)
        return lengths.amax(-2, keepdim=True)

    @cached_property
    def level(self) -> float | None:
        """The largest size of a log weight; None where all rows have one that is uniform, which is no preference."""
        low, high = listed(torch.stack(self.log_preference.aminmax()))
        if low == high:
            return None
        if low == -torch.inf:
            low = float(self.log_preference.masked_fill(torch.isneginf(self.log_preference), 0).amin())
        return max(abs(low), abs(high))

    @cached_property
    def is_plain_softmax(self) -> bool:
        """Whether weights are a softmax of logits alone: the log weights are known, all equal, and need no gradient."""
        log_u = self.log_preference
        known = self.closeness.is_softmax and values_are_known(log_u) and not needs_gradient(log_u)
        return known and self.level is None

    @cached_property
    def rest_weights(self) -> Tensor:
        """The weights at λ = 0, (g or 1, r or 1, n)."""
        return self.closeness.rest(self.log_preference)

    @cached_property
    def rest(self) -> Tensor:
        """The mean at λ = 0, less the centre, (g, r or 1, d)."""
        return self.rest_weights @ self.templates

    def _mean(self, lam: Tensor) -> Tensor:
        if not self.closeness.is_softmax:
            return self.closeness.weights(lam @ self.templates.mT, self.log_preference) @ self.templates
        mask = None if self.level is None else self.log_preference.expand(*lam.shape[:2], -1).unsqueeze(0)
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
        unit, (n, k) = torch.finfo(lam.dtype).eps / 2, self.templates.shape[-2:]
        length = norm(lam)
        of_logits = (summed(k) + 8) * unit * length * self.radius
        if self.closeness.is_softmax:
            of_weights = (summed(n) + 8 + 4 * (self.level or 0)) * unit
            moved = (2 * length * self.radius).clamp(max=1) if accurate else 1.0
            return 2 * self.radius * (of_logits + of_weights * moved)
        if lam.dtype != torch.float64:
            return torch.full_like(length, torch.inf)
        _, lost = self.closeness.rounding(torch.zeros_like(length[..., 0]), of_logits[..., 0], n)
        of_sums = (summed(n) + 8) * unit
        whole = 2 * self.radius * (2 * _column(lost, lam) + of_sums)
        if not accurate:
            return whole.expand_as(length)
        modulus = _column(self.closeness.modulus, lam)
        near = length * self.radius <= SMALL * modulus
        return torch.where(near, 3 * length / modulus * self.radius * (whole + of_sums * self.radius), whole)

    @override
    def rounding_of_rows(self, lam: Tensor) -> Tensor:
        if not self.closeness.is_softmax and lam.dtype != torch.float64:
            return super().rounding_of_rows(lam)
        return self.at(lam).rounding_errors().shift.unsqueeze(-1)

    @override
    def smoothness(self) -> Tensor:
        r""":math:`\max_i\lVert t_i\rVert^2/\sigma`: D* is 1/σ-smooth in the maximum norm."""
        return self.radius.square() / _column(self.closeness.modulus, self.radius)

    @override
    def over_templates(self) -> TemplateFamily:
        return self

    @override
    def take(self, part: Part) -> TemplateFamily:
        closeness = self.closeness.rows(lambda own: part.pick(own.unsqueeze(-1)).squeeze(-1))
        return TemplateFamily(part.of_groups(self.given), part.pick(self.log_preference), closeness)

    @override
    def to(self, dtype: torch.dtype) -> TemplateFamily:
        if dtype == self.given.dtype:
            return self
        return TemplateFamily(self.given.to(dtype), self.log_preference.to(dtype), self.closeness.to(dtype))


@dataclass(frozen=True)
class RoundingErrors:
    r"""How far rounding may have moved what a point gives, (..., m).

    Attributes:
        shift: The shift of the mean.
        mean: The mean less the centre.
        weights: The weights, in total variation.
        spread: Of the point, :math:`\sqrt{\sum_ip_i\lVert t_i-h\rVert^2}`.
        offset: Of the point, the length of the mean less the centre.
        fenchel_young: By how much :math:`D(p) + D^*(f) - \langle p, f\rangle` may be above 0 besides, or 0.
    """

    shift: Tensor
    mean: Tensor
    weights: Tensor
    spread: Tensor
    offset: Tensor
    fenchel_young: float | Tensor


class TemplatePoint(Point):
    """Templates at dual points, with explicit weights (g, r, n)."""

    def __init__(self, family: TemplateFamily, lam: Tensor) -> None:
        self.family, self.templates, self.lam = family, family.templates, lam
        self._closeness, self._preference = family.closeness, family.log_preference
        self._logits = lam @ self.templates.mT
        if family.is_plain_softmax:
            self.weights = self._logits.softmax(-1)
        else:
            self.weights = self._closeness.weights(self._logits, self._preference)

    @cached_property
    def entropy(self) -> Tensor:
        """Of the weights, in nats, (g, r, 1)."""
        if not self._closeness.is_softmax:
            return total(torch.special.entr(self.weights))
        # From logits: as many logarithms as rows, not as weights. What weighs nothing is far below and counts nothing.
        below = self._logits if self.family.is_plain_softmax else self._preference + self._logits
        below = (below - below.amax(-1, keepdim=True)).clamp_(min=-1e4)
        return -self.weights.amax(-1, keepdim=True).log() - dot(self.weights, below)

    @cached_property
    def curved(self) -> Tensor:
        """The weights q of the curvature."""
        return self._closeness.curvature_weights(self.weights, self._preference)

    @cached_property
    def _mass(self) -> Tensor:
        return total(self.curved)

    @cached_property
    def _mean(self) -> Tensor:
        return self.curved @ self.templates / self._mass

    def average_curvature(self, before: TemplatePoint, short: Tensor) -> None:
        """Take the mean of the curvatures here and at another point where ``short``, bool (g, r, 1)."""
        self.curved = torch.where(short, (before.curved + self.curved) / 2, self.curved)

    @cached_property
    @override
    def shift(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        moved = self._closeness.displacement(self._logits, self.weights, self._preference)
        return moved @ self.templates

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

    def rounding_errors(self) -> RoundingErrors:
        """How far rounding may have moved weights, mean and shift, by the closeness and by Cauchy and Schwarz."""
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
        # Errors of <t, λ>, and of adding log u, which is log p + φ(λ) - <t, λ>; |φ(λ)| is ‖λ‖ times a moment at most.
        each, adding = (summed(dim) + 3) * unit * length, 2 * unit * length
        largest = each * radius + adding * radius
        relative, lost = closeness.rounding(
            each * moment + adding * (moment + moment_at_rest), largest, count
        )
        nothing = torch.zeros_like(length)
        at_zero, _ = closeness.rounding(nothing, nothing, count)
        if closeness.is_softmax:
            of_level = 4 * (self.family.level or 0) * unit  # of log u, when it was normalised
            relative, at_zero = relative + of_level, at_zero + of_level
        of_sums, whole = (2 * summed(count) + 8) * unit, radius * lost
        at_rest = at_zero * spread_at_rest + of_sums * moment_at_rest + whole
        shift = relative * spread + of_sums * moment + at_rest
        modulus = closeness.modulus
        near = reach <= SMALL * modulus
        # One row says whether the closeness has displacements that do not cancel.
        row, u = self._logits[..., :1, :], self._preference[..., :1, :]
        if bool(near.any()) and closeness.near_displacement(torch.zeros_like(row), u) is not None:
            curved = moment_at_rest.square() * (at_zero + 2 * of_sums + 2 * (summed(dim) + 15) * unit)
            shift = torch.where(near, 3 * length / modulus * (curved + radius * whole), shift)
        return RoundingErrors(
            shift=shift,
            mean=shift + at_rest,
            weights=(relative / 2 + (summed(count) + 4) * unit + lost).clamp(max=1),
            spread=spread,
            offset=offset,
            fenchel_young=closeness.pairing_error(largest),
        )
