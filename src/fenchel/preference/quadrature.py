r"""Integrals over places in an interval or a rectangle, by panels that are halved until nothing moves.

On the nodes :math:`x_i` of Gauss and Legendre's rule with weights :math:`\omega_i` a density over places is a list
of templates :math:`\psi(x_i)` with log weights :math:`\log\omega_i + \log u(x_i)`. How far cumulant and mean of one
rule are from those of the rule with half as many panels says how far the finer one is from the integral at most,
once they converge.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments.tensor import check_tensor, values_are_known
from fenchel.closeness.rounding import UNIT
from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape
from fenchel.preference.gaussian import Gaussian
from fenchel.preference.legendre import Rule
from fenchel.preference.parameters import (
    check_entries,
    checked_sample_shape,
    displacement,
    drawn_indices,
    picked,
    sums,
)

__all__ = ["Places", "Quadrature"]

Places = Callable[[Tensor], Tensor]
"""A function of places (n, k): a basis (n, d), a log density (n,)."""


class Quadrature(AbstractPreference):
    r"""The vectors :math:`t = \psi(x)` of places x in an interval or a rectangle with a density u.

    .. math:: \log M(\lambda) = \log\int u(x)\,e^{\langle\psi(x), \lambda\rangle}\,dx

    Args:
        basis: ψ, from places (n, k) to (n, d).
        density: u: a Gaussian of places; or its logarithm, from places to (n,), not necessarily normalised; or None,
            the same everywhere.
        rule: Where and how finely integrals are taken.
        dtype: Of what is computed. Basis and density are evaluated in float64 if they can be, else in this.
        device: Where.
    """

    resolves_shift = True

    def __init__(
        self,
        basis: Places,
        density: Gaussian | Places | None,
        rule: Rule,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.basis, self.density, self.rule = basis, density, rule
        self._dtype, self._device, self._level = dtype, device, 1
        self._tilt: Tensor | None = None
        places, _ = rule.nodes(0, device)
        self._given = torch.float64 if self._takes_float64(places) else dtype
        templates = self._templates(places)
        self._log_density(places)
        # A common vector changes nothing but rounding; one for all levels, so that their cumulants compare.
        self._dim, self._center = templates.shape[-1], templates.detach().mean(-2, keepdim=True)

    def _like(self, **changes: Any) -> Quadrature:
        copy = object.__new__(Quadrature)
        vars(copy).update({**vars(self), **changes})
        return copy

    @property
    @override
    def dim(self) -> int:
        return self._dim

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    @override
    def device(self) -> torch.device:
        return self._device

    @property
    @override
    def lead(self) -> torch.Size:
        of_density = self.density.lead if isinstance(self.density, Gaussian) else (1,)
        of_tilt = (1,) if self._tilt is None else self._tilt.shape[:-1]
        return torch.broadcast_shapes(of_density, of_tilt)

    @property
    @override
    def width(self) -> int:
        return max(self._dim, len(self.rule.nodes(self._level, self._device)[1]))

    def _takes_float64(self, places: Tensor) -> bool:
        """Whether basis and density can be evaluated in float64, where they are certified; else in the dtype alone."""
        try:
            self.basis(places)
            if self.density is not None and not isinstance(self.density, Gaussian):
                self.density(places)
        except RuntimeError:
            return False
        return True

    def _templates(self, places: Tensor) -> Tensor:
        """ψ at places (n, k), (n, d)."""
        found = self.basis(places.to(self._given))
        check_tensor("basis(places)", found, "(n, d) at places (n, k)")
        if found.dim() != 2 or found.shape[0] != places.shape[0] or found.shape[1] == 0:
            raise ProblemError(
                f"basis gives shape {tuple(found.shape)} at places {tuple(places.shape)}; expected "
                f"({places.shape[0]}, d): "
                "a row of d numbers for each place"
            )
        check_entries("basis(places)", found, torch.isfinite, "finite numbers at every place")
        return found.to(self._dtype)

    def _log_density(self, places: Tensor) -> Tensor:
        """Log u at places (n, k), (..., m or 1, n)."""
        if self.density is None:
            return torch.zeros(1, places.shape[0], dtype=self._dtype, device=self._device)
        if isinstance(self.density, Gaussian):
            return self.density.log_density_of_all(places.to(self._dtype))
        return self._called_density(places).unsqueeze(0)

    def _called_density(self, places: Tensor) -> Tensor:
        assert self.density is not None and not isinstance(self.density, Gaussian)  # noqa: S101, PT018
        found = self.density(places.to(self._given))
        check_tensor("density(places)", found, "(n,) at places (n, k)")
        if found.shape != places.shape[:1]:
            raise ProblemError(
                f"density gives shape {tuple(found.shape)} at places {tuple(places.shape)}; expected "
                f"({places.shape[0]},), "
                "the logarithm of the density at each place"
            )
        check_entries(
            "density(places)",
            found,
            lambda x: x < torch.inf,
            "finite logarithms, or -inf where there is none",
        )
        return found.to(self._dtype)

    def _at(self, level: int) -> tuple[Tensor, Tensor]:
        """Templates (n, d), and log weights (..., m or 1, n) that sum to one."""
        places, log_lengths = self.rule.nodes(level, self._device)
        templates, log_weights = (
            self._templates(places),
            self._log_density(places) + log_lengths.to(self._dtype),
        )
        if self._tilt is not None:
            log_weights = log_weights + self._tilt @ templates.mT
        return templates, log_weights.log_softmax(-1)

    def _moved(self, lam: Tensor, level: int) -> tuple[Tensor, Tensor, Tensor]:
        """The cumulant less what a common vector adds, the shift of the mean, and the largest centred template."""
        templates, log_weights = self._at(level)
        templates = templates - self._center
        exponents = lam @ templates.mT
        moved = displacement(exponents, log_weights) @ templates
        return torch.logsumexp(log_weights + exponents, -1), moved, templates.norm(dim=-1).amax()

    def _error(self, lam: Tensor, level: int) -> tuple[Tensor, Tensor]:
        """How far the mean of a level is from that of the one before; that and the cumulant's, relative, (..., m)."""
        (coarse, before, _), (fine, after, size) = self._moved(lam, level - 1), self._moved(lam, level)
        apart = (after - before).norm(dim=-1)
        relative = apart / size.clamp(min=torch.finfo(lam.dtype).tiny)
        return apart, torch.maximum(relative, (fine - coarse).abs() / (1 + fine.abs()))

    @property
    def _few(self) -> float:
        return max(self.rule.accuracy, *(64 * torch.finfo(dtype).eps for dtype in (self._given, self._dtype)))

    def _settled(self, lam: Tensor) -> int:
        """The level from which on nothing moves, or the finest."""
        with torch.no_grad():
            lam, level = lam.detach(), self._level
            if not values_are_known(lam):
                return level
            while level < self.rule.finest and not bool((self._error(lam, level)[1] <= self._few).all()):
                level += 1
        self._level = level
        return level

    @override
    def unsettled(self, lam: Tensor) -> Tensor:
        with torch.no_grad():
            return ~(self._error(lam.detach(), self._settled(lam))[1] <= self._few)

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        templates, log_weights = self._at(self._settled(lam))
        return torch.logsumexp(log_weights + lam @ templates.mT, -1)

    def _probabilities(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        templates, log_weights = self._at(self._settled(lam))
        return templates, (log_weights + lam @ templates.mT).softmax(-1)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        templates, p = self._probabilities(lam)
        return p @ templates

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        return self._moved(lam, self._settled(lam))[1]

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        templates, p = self._probabilities(lam)

        def product(vector: Tensor) -> Tensor:
            along = vector @ templates.mT
            return (p * (along - (p * along).sum(-1, keepdim=True))) @ templates

        return product

    @override
    def rounding(self, lam: Tensor) -> Tensor:
        """What halving panels changed last, and what sums over so many nodes may lose."""
        level = self._settled(lam)
        size = self._moved(lam[..., :1, :], level)[2]
        exponent = lam.norm(dim=-1) * size
        lost = 64 * UNIT * size * exponent.clamp(max=1) * (1 + exponent)
        return self._error(lam, level)[0] + lost

    @override
    def mean_rounding(self) -> Tensor:
        """Templates may be much larger than their mean."""
        templates, log_weights = self._at(self._level)
        return (sums(log_weights.shape[-1]) * templates.norm(dim=-1).amax()).expand(1)

    def expectation(self, function: Places) -> Tensor:
        r""":math:`\mathbb{E}_u[f(x)]` of a function from places (n, k) to (n, v), (..., m or 1, v)."""
        return self._like(basis=function, _tilt=None)._mean_under(self)

    def _mean_under(self, weighing: Quadrature) -> Tensor:
        def at(level: int) -> tuple[Tensor, Tensor]:
            values = self._templates(self.rule.nodes(level, self._device)[0])
            return weighing._at(level)[1].exp() @ values, values.abs().amax()

        level = weighing._settled(weighing._rest())
        (before, _), (found, size) = at(level - 1), at(level)
        while bool(((found - before).abs() > self._few * size).any()):
            if level == self.rule.finest:
                raise self.not_settled("the expectation", "function")
            level, before = level + 1, found
            found, size = at(level)
        return found

    def not_settled(self, what: str, basis: str) -> ProblemError:
        """The error of integrals that do not converge."""
        places = len(self.rule.nodes(self.rule.finest, self._device)[1])
        return ProblemError(
            f"{what} did not converge to {self._few:.1g} with {places:,} places: density or {basis} change too fast "
            "for "
            "them. Make alpha or the evidence smaller, give breaks= where they jump or bend, or a larger accuracy="
        )

    @override
    def tilted(self, lam: Tensor) -> Quadrature:
        self.check_point("lam", lam)
        level = self._settled(lam)
        return self._like(_tilt=lam if self._tilt is None else self._tilt + lam, _level=level)

    def sample_places(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Places, shape (\*shape, ..., m or 1, k): to the distance of the finest nodes, and without gradient."""
        sizes, level = checked_sample_shape(shape, generator, self._device), self.rule.finest
        with torch.no_grad():
            _, log_weights = self._at(level)
            weights = log_weights.exp().expand(*self.lead, -1)
            index = drawn_indices(weights, sizes, generator)
            begin, end = (
                picked(part.to(self._dtype).unsqueeze(0), index, 1)
                for part in self.rule.cells(level, self._device)
            )
            share = torch.rand(begin.shape, generator=generator, dtype=self._dtype, device=self._device)
            return begin + share * (end - begin)

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        return self._everywhere(self.sample_places(shape, generator))

    def _everywhere(self, places: Tensor) -> Tensor:
        """ψ at places (..., k), (..., d)."""
        return self._templates(places.reshape(-1, places.shape[-1])).reshape(*places.shape[:-1], self._dim)

    @override
    def log_density(self, points: Tensor) -> Tensor:
        """The log density at places (..., m, k), (..., m); -inf outside."""
        edges = [(edges[0], edges[-1]) for edges in self.rule.edges]
        inner = torch.stack([points[..., i].clamp(a, b) for i, (a, b) in enumerate(edges)], -1)
        if self.density is None:
            density = inner.new_zeros(inner.shape[:-1])
        elif isinstance(self.density, Gaussian):
            density = self.density.log_density(inner)
        else:
            density = self._called_density(inner.reshape(-1, inner.shape[-1])).reshape(inner.shape[:-1])
        places, log_lengths = self.rule.nodes(self._settled(self._rest()), self._device)
        whole = self._log_density(places) + log_lengths.to(self._dtype)
        if self._tilt is not None:
            density = density + (self._everywhere(inner) * self._tilt).sum(-1)
            whole = whole + self._tilt @ self._templates(places).mT
        return (density - torch.logsumexp(whole, -1)).masked_fill((inner != points).any(-1), -torch.inf)

    @override
    def to(self, dtype: torch.dtype) -> Quadrature:
        if dtype == self._dtype:
            return self
        tilt, density = self._tilt, self.density
        return self._like(
            _dtype=dtype,
            _center=self._center.to(dtype),
            _tilt=None if tilt is None else tilt.to(dtype),
            density=density.to(dtype) if isinstance(density, Gaussian) else density,
        )

    @override
    def queries(self, part: slice) -> Quadrature:
        tilt, density = self._tilt, self.density
        if tilt is not None and tilt.shape[-2] > 1:
            tilt = tilt[..., part, :]
        return self._like(
            _tilt=tilt,
            density=density.queries(part) if isinstance(density, Gaussian) else density,
        )
