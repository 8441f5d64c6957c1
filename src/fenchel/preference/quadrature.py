r"""Integrals over places in an interval or a rectangle, on panels that are halved where nothing has converged yet.

On the nodes :math:`x_i` of Gauss and Legendre's rule with weights :math:`\omega_i` a density over places is a list
of templates :math:`\psi(x_i)` with log weights :math:`\log\omega_i + \log u(x_i)`. For every λ panels are found anew,
on which cumulant, mean and covariance at λ have converged: nothing depends on earlier calls. How far the rule on
panels is from the rule on their halves says how far the finer one is from the integral at most, once they converge.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape, check_form, checked_sample_shape, sums
from fenchel.preference.discrete import Discrete, drawn_indices, picked
from fenchel.preference.gaussian import Gaussian
from fenchel.preference.panels import REMEDY, Convergence, Numbers, Panels, largest, refined, starting
from fenchel.tensors import UNIT, check_entries, check_not_mapped, check_tensor, first_index

Places = Callable[[Tensor], Tensor]
"""A function of places (n, k): a basis (n, d), a log density (n,)."""


class Quadrature(AbstractPreference):
    r"""The vectors :math:`t = \psi(x)` of places x in an interval or a rectangle with a density u.

    .. math:: \log M(\lambda) = \log\int u(x)\,e^{\langle\psi(x), \lambda\rangle}\,dx

    Integrals are computed in float64, and what they give is rounded.

    Args:
        basis: ψ, from places (n, k) to (n, d).
        density: u: a Gaussian of places; or its logarithm, from places to (n,), not necessarily normalised; or None,
            the same everywhere.
        edges: In each dimension the places between which panels begin, in rising order.
        points: Places (k numbers each) around which panels are small from the start.
        accuracy: To which integrals have to converge.
        dtype: Of arguments and results. Basis and density are evaluated in float64 if they can be, else in this.
        device: Where.
    """

    resolves_shift = True
    rows = ("_tilt", "density")

    def __init__(
        self,
        basis: Places,
        density: Gaussian | Places | None,
        edges: Numbers,
        points: Numbers,
        accuracy: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # Of dimension, dtype and device.
        self._like = torch.empty(0, dtype=dtype, device=device)
        self.basis, self.density = basis, density
        self._edges, self._accuracy = edges, accuracy
        self._tilt: Tensor | None = None
        places, _ = starting(edges, (), 0).to(device).nodes()
        self._given = torch.float64 if self._takes_float64(places) else dtype
        self._templates(places)
        self._log_density(places)
        self._start = starting(edges, points).to(device)
        with torch.no_grad():
            templates = self._templates(self._start.nodes()[0])
        # A common vector changes nothing but rounding.
        self._like = self._like.new_empty(templates.shape[-1])
        self._center = templates.mean(-2, keepdim=True)
        self._size = largest(templates - self._center)
        self._largest = largest(templates)

    @property
    @override
    def width(self) -> int:
        halves = 2 ** len(self._edges)
        return max(self.dim, halves * len(self._start.nodes()[1]))

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
        result = self.basis(places.to(self._given))
        form = "(n, d) at places (n, k), a row of d numbers for each place"
        check_tensor("basis(places)", result, form, sizes=(len(places), None))
        check_form("basis(places)", result, form, 2)
        check_entries("basis(places)", result, torch.isfinite, "finite numbers at every place")
        return result.double()

    def _log_density(self, places: Tensor) -> Tensor:
        """Log u at places (n, k), (..., m or 1, n)."""
        if self.density is None:
            return torch.zeros(1, places.shape[0], dtype=torch.float64, device=self.device)
        if isinstance(self.density, Gaussian):
            return self.density.to(torch.float64).log_density_of_all(places)
        return self._called_density(places).unsqueeze(0)

    def _called_density(self, places: Tensor) -> Tensor:
        assert self.density is not None and not isinstance(self.density, Gaussian)  # noqa: S101, PT018
        result = self.density(places.to(self._given))
        form = "(n,) at places (n, k), the logarithm of the density at each place"
        check_tensor("density(places)", result, form, sizes=(len(places),))
        expected = "finite logarithms, or -inf where there is none"
        check_entries("density(places)", result, lambda x: x < torch.inf, expected)
        return result.double()

    def _weighed(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Centred templates (n, d) and the log of the density (..., m or 1, n), not normalised, at places (n, k)."""
        templates, log_density = self._templates(places) - self._center, self._log_density(places)
        if self._tilt is not None:
            log_density = log_density + self._tilt.double() @ templates.mT
        return templates, log_density

    def _at(self, panels: Panels) -> Discrete:
        """Centred templates (n, d) with log weights (..., m or 1, n), in float64."""
        places, log_lengths = panels.nodes()
        templates, log_density = self._weighed(places)
        return Discrete._of(templates, (log_density + log_lengths).log_softmax(-1))

    @property
    def _few(self) -> float:
        return max(self._accuracy, *(64 * torch.finfo(dtype).eps for dtype in (self._given, self.dtype)))

    def _refined(
        self, panels: Panels, lam: Tensor | None, function: Callable[[Tensor], Tensor] | None = None
    ) -> Convergence:
        """Panels on which integrals at λ converge: those of a function from places to (n, v), or of the templates."""
        check_not_mapped(f"the integrals of {self._name}", lam, self._tilt)
        size, scale = self._size, self._largest
        if function is not None:
            values = function(panels.nodes()[0])
            size = scale = largest(values)

        def at(places: Tensor) -> tuple[Tensor, Tensor]:
            templates, log_weights = self._weighed(places)
            if lam is not None:
                log_weights = log_weights + lam.double() @ templates.mT
            return log_weights, (templates if function is None else function(places)) / size

        lead = self.lead if lam is None else torch.broadcast_shapes(self.lead, lam.shape[:-1])
        exponent = torch.zeros(lead, dtype=torch.float64, device=self.device)
        for vector in (lam, self._tilt):
            if vector is not None:
                exponent = exponent + vector.double().norm(dim=-1) * self._size
        return refined(
            panels,
            at,
            rows=math.prod(lead),
            accuracy=self._few,
            eps=torch.finfo(self._given).eps,
            span=scale / size,
            exponent=exponent,
        )

    def _converged(self, lam: Tensor | None, *, at_rest: bool = False) -> Convergence:
        """Panels for integrals at λ, and if asked at 0 too."""
        with torch.no_grad():
            rest = self._refined(self._start, None) if at_rest or lam is None else None
            if lam is None:
                assert rest is not None  # noqa: S101
                return rest
            if rest is None:
                return self._refined(self._start, lam.detach())
            result = self._refined(rest.panels, lam.detach())
            return Convergence(result.panels, result.settled & rest.settled)

    def _panels(self, lam: Tensor | None, *, at_rest: bool = False) -> Panels:
        """Panels on whose halves integrals at λ have converged, and if asked those at 0.

        Raises:
            ProblemError: Where they do not.
        """
        result = self._converged(lam, at_rest=at_rest)
        if bool(result.settled.all()):
            return result.panels
        where = first_index(~result.settled)
        raise ProblemError(
            f"the integrals of {self._name} do not converge for {int((~result.settled).sum())} of "
            f"{result.settled.numel()} queries (first at index {where}) to {self._few:.1g} with "
            f"{self._count(result.panels):,} places: density or basis change too fast for them. {REMEDY}"
        )

    @property
    def _name(self) -> str:
        return f"Continuous{len(self._edges)}d"

    def _count(self, panels: Panels) -> int:
        return len(panels.halved().nodes()[1])

    @override
    def unsettled(self, lam: Tensor) -> Tensor:
        return ~self._converged(lam, at_rest=True).settled

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        result = self._at(self._panels(lam, at_rest=True).halved())
        return (
            Discrete._of(result.templates + self._center, result.log_weights)
            .log_mgf(lam.double())
            .to(self.dtype)
        )

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        result = self._at(self._panels(lam).halved())
        return (result.tilted_mean(lam.double()) + self._center).to(self.dtype)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        self.check_point("lam", lam)
        result = self._at(self._panels(lam, at_rest=True).halved())
        return result.tilted_shift(lam.double()).to(self.dtype)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        product = self._at(self._panels(lam).halved()).tilted_covariance(lam.double())
        return lambda vector: product(vector.double()).to(self.dtype)

    def rounding(self, lam: Tensor) -> Tensor:
        """What halving panels changed last, and what sums over so many nodes may lose."""
        panels, wide = self._panels(lam, at_rest=True), lam.double()
        fine, coarse = (self._at(part).tilted_shift(wide) for part in (panels.halved(), panels))
        exponent = lam.norm(dim=-1) * self._size
        lost = 64 * UNIT * self._size * exponent.clamp(max=1) * (1 + exponent)
        return (fine - coarse).norm(dim=-1) + lost

    def mean_rounding(self) -> Tensor:
        """Templates may be much larger than their mean; and what halving panels changed last of the mean at rest."""
        panels = self._panels(None)
        fine, coarse = self._at(panels.halved()), self._at(panels)
        apart = (fine.mean() - coarse.mean()).norm(dim=-1)
        return apart + sums(fine.support_size) * self._largest

    def expectation(self, function: Places) -> Tensor:
        r""":math:`\mathbb{E}_u[f(x)]` of a function from places (n, k) to (n, v), (..., m or 1, v)."""
        return self._changed(basis=function, _tilt=None)._mean_under(self)

    def _mean_under(self, weighing: Quadrature) -> Tensor:
        with torch.no_grad():
            result = weighing._refined(weighing._start, None, self._templates)
        if not bool(result.settled.all()):
            raise ProblemError(
                f"the expectation did not converge to {self._few:.1g} with {self._count(result.panels):,} places: "
                f"density or function change too fast for them. {REMEDY}"
            )
        panels = result.panels.halved()
        values = self._templates(panels.nodes()[0])
        return (weighing._at(panels).weights() @ values).to(self.dtype)

    @override
    def tilted(self, lam: Tensor) -> Quadrature:
        self.check_point("lam", lam)
        self._panels(lam)
        return self._changed(_tilt=lam if self._tilt is None else self._tilt + lam)

    def sample_places(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Places, shape (\*shape, ..., m or 1, k): to the distance of many nodes, and without gradient."""
        sizes = checked_sample_shape(shape, generator, self.device)
        with torch.no_grad():
            panels = self._panels(None).halved().finer()
            weights = self._at(panels).weights().expand(*self.lead, -1)
            index = drawn_indices(weights, sizes, generator)
            begin, end = (picked(part.to(self.dtype).unsqueeze(0), index, 1) for part in panels.cells())
            share = torch.rand(begin.shape, generator=generator, dtype=self.dtype, device=self.device)
            return begin + share * (end - begin)

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        return self._everywhere(self.sample_places(shape, generator))

    def _everywhere(self, places: Tensor) -> Tensor:
        """ψ at places (..., k), (..., d)."""
        templates = self._templates(places.double().reshape(-1, places.shape[-1]))
        return templates.to(self.dtype).reshape(*places.shape[:-1], self.dim)

    def log_density(self, points: Tensor) -> Tensor:
        """The log density at places (..., m, k), (..., m); -inf outside."""
        wide = points.double()
        inner = torch.stack([wide[..., i].clamp(axis[0], axis[-1]) for i, axis in enumerate(self._edges)], -1)
        if self.density is None:
            density = inner.new_zeros(inner.shape[:-1])
        elif isinstance(self.density, Gaussian):
            density = self.density.to(torch.float64).log_density(inner)
        else:
            density = self._called_density(inner.reshape(-1, inner.shape[-1])).reshape(inner.shape[:-1])
        places, log_lengths = self._panels(None).halved().nodes()
        _, whole = self._weighed(places)
        if self._tilt is not None:
            templates = self._templates(inner.reshape(-1, inner.shape[-1])) - self._center
            tilts = templates.reshape(*inner.shape[:-1], self.dim) * self._tilt.double()
            density = density + tilts.sum(-1)
        result = density - torch.logsumexp(whole + log_lengths, -1)
        return result.masked_fill((inner != wide).any(-1), -torch.inf).to(self.dtype)

    @override
    def to(self, dtype: torch.dtype) -> Quadrature:
        return super().to(dtype)._changed(_center=self._center)
