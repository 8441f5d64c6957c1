r"""What the driver asks of a preference and a closeness: φ at rows of dual points, through the shift of the mean.

Shapes: g groups of r rows with k coordinates. Everything is written in :math:`s(\lambda) = \nabla\varphi(\lambda) -
\nabla\varphi(0)`, with which the gradient of the dual is :math:`z - \lambda/\alpha - s(\lambda)` and two means are
never subtracted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from fenchel.blocks import AbstractBlock, ConjugateBlock, QueryBlock
from fenchel.closeness import AbstractCloseness
from fenchel.rounding import SMALL, summed
from fenchel.selection import Part

__all__ = ["Family", "FunctionFamily", "Point", "TemplateFamily", "family_of", "norm"]

Line = Callable[[Tensor], tuple[Tensor, Tensor]]

SQUARED = (1e-15, 1e15)
"""Lengths whose squares float32 holds."""


def norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, kept, which neither under- nor overflows."""
    if x.dtype != torch.float64:
        if x.device.type == "cpu":
            found = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            if bool(((found > SQUARED[0]) & (found < SQUARED[1])).all()):
                return found
        # float64 holds the squares of all narrower numbers.
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64).to(x.dtype)
    top = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.linalg.vector_norm(x / top, dim=-1, keepdim=True) * top


def total(x: Tensor) -> Tensor:
    """Sum over the last dimension, kept."""
    return x.sum(-1, keepdim=True)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, kept."""
    return torch.linalg.vecdot(x, y).unsqueeze(-1)


def _column(number: float | Tensor, like: Tensor) -> Tensor:
    """One number, or one a row (g or 1, r or 1), so that it multiplies columns (g, r, 1) as ``like`` has them."""
    found = torch.as_tensor(number, dtype=like.dtype, device=like.device)
    return found if found.dim() == 0 else found.unsqueeze(-1)


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
    def along(self, direction: Tensor, size: Tensor) -> Line:
        r"""The line whose value and derivative at t, each (g, r, 1), are those of s in units of ``size``.

        .. math:: t \mapsto \langle s(\lambda + t\,\mathtt{size}\,\delta) - s(\lambda), \delta\rangle / \mathtt{size}
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
    def width(self) -> int | None:
        """Numbers a row that a point holds besides its coordinates, where rows can be taken by themselves."""
        return None

    @property
    def wide_evidence(self) -> Tensor | None:
        """The evidence in float64, where that which the driver was given is what rounding has left of it."""
        return None

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
    def easy(self, lam: Tensor) -> Tensor:
        """An α from which Newton's method arrives for evidence of any size along ``lam``, (g, r, 1)."""

    def start(self, lam: Tensor) -> Tensor:
        """The first-order point, or one between it and 0 where it is outside of the domain."""
        return lam

    def take(self, part: Part) -> Family:
        """The same for some of the rows."""
        raise NotImplementedError(f"{type(self).__name__} cannot be taken apart")

    @abstractmethod
    def to(self, dtype: torch.dtype) -> Self:
        """The same in another dtype, computed from what was given."""


def family_of(block: AbstractBlock) -> Family:
    """The family of a block: templates where the closeness gives weights row by row, else φ as a function."""
    if isinstance(block, QueryBlock):
        return TemplateFamily(block)
    assert isinstance(block, ConjugateBlock)  # noqa: S101 -- there are two kinds
    return FunctionFamily(block)


class TemplateFamily(Family):
    r"""Templates under a closeness whose curvature is :math:`\operatorname{diag} q - qq^\top/\sum q` (fact 12).

    Args:
        block: The rows.
        wide: The same in float64, where ``block`` is what rounding to its dtype has left of them.

    Attributes:
        templates: Centred, (g, n, k).
    """

    def __init__(self, block: QueryBlock, wide: QueryBlock | None = None) -> None:
        self._block, self._wide, self.templates = block, wide, block.offsets
        self._preference, self._closeness = block.log_preference, block.closeness
        self._is_softmax = self._closeness.is_softmax
        self.radius = norm(self.templates).amax(-2, keepdim=True)
        # One preference of all rows that is uniform is none.
        low, high = self._preference.aminmax()
        self._levels, self._uniform = 0.0, bool(low == high)
        if not self._uniform:
            if float(low) == -torch.inf:
                low = self._preference.masked_fill(torch.isneginf(self._preference), 0).amin()
            self._levels = max(abs(float(low)), abs(float(high)))

    @property
    @override
    def width(self) -> int:
        return self.templates.shape[-2]

    @cached_property
    def rest(self) -> Tensor:
        """The mean at λ = 0, (g, r or 1, k)."""
        rows = self._preference.shape[1]
        return self._mean(self.templates.new_zeros(len(self.templates), rows, self.templates.shape[-1]))

    def _mean(self, lam: Tensor) -> Tensor:
        if not self._is_softmax:
            return self._closeness.weights(lam @ self.templates.mT, self._preference) @ self.templates
        mask = None
        if not self._uniform:
            mask = self._preference.expand(len(lam), lam.shape[1], -1).unsqueeze(0)
        # One fused attention call; an expanded query takes a slow path.
        query, keys = lam.contiguous().unsqueeze(0), self.templates.unsqueeze(0)
        return scaled_dot_product_attention(query, keys, keys, attn_mask=mask, scale=1.0).squeeze(0)

    @override
    def shift(self, lam: Tensor) -> Tensor:
        return self._mean(lam) - self.rest

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> TemplatePoint:
        point = TemplatePoint(self.templates, self._closeness, self._preference, lam)
        if before is not None and short is not None and not self._is_softmax:
            point.bend(before, short)
        return point

    @override
    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        unit, (n, k) = torch.finfo(lam.dtype).eps / 2, self.templates.shape[-2:]
        length = norm(lam)
        of_logits = (summed(k) + 8) * unit * length * self.radius
        if self._is_softmax:
            of_weights = (summed(n) + 8 + 4 * self._levels) * unit
            moved = (2 * length * self.radius).clamp(max=1) if accurate else 1.0
            return 2 * self.radius * (of_logits + of_weights * moved)
        if lam.dtype != torch.float64:
            return torch.full_like(length, torch.inf)
        _, lost = self._closeness.rounding(torch.zeros_like(length[..., 0]), of_logits[..., 0], n)
        of_sums = (summed(n) + 8) * unit
        whole = 2 * self.radius * (2 * _column(lost, lam) + of_sums)
        if not accurate:
            return whole.expand_as(length)
        modulus = _column(self._closeness.modulus, lam)
        near = length * self.radius <= SMALL * modulus
        return torch.where(near, 3 * length / modulus * self.radius * (whole + of_sums * self.radius), whole)

    @override
    def rounding_of_rows(self, lam: Tensor) -> Tensor:
        r"""By Cauchy and Schwarz, with the root mean square of ‖t‖ and the spread about the mean of each row."""
        if not self._is_softmax:
            return self.rounding(lam, accurate=True)
        unit, (n, k) = torch.finfo(lam.dtype).eps / 2, self.templates.shape[-2:]
        squares = dot(self.templates, self.templates)

        def lengths(weights: Tensor) -> tuple[Tensor, Tensor]:
            moment, mean = weights @ squares, norm(weights @ self.templates)
            lost = (2 * summed(n) + k + 4) * unit
            spread = (moment - mean.square()).clamp(min=0) + 2 * lost * moment
            return (moment * (1 + lost)).sqrt(), spread.sqrt()

        length, spread = lengths(self.at(lam).weights)
        length_at_rest, spread_at_rest = lengths(self._preference.softmax(-1))
        of_weights, of_sums = (8 + 4 * self._levels) * unit, (summed(n) + 8) * unit
        of_logits = (summed(k) + 8) * unit * norm(lam) * length + of_weights
        return 2 * (of_logits * spread + of_weights * spread_at_rest + of_sums * (length + length_at_rest))

    @override
    def easy(self, lam: Tensor) -> Tensor:
        modulus = _column(self._closeness.modulus, lam)
        return (modulus / self.radius.square().clamp(min=torch.finfo(lam.dtype).tiny)).expand_as(lam[..., :1])

    @override
    def take(self, part: Part) -> TemplateFamily:
        def taken(block: QueryBlock) -> QueryBlock:
            return QueryBlock(
                part.of_groups(block.templates),
                part.pick(block.log_preference),
                part.pick(block.evidence),
                part.pick(block.alpha),
                block.closeness.rows(lambda own: part.pick(own.unsqueeze(-1)).squeeze(-1)),
            )

        return TemplateFamily(taken(self._block), None if self._wide is None else taken(self._wide))

    @override
    def to(self, dtype: torch.dtype) -> TemplateFamily:
        if dtype == self.templates.dtype:
            return self
        return TemplateFamily(self._block.to(dtype) if self._wide is None else self._wide)

    @property
    @override
    def wide_evidence(self) -> Tensor | None:
        return None if self._wide is None else self._wide.evidence


class TemplatePoint(Point):
    """Templates at dual points, with explicit weights (g, r, n)."""

    def __init__(
        self, templates: Tensor, closeness: AbstractCloseness, preference: Tensor, lam: Tensor
    ) -> None:
        self.templates, self._closeness, self._preference = templates, closeness, preference
        self._logits = lam @ templates.mT
        self.weights = closeness.weights(self._logits, preference)

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

    def bend(self, before: TemplatePoint, short: Tensor) -> None:
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
    def along(self, direction: Tensor, size: Tensor) -> Line:
        lifted = direction @ self.templates.mT
        lifted = lifted - total(self.curved * lifted) / self._mass

        def look(t: Tensor) -> tuple[Tensor, Tensor]:
            step = t * size * lifted
            weights = self._closeness.weights(self._logits + step, self._preference)
            moved = weights - self.weights
            if self._closeness.is_softmax:
                small = step.abs().amax(-1, keepdim=True) <= SMALL
                moved = torch.where(small, self.weights * torch.expm1(torch.where(small, step, 0)), moved)
            curved = self._closeness.curvature_weights(weights, self._preference)
            first = total(curved * lifted)
            return total(moved * lifted) / size, total(curved * lifted.square()) - first.square() / total(
                curved
            )

        return look


class FunctionFamily(Family):
    """Φ of any preference and closeness, as a function; its rows cannot be taken apart."""

    selectable = False

    def __init__(self, block: ConjugateBlock) -> None:
        self._block = block
        self._conjugate, self._shape = block.problem.conjugate, tuple(block.problem.shape)

    def whole(self, rows: Tensor) -> Tensor:
        """Rows (g, r, any) in the problem's shape."""
        return rows.reshape(*self._shape, rows.shape[-1])

    @override
    def shift(self, lam: Tensor) -> Tensor:
        return self._block.shift(lam)

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> FunctionPoint:
        return FunctionPoint(self, self._block, lam)

    @override
    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        if lam.dtype != torch.float64:
            return torch.full_like(lam[..., :1], torch.inf)
        known = self._block.rounding(lam)
        if known is not None:
            return known.unsqueeze(-1)
        # Certified by the weights, or from both means, in the end.
        return torch.finfo(lam.dtype).eps * norm(self._block.shift(lam))

    @override
    def easy(self, lam: Tensor) -> Tensor:
        bound = self._conjugate.smoothness()
        if bound is not None:
            steepest = bound.expand(self._shape).reshape(lam[..., :1].shape)
        else:
            direction = lam / norm(lam)
            zero = self.whole(torch.zeros_like(lam))
            steepest = norm(self._conjugate.curvature(zero)(self.whole(direction)).reshape(lam.shape))
        return 1 / (1 + steepest)

    @override
    def start(self, lam: Tensor) -> Tensor:
        reach = self._conjugate.reach(self.whole(torch.zeros_like(lam)), self.whole(lam))
        if reach is not None:
            reach = reach.reshape(lam[..., :1].shape)
            lam = torch.where(reach > 1, 1, reach / 2) * lam
        # Where the mean moves much farther than the evidence asks, or numbers overflow, 0 is the better start.
        moved, asked = norm(self.shift(lam)), norm(self._block.evidence)
        return torch.where(moved <= 10 * asked, lam, 0)

    @override
    def to(self, dtype: torch.dtype) -> FunctionFamily:
        return self if dtype == self._block.evidence.dtype else FunctionFamily(self._block.to(dtype))


class FunctionPoint(Point):
    """Φ, as a function, at dual points."""

    def __init__(self, family: FunctionFamily, block: ConjugateBlock, lam: Tensor) -> None:
        self._family, self._block, self._lam = family, block, lam
        self._conjugate = block.problem.conjugate
        self._curvature = self._conjugate.curvature(family.whole(lam))

    @cached_property
    @override
    def shift(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._block.shift(self._lam)

    @override
    def product(self, vector: Tensor) -> Tensor:
        return self._curvature(self._family.whole(vector)).reshape(vector.shape)

    @override
    def matrices(self, rows: Tensor) -> Tensor:
        identity = torch.eye(self._lam.shape[-1], dtype=self._lam.dtype, device=self._lam.device)
        columns = [self.product(unit.expand_as(self._lam).contiguous())[rows] for unit in identity]
        return torch.stack(columns, -1)

    @override
    def along(self, direction: Tensor, size: Tensor) -> Line:
        def look(t: Tensor) -> tuple[Tensor, Tensor]:
            there = self._lam + t * size * direction
            moved = total((self._block.shift(there) - self.shift) * direction) / size
            curvature = self._conjugate.curvature(self._family.whole(there))
            curved = curvature(self._family.whole(direction)).reshape(direction.shape)
            return moved, total(curved * direction)

        return look

    @override
    def reach(self, step: Tensor) -> Tensor | None:
        found = self._conjugate.reach(self._family.whole(self._lam), self._family.whole(step))
        return None if found is None else found.reshape(step[..., :1].shape)

    @override
    def resolvent(self, alpha: Tensor, vector: Tensor) -> Tensor | None:
        whole = self._family.whole
        found = self._conjugate.resolvent(
            whole(self._lam), whole(alpha.expand_as(vector[..., :1])), whole(vector)
        )
        return None if found is None else alpha * found.reshape(vector.shape)
