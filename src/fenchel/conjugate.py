"""φ, the one convex function through which solvers, bounds and gradients see a preference and a closeness."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.closeness import KL, AbstractCloseness
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import ProblemError
from fenchel.family import Family, Line, Point, TemplateFamily
from fenchel.preference import AbstractPreference, Discrete
from fenchel.tensors import norm, total


class Conjugate(Family):
    r"""What a preference u and a closeness D make together: a convex function of the dual point.

    .. math:: \varphi(\lambda) = D^*(T\lambda), \qquad h(\lambda) = \nabla\varphi(\lambda), \qquad
              \mathcal{D}(\lambda) = \langle\lambda, \nabla\varphi(0) + z\rangle
              - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - \varphi(\lambda)

    Here under Kullback and Leibler's closeness, where it is the cumulant of the preference, log M(λ). The inferred
    distribution is then the preference tilted by λ: it has a mean and no list of weights. Outside of the domain of
    log M the value is infinite and the mean NaN, whatever formulas give there.

    Solvers see it as a family whose rows have the shape (..., m) of the queries and cannot be taken apart.

    Args:
        preference: u.
        closeness: D.

    Reference:
        Theorem 1, eqs. (8) and (9).
    """

    selectable = False

    def __init__(self, preference: AbstractPreference, closeness: AbstractCloseness) -> None:
        self.preference = preference
        self.closeness = closeness

    @property
    def leads(self) -> dict[str, tuple[int, ...]]:
        """The leading shapes (..., m or 1) of what it is made of, by name."""
        return {"preference": tuple(self.preference.lead)}

    @property
    def lead(self) -> torch.Size:
        """The leading shape (..., m or 1) of one number a query."""
        return torch.broadcast_shapes(*self.leads.values())

    def value(self, lam: Tensor) -> Tensor:
        """φ(λ), shape (..., m) for ``lam`` (..., m, d)."""
        inside, value = self.preference.inside(lam), self.preference.log_mgf(lam)
        return value if inside is None else value.masked_fill(~inside, torch.inf)

    def mean(self, lam: Tensor) -> Tensor:
        r""":math:`h(\lambda) = \nabla\varphi(\lambda)`, shape (..., m, d)."""
        return self._where_finite(lam, self.preference.tilted_mean(lam))

    @override
    def shift(self, lam: Tensor) -> Tensor:
        r""":math:`h(\lambda) - h(0)`, shape (..., m, d); exactly zero at λ = 0."""
        return self._where_finite(lam, self.preference.tilted_shift(lam))

    def _where_finite(self, lam: Tensor, vectors: Tensor) -> Tensor:
        """NaN outside of the domain, where formulas may give numbers that mean nothing."""
        inside = self.preference.inside(lam)
        return vectors if inside is None else vectors.masked_fill(~inside.unsqueeze(-1), torch.nan)

    def curvature(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        r""":math:`\nabla^2\varphi(\lambda)` as a function that multiplies vectors (..., m, d)."""
        return self.preference.tilted_covariance(lam)

    def rest_mean(self) -> Tensor:
        r"""The mean at rest, :math:`\nabla\varphi(0)`, which evidence shifts: μ under KL, μ̃ (38) under transport."""
        return self.preference.tilted_mean(self._zero())

    def _zero(self) -> Tensor:
        u = self.preference
        return torch.zeros((*self.lead, u.dim), dtype=u.dtype, device=u.device)

    def mean_by(self, lam: Tensor, shift: Tensor) -> Tensor:
        """H(λ) given the shift of the mean, (..., m, d).

        By itself where the shift has all digits: a mean near 0 that is far from that at rest has some that the sum
        would lose.
        """
        return self.mean(lam) if self.preference.resolves_shift else self.rest_mean() + shift

    def infer(self, lam: Tensor) -> tuple[Tensor | None, Tensor]:
        """The weights (..., m, N), or None where p is no list of weights, and the shift."""
        return None, self.shift(lam)

    @override
    def at(self, lam: Tensor, before: Any = None, short: Tensor | None = None) -> ConjugatePoint:
        return ConjugatePoint(self, lam)

    @override
    def rounding(self, lam: Tensor, *, accurate: bool) -> Tensor:
        if lam.dtype != torch.float64:
            return torch.full_like(lam[..., :1], torch.inf)
        known = self.preference.rounding(lam)
        if known is not None:
            return known.unsqueeze(-1).expand_as(lam[..., :1])
        # The certificate is by the weights, or from both means.
        return torch.finfo(lam.dtype).eps * norm(self.shift(lam))

    @property
    @override
    def inverts(self) -> bool:
        zero = self._zero()
        return self.preference.resolvent(zero, zero[..., :1] + 1, zero) is not None

    @override
    def start(self, lam: Tensor, evidence: Tensor) -> Tensor:
        reach = self.preference.reach(torch.zeros_like(lam), lam)
        if reach is not None:
            reach = reach.unsqueeze(-1)
            lam = torch.where(reach > 1, 1, reach / 2) * lam
        # Where the mean moves much farther than the evidence asks, or numbers overflow, 0 is the better start.
        return torch.where(norm(self.shift(lam)) <= 10 * norm(evidence), lam, 0)

    @override
    def smoothness(self) -> Tensor | None:
        """A bound on the eigenvalues of every curvature, broadcasting to (..., m, 1), or None where there is none."""
        bound = self.preference.smoothness()
        return None if bound is None else bound.unsqueeze(-1)

    @property
    @override
    def width(self) -> int:
        return self.preference.width

    def distribution(self, lam: Tensor) -> AbstractPreference:
        """P(λ) as a distribution, of each query its own."""
        return self.preference.tilted(lam)

    def primal_value(self, lam: Tensor) -> Tensor:
        r""":math:`D(p(\lambda), u) = \langle\lambda, h(\lambda)\rangle - \varphi(\lambda)`, shape (..., m)."""
        return (lam * self.mean(lam)).sum(-1) - self.value(lam)

    @override
    def to(self, dtype: torch.dtype) -> Self:
        if dtype == self.preference.dtype:
            return self
        return type(self)(self.preference.to(dtype), self.closeness.to(dtype))

    def queries(self, part: slice) -> Self:
        """The same function for some of the m queries."""
        return type(self)(self.preference.queries(part), self.closeness.queries(part))

    def refuse_weights(self) -> ProblemError:
        """The error of whoever asks for weights where p is no list of weights."""
        return ProblemError(
            f"{type(self.preference).__name__} has no list of templates, so that p is no list of weights; expected a "
            "fenchel.Discrete preference. The mean, the dual point and their bounds are there, estimate.distribution, "
            "and problem.primal_at(lam) in the place of problem.primal(weights)"
        )


class ConjugatePoint(Point):
    """Φ, as a function, at dual points."""

    def __init__(self, conjugate: Conjugate, lam: Tensor) -> None:
        self._conjugate, self._lam = conjugate, lam
        self._curvature = conjugate.curvature(lam)

    @cached_property
    @override
    def shift(self) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self._conjugate.shift(self._lam)

    @override
    def product(self, vector: Tensor) -> Tensor:
        return self._curvature(vector)

    @override
    def matrices(self, rows: Tensor) -> Tensor:
        identity = torch.eye(self._lam.shape[-1], dtype=self._lam.dtype, device=self._lam.device)
        columns = [self.product(unit.expand_as(self._lam).contiguous())[rows] for unit in identity]
        return torch.stack(columns, -1)

    @override
    def along(self, direction: Tensor, size: Tensor) -> tuple[Line, Tensor]:
        def look(t: Tensor) -> tuple[Tensor, Tensor]:
            there = self._lam + t * size * direction
            moved = total((self._conjugate.shift(there) - self.shift) * direction) / size
            return moved, total(self._conjugate.curvature(there)(direction) * direction)

        return look, torch.zeros_like(size)

    @override
    def reach(self, step: Tensor) -> Tensor | None:
        result = self._conjugate.preference.reach(self._lam, step)
        return None if result is None else result.unsqueeze(-1)

    @override
    def resolvent(self, alpha: Tensor, vector: Tensor) -> Tensor | None:
        result = self._conjugate.preference.resolvent(self._lam, alpha.expand_as(vector[..., :1]), vector)
        return None if result is None else alpha * result


class FiniteConjugate(Conjugate):
    r"""φ of a :class:`~fenchel.Discrete` preference: :math:`D^*` at the potential :math:`f = T\lambda`.

    Args:
        preference: u, with templates (..., n, d).
        closeness: D, bound to the templates by its method ``bind``.

    Attributes:
        templates: Those that p may use, (..., N, d): the preference's, then the atoms of the closeness.
    """

    preference: Discrete

    def __init__(self, preference: Discrete, closeness: AbstractCloseness) -> None:
        super().__init__(preference, closeness)
        # Joined here and not when first asked for, which may be where no gradients are recorded.
        self.templates = closeness.support(preference)

    @override
    def to(self, dtype: torch.dtype) -> Self:
        if dtype == self.preference.dtype:
            return self
        # Bound anew: what a closeness computes from the templates is computed from those of the new dtype.
        preference = self.preference.to(dtype)
        return type(self)(preference, self.closeness.to(dtype).bind(preference))

    @property
    @override
    def leads(self) -> dict[str, tuple[int, ...]]:
        templates = (*self.templates.shape[:-2], 1)
        log_weights = tuple(self.log_weights.shape[:-1])
        return {"templates": templates, "log_weights": log_weights, **self.closeness.query_shapes()}

    @property
    def log_weights(self) -> Tensor:
        """Log u, (..., m or 1, n)."""
        return self.preference.log_weights

    def potential(self, lam: Tensor) -> Tensor:
        r"""The inner products :math:`T\lambda`, shape (..., m, N)."""
        self.preference.check_point("lam", lam)
        return lam @ self.templates.mT

    def weights(self, lam: Tensor) -> Tensor:
        r"""Recovery (9): :math:`p(\lambda) = \nabla D^*(T\lambda)`, shape (..., m, N)."""
        return self.closeness.weights(self.potential(lam), self.log_weights)

    def rest_weights(self) -> Tensor:
        """The weights nearest the preference, (..., m or 1, N): u under KL, ũ (37) under transport."""
        return self.closeness.rest(self.log_weights)

    @override
    def value(self, lam: Tensor) -> Tensor:
        return self.closeness.conjugate(self.potential(lam), self.log_weights)

    @override
    def mean(self, lam: Tensor) -> Tensor:
        return self.weights(lam) @ self.templates

    @override
    def rest_mean(self) -> Tensor:
        return self.rest_weights() @ self.templates

    @override
    def shift(self, lam: Tensor) -> Tensor:
        return self.infer(lam)[1]

    @override
    def infer(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        potential = self.potential(lam)
        weights = self.closeness.weights(potential, self.log_weights)
        # One product with p - u rather than two with p and u: at λ = 0 the difference is then exactly zero.
        return weights, self.closeness.displacement(potential, weights, self.log_weights) @ self.templates

    @override
    def curvature(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        of_closeness = self.closeness.curvature(self.potential(lam), self.log_weights)
        return lambda vector: of_closeness(self.potential(vector)) @ self.templates

    @property
    @override
    def width(self) -> int:
        return max(self.preference.dim, self.templates.shape[-2])

    @override
    def distribution(self, lam: Tensor) -> Discrete:
        weights = self.weights(lam)
        positive = weights > 0
        log_weights = weights.where(positive, 1).log().masked_fill(~positive, -torch.inf)
        return Discrete(self.templates, log_weights)

    @override
    def smoothness(self) -> Tensor:
        return self.over_templates().smoothness()

    @override
    def over_templates(self) -> TemplateFamily:
        return TemplateFamily(self.templates, self.log_weights, self.closeness)


def conjugate_of(
    preference: AbstractPreference, closeness: AbstractCloseness | str | None = None
) -> Conjugate:
    r"""φ of a preference and a closeness.

    Args:
        preference: u: a :class:`~fenchel.Discrete`, or any other distribution that gives its cumulant.
        closeness: D, :class:`~fenchel.KL` where None; a preference that is not discrete goes with that alone.

    Raises:
        ProblemError: If either is something else, or they do not go together.

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> conjugate_of(Discrete(torch.tensor([[1.0], [-1.0]]))).value(torch.tensor([[0.0], [1.0]]))   # log cosh
        tensor([0.0000, 0.4338])
    """
    if not isinstance(preference, AbstractPreference):
        raise ProblemError(
            f"preference is a {type(preference).__name__}; expected fenchel.Discrete(templates), "
            "fenchel.Gaussian(mean, covariance) or another distribution"
        )
    closeness = KL() if closeness is None else closeness_of(closeness)
    if not isinstance(closeness, AbstractCloseness):
        raise ProblemError(
            f"closeness is {shown(closeness)}; expected one such as fenchel.KL(), fenchel.Tsallis(1.5) or "
            "fenchel.OptimalTransport(cost, gamma)"
        )
    if isinstance(preference, Discrete):
        return FiniteConjugate(preference, closeness.bind(preference))
    if isinstance(closeness, KL):
        return Conjugate(preference, closeness)
    raise ProblemError(
        f"closeness is {closeness!r} and the preference a {type(preference).__name__}, which has no list of templates; "
        "expected fenchel.KL(), or a fenchel.Discrete preference"
    )


def tensors_of(thing: object) -> dict[str, Tensor]:
    """Every tensor that is reached through attributes, by the name of the attribute that holds it.

    Args:
        thing: A preference, a closeness or anything made of such; lists, mappings, modules and other objects of classes
            written in Python are looked into. Where two attributes have one name the later gets a number.

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> sorted(tensors_of(Discrete(torch.eye(2))))
        ['log_weights', 'templates']
    """
    result: dict[str, Tensor] = {}
    for name, tensor in _walk("", thing, set()):
        key, number = name.lstrip("_"), 2
        while key in result and result[key] is not tensor:
            key, number = f"{name.lstrip('_')}_{number}", number + 1
        result[key] = tensor
    return result


def _walk(name: str, thing: Any, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        yield name, thing
        return
    if thing is None or isinstance(thing, str | bytes | int | float | complex | type) or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        yield from thing.named_parameters()
        yield from thing.named_buffers()
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _walk(str(key), value, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for value in thing:
            yield from _walk(name, value, seen)
    else:
        slots = (slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ()))
        own = {**{slot: getattr(thing, slot, None) for slot in slots}, **getattr(thing, "__dict__", {})}
        for attribute, value in own.items():
            yield from _walk(attribute, value, seen)
