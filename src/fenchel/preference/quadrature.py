r"""Integrals over positions in an interval or a rectangle, by adaptive quadrature.

On the nodes :math:`x_i` of the Gauss-Legendre rule with weights :math:`\omega_i`, a density of positions is a list of
templates :math:`\psi(x_i)` with log weights :math:`\log\omega_i + \log u(x_i)`. For every λ the panels are refined from
the start until cumulant, mean and covariance at λ have converged: results do not depend on earlier calls. Once the
integrals converge, the difference between the rule on the panels and on their halves bounds the error of the finer one.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape, check_form, sums
from fenchel.preference.discrete import Discrete, drawn_indices, picked
from fenchel.preference.gaussian import Gaussian
from fenchel.preference.panels import REMEDY, SAMPLED, Numbers, Panels, largest, refined, starting
from fenchel.tensors import UNIT, check_entries, check_not_mapped, check_tensor, first_index

# A function of positions (n, k), such as a basis (n, d) or a log density (n,).
Places = Callable[[Tensor], Tensor]

# Maximum number of refinements of an expectation, each needed if the last one found much larger values.
ROUNDS = 8


class Quadrature(AbstractPreference):
    r"""The vectors :math:`t = \psi(x)` of positions x in an interval or a rectangle with a density u.

    .. math:: \log M(\lambda) = \log\int u(x)\,e^{\langle\psi(x), \lambda\rangle}\,dx

    Integrals are computed in float64 and rounded to the dtype.

    Args:
        basis: ψ, from positions (n, k) to (n, d).
        density: u: a Gaussian of positions; or a function that returns log u, (n,), not necessarily normalised; or
            None for the uniform density.
        edges: In each dimension the positions at which panels begin or end, in increasing order.
        points: Positions (k numbers each) around which initial panels are small.
        accuracy: Tolerance of the integrals.
        dtype: Dtype of arguments and results. Basis and density are evaluated in float64 if possible, else in this
            dtype.
        device: Device of the tensors.
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
        # Determines dimension, dtype and device.
        self._like = torch.empty(0, dtype=dtype, device=device)
        self.basis, self.density = basis, density
        self._edges, self._accuracy = edges, accuracy
        self._tilt: Tensor | None = None
        places, _ = starting(edges, (), 0).to(device).nodes()
        self._function_dtype = torch.float64 if self._takes_float64(places) else dtype
        self._start = starting(edges, points).to(device)
        with torch.no_grad():
            templates = self._templates(self._start.nodes()[0])
        # Subtracting a common vector changes only rounding.
        self._like = self._like.new_empty(templates.shape[-1])
        self._center = templates.mean(-2, keepdim=True)
        self._size = largest(templates - self._center)
        self._largest = largest(templates)
        self._weighed(places)

    @property
    @override
    def width(self) -> int:
        halves = 2 ** len(self._edges)
        return max(self.dim, halves * len(self._start.nodes()[1]))

    def _takes_float64(self, places: Tensor) -> bool:
        """Whether basis and density can be evaluated in float64."""
        try:
            self.basis(places)
            if self.density is not None and not isinstance(self.density, Gaussian):
                self.density(places)
        except RuntimeError:
            return False
        return True

    def _templates(self, places: Tensor) -> Tensor:
        """ψ at positions (..., k), (..., d)."""
        return self._finite_values("basis(places)", self.basis, places).double()

    def _finite_values(self, name: str, function: Places, places: Tensor) -> Tensor:
        result = values_at(name, function, places.to(self._function_dtype))
        check_entries(name, result, torch.isfinite, "finite numbers at every position")
        return result

    def _log_density(self, places: Tensor) -> Tensor:
        """Log u, not necessarily normalised, at positions (..., k) or (..., m, k): (...) or (..., m)."""
        if self.density is None:
            return torch.zeros(places.shape[:-1], dtype=torch.float64, device=self.device)
        if isinstance(self.density, Gaussian):
            return self.density.to(torch.float64).log_density(places)
        rows = places.reshape(-1, places.shape[-1])
        result = self.density(rows.to(self._function_dtype))
        form = "(n,) at positions (n, k), the log density at each position"
        check_tensor("density(places)", result, form, sizes=(len(rows),))
        expected = "finite logarithms, or -inf where the density is 0"
        check_entries("density(places)", result, lambda x: x < torch.inf, expected)
        return result.double().reshape(places.shape[:-1])

    def _weighed(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Centred templates (n, d) and the log density (..., m or 1, n), not normalised, at positions (n, k)."""
        templates = self._templates(places) - self._center
        # Positions first, since all queries share them.
        queries = [1] * len(self.lead)
        log_density = self._log_density(places.reshape(len(places), *queries, -1)).movedim(0, -1)
        if self._tilt is not None:
            log_density = log_density + self._tilt.double() @ templates.mT
        return templates, log_density

    def _at(self, panels: Panels) -> Discrete:
        """Centred templates (n, d) with log weights (..., m or 1, n), in float64."""
        places, log_lengths = panels.nodes()
        templates, log_density = self._weighed(places)
        return Discrete._of(templates=templates, log_weights=(log_density + log_lengths).log_softmax(-1))

    @property
    def _tolerance(self) -> float:
        """The accuracy, but not below rounding."""
        return max(
            self._accuracy, *(64 * torch.finfo(dtype).eps for dtype in (self._function_dtype, self.dtype))
        )

    def _refined(
        self, panels: Panels, lam: Tensor | None, function: Places | None = None, sizes: Tensor | None = None
    ) -> tuple[Panels, Tensor]:
        """Refine panels for integrals at λ of the templates, or of a function (n, v) relative to sizes (v,).

        Returns:
            The panels and which queries have converged, bool (..., m).
        """
        check_not_mapped(f"the integrals of {self._name}", lam, self._tilt)
        eps, span = torch.finfo(self._function_dtype).eps, self._largest / self._size
        if sizes is not None:
            eps, span = max(eps, torch.finfo(sizes.dtype).eps), 1.0

        def at(places: Tensor) -> tuple[Tensor, Tensor]:
            templates, log_weights = self._weighed(places)
            if lam is not None:
                log_weights = log_weights + lam.double() @ templates.mT
            if function is None or sizes is None:
                return log_weights, templates / self._size
            return log_weights, function(places).double() / sizes

        lead = self.lead if lam is None else torch.broadcast_shapes(self.lead, lam.shape[:-1])
        exponent = torch.zeros(lead, dtype=torch.float64, device=self.device)
        for vector in (lam, self._tilt):
            if vector is not None:
                exponent = exponent + vector.double().norm(dim=-1) * self._size
        return refined(
            panels,
            at,
            rows=max(math.prod(lead), 0 if sizes is None else len(sizes)),
            accuracy=max(self._tolerance, 64 * eps),
            eps=eps,
            span=span,
            exponent=exponent,
        )

    def _panels(self, lam: Tensor | None, *, at_rest: bool = False) -> Panels:
        """Panels on whose halves the integrals at λ have converged, and those at 0 if ``at_rest``.

        Raises:
            ProblemError: If they do not converge.
        """
        panels, settled = self._start, torch.ones(1, dtype=torch.bool, device=self.device)
        with torch.no_grad():
            for at in (None, lam) if at_rest else (lam,):
                panels, there = self._refined(panels, None if at is None else at.detach())
                settled = settled & there
        if bool(settled.all()):
            return panels
        where = first_index(~settled)
        raise ProblemError(
            f"the integrals of {self._name} do not converge for {int((~settled).sum())} of {settled.numel()} queries "
            f"(first at index {where}) to {self._tolerance:.1g} with {self._count(panels):,} positions: density or "
            f"basis change too fast. {REMEDY}"
        )

    @property
    def _name(self) -> str:
        return f"Continuous{len(self._edges)}d"

    def _count(self, panels: Panels) -> int:
        return len(panels.halved().nodes()[1])

    def _converged_at(self, lam: Tensor, *, at_rest: bool = False) -> Discrete:
        """Centred templates with log weights, whose sums are the integrals at λ, and those at 0 if ``at_rest``."""
        self.check_point("lam", lam)
        return self._at(self._panels(lam, at_rest=at_rest).halved())

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        result = self._converged_at(lam, at_rest=True)
        result = result._changed(templates=result.templates + self._center)
        return result.log_mgf(lam.double()).to(self.dtype)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return (self._converged_at(lam).tilted_mean(lam.double()) + self._center).to(self.dtype)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        return self._converged_at(lam, at_rest=True).tilted_shift(lam.double()).to(self.dtype)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        product = self._converged_at(lam).tilted_covariance(lam.double())
        return lambda vector: product(vector.double()).to(self.dtype)

    def rounding(self, lam: Tensor) -> Tensor:
        """The change in the last halving of the panels, and the rounding of sums over the nodes."""
        panels, wide = self._panels(lam, at_rest=True), lam.double()
        fine, coarse = (self._at(part).tilted_shift(wide) for part in (panels.halved(), panels))
        exponent = lam.norm(dim=-1) * self._size
        lost = 64 * UNIT * self._size * exponent.clamp(max=1) * (1 + exponent)
        return (fine - coarse).norm(dim=-1) + lost

    def mean_rounding(self) -> Tensor:
        """The rounding of templates much larger than their mean, and the last change of the mean at rest."""
        panels = self._panels(None)
        fine, coarse = self._at(panels.halved()), self._at(panels)
        change = (fine.mean() - coarse.mean()).norm(dim=-1)
        return change + sums(fine.support_size) * self._largest

    def expectation(self, function: Places, least: float = 1.0) -> Tensor:
        r""":math:`\mathbb{E}_u[f(x)]` of a function from positions (n, k) to (n, v), (..., m or 1, v).

        Args:
            function: f.
            least: Smallest scale of a column of f, relative to the largest; the accuracy of a column is relative to its
                scale.
        """

        def at(places: Tensor) -> Tensor:
            return self._finite_values("function(places)", function, places)

        panels, settled = self._start, torch.ones(1, dtype=torch.bool)
        with torch.no_grad():
            sizes = torch.zeros((), device=self.device)
            for _ in range(ROUNDS):
                seen = at(panels.nodes()[0]).abs().amax(0)
                if bool((seen <= 16 * sizes).all()):
                    break
                sizes = seen.clamp(min=max(least * float(seen.amax()), torch.finfo(seen.dtype).tiny))
                panels, settled = self._refined(panels, None, at, sizes)
        if not bool(settled.all()):
            raise ProblemError(
                f"the expectation did not converge to {self._tolerance:.1g} with {self._count(panels):,} positions: "
                f"density or function change too fast. {REMEDY}"
            )
        panels = panels.halved()
        return (self._at(panels).weights() @ at(panels.nodes()[0]).double()).to(self.dtype)

    @override
    def tilted(self, lam: Tensor) -> Quadrature:
        self.check_point("lam", lam)
        self._panels(lam)
        return self._changed(_tilt=lam if self._tilt is None else self._tilt + lam)

    def sample_places(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Positions, shape (\*shape, ..., m or 1, k), to the resolution of many nodes and without gradient."""
        with torch.no_grad():
            panels = self._panels(None)
            for _ in range(1 + SAMPLED[len(self._edges)]):
                panels = panels.halved()
            index = drawn_indices(self._at(panels).weights(), self.lead, shape, generator)
            begin, end = (picked(part.to(self.dtype).unsqueeze(0), index, 1) for part in panels.cells())
            share = torch.rand(begin.shape, generator=generator, dtype=self.dtype, device=self.device)
            return begin + share * (end - begin)

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        return self._templates(self.sample_places(shape, generator).double()).to(self.dtype)

    def log_density(self, points: Tensor) -> Tensor:
        """The log density at positions (..., m, k), (..., m); -inf outside."""
        wide = points.double()
        inner = torch.stack([wide[..., i].clamp(axis[0], axis[-1]) for i, axis in enumerate(self._edges)], -1)
        density = self._log_density(inner)
        if self._tilt is not None:
            density = density + ((self._templates(inner) - self._center) * self._tilt.double()).sum(-1)
        places, log_lengths = self._panels(None).halved().nodes()
        _, whole = self._weighed(places)
        result = density - torch.logsumexp(whole + log_lengths, -1)
        return result.masked_fill((inner != wide).any(-1), -torch.inf).to(self.dtype)

    @override
    def to(self, dtype: torch.dtype) -> Quadrature:
        return super().to(dtype)._changed(_center=self._center)


def values_at(name: str, function: Places, places: Tensor) -> Tensor:
    """The values (..., v) of a function from (n, k) to (n, v) at positions (..., k).

    Raises:
        ProblemError: If the function returns another shape.
    """
    rows = places.reshape(-1, places.shape[-1])
    result = function(rows)
    form = "(n, d) at positions (n, k), a row of d numbers for each position"
    check_tensor(name, result, form, sizes=(len(rows), None))
    check_form(name, result, form, 2)
    return result.reshape(*places.shape[:-1], -1)
