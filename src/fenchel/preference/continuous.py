"""Densities over places: continuous attention over an interval or a rectangle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.arguments.tensor import check_vectors
from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape
from fenchel.preference.gaussian import Gaussian
from fenchel.preference.moments import GaussianMoments, moments
from fenchel.preference.place_arguments import (
    checked_accuracy,
    checked_edges,
    checked_numbers,
    checked_points,
)
from fenchel.preference.quadrature import Places, Quadrature

__all__ = ["AbstractContinuous", "Continuous1d", "Continuous2d"]

Interval = Sequence[float]
"""Two numbers, the lower first."""


class AbstractContinuous(AbstractPreference):
    """A density over places, whose templates are basis functions of the place: in closed form, or by quadrature.

    Attributes:
        form: Which of both.
    """

    resolves_shift = True
    _dimensions: ClassVar[int]

    form: GaussianMoments | Quadrature

    def __init__(
        self,
        basis: Places | str,
        density: Gaussian | Places | None,
        edges: tuple[tuple[float, ...], ...] | None,
        points: tuple[tuple[float, ...], ...],
        accuracy: float,
        dtype: torch.dtype | None,
        device: torch.device | str | None,
    ) -> None:
        name = type(self).__name__
        k = self._dimensions
        if isinstance(density, Gaussian):
            if density.dim != k:
                raise ProblemError(
                    f"density is a Gaussian of dimension {density.dim}; expected one of places, of dimension {k}"
                )
            if dtype is not None or device is not None:
                raise ProblemError("dtype and device are those of the density; expected neither to be given")
            dtype, device = density.dtype, density.device
        elif density is not None and not callable(density):
            raise ProblemError(
                f"density is {shown(density)}; expected a fenchel.Gaussian of places, a function that gives its "
                "logarithm, "
                "or None where all places are alike"
            )
        if isinstance(basis, str) and basis != "quadratic":
            raise ProblemError(
                f"basis is {shown(basis)}; expected a function of places (n, {k}), or 'quadratic'"
            )
        if not isinstance(basis, str) and not callable(basis):
            raise ProblemError(
                f"basis is {shown(basis)}; expected a function of places (n, {k}), or 'quadratic'"
            )
        if edges is None:
            if basis != "quadratic" or not isinstance(density, Gaussian):
                raise ProblemError(
                    f"{name} is given no interval; expected interval=, in which integrals are taken: only with basis "
                    "'quadratic' and a fenchel.Gaussian density are they known on the whole space"
                )
            self.form = GaussianMoments(density)
            return
        function = moments if isinstance(basis, str) else basis
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if dtype not in (torch.float32, torch.float64):
            raise ProblemError(f"dtype is {shown(dtype)}; expected torch.float32 or torch.float64")
        accuracy, device = checked_accuracy(accuracy), torch.device(device or "cpu")
        self.form = Quadrature(function, density, edges, points, accuracy, dtype, device)

    def _of(self, form: GaussianMoments | Quadrature) -> Self:
        made = object.__new__(type(self))
        made.form = form
        return made

    @property
    @override
    def dim(self) -> int:
        return self.form.dim

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self.form.dtype

    @property
    @override
    def device(self) -> torch.device:
        return self.form.device

    @property
    @override
    def lead(self) -> torch.Size:
        return self.form.lead

    @property
    @override
    def width(self) -> int:
        return self.form.width

    @property
    def places(self) -> Gaussian:
        """The Gaussian of the places, where that is what the density is: basis ``"quadratic"``, no interval.

        Raises:
            ProblemError: Where it is another.
        """
        if isinstance(self.form, GaussianMoments):
            return self.form.places
        raise ProblemError(
            "the places have no Gaussian density, being those of an interval; expected sample_places, log_density or "
            "expectation, which are there for every density"
        )

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        return self.form.log_mgf(lam)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return self.form.tilted_mean(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        return self.form.tilted_shift(lam)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        return self.form.tilted_covariance(lam)

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor | None:
        return self.form.reach(lam, direction)

    @override
    def rounding(self, lam: Tensor) -> Tensor | None:
        return self.form.rounding(lam)

    @override
    def mean_rounding(self) -> Tensor | None:
        return self.form.mean_rounding()

    @override
    def unsettled(self, lam: Tensor) -> Tensor | None:
        return self.form.unsettled(lam)

    @override
    def tilted(self, lam: Tensor) -> Self:
        return self._of(self.form.tilted(lam))

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Templates ψ(x) of places x that are drawn, shape (\*shape, ..., m or 1, d)."""
        return self.form.sample(shape, generator)

    def sample_places(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Places, shape (\*shape, ..., m or 1, k); differentiable where they are Gaussian.

        Args:
            shape: How many; () is one of each distribution.
            generator: Where randomness comes from; torch's own where None.
        """
        return (
            self.form.places.sample(shape, generator)
            if isinstance(self.form, GaussianMoments)
            else (self.form.sample_places(shape, generator))
        )

    @override
    def log_density(self, points: Tensor) -> Tensor:
        """The log density of the place, at places (..., m, k), (..., m).

        Raises:
            ProblemError: If they have another dimension, dtype or device.
        """
        check_vectors(
            "points", points, f"(..., m, {self._dimensions}), places", self._dimensions, self, "the density"
        )
        return self.form.log_density(points)

    def expectation(self, function: Places) -> Tensor:
        r"""The mean :math:`\mathbb{E}[f(x)]` of a function of the place, such as the values that attention pools.

        Args:
            function: f, from places (n, k) to (n, v).

        Returns:
            (..., m or 1, v).

        Raises:
            ProblemError: Where its integral does not converge, or the function is none.
        """
        if not callable(function):
            raise ProblemError(
                f"function is {shown(function)}; expected a function of places (n, {self._dimensions})"
            )
        return self.form.expectation(function)

    @override
    def to(self, dtype: torch.dtype) -> Self:
        return self if dtype == self.dtype else self._of(self.form.to(dtype))

    @override
    def queries(self, part: slice) -> Self:
        return self if self.lead[-1] == 1 else self._of(self.form.queries(part))

    def __repr__(self) -> str:
        how = "closed form" if isinstance(self.form, GaussianMoments) else f"{self.form.width} places"
        return (
            f"{type(self).__name__}(queries={tuple(self.lead)}, dim={self.dim}, {how}, dtype={self.dtype}, "
            f"device='{self.device}')"
        )


class Continuous1d(AbstractContinuous):
    r"""A density over a line, with templates :math:`t = \psi(x)`: continuous attention over a signal.

    .. math:: \log M(\lambda) = \log\int u(x)\,e^{\langle\psi(x), \lambda\rangle}\,dx

    With :math:`\psi(x) = (x, x^2)` and a Gaussian u on the whole line p is Gaussian, in closed form; else integrals
    are taken on an interval by Gauss and Legendre's rule, on panels that are halved until cumulant, mean and
    covariance no longer move, at every λ that is asked for. What halving changed last is counted in the bounds of an
    estimate, and integrals that do not converge are an error. No rule sees a narrow peak that lies between its first
    nodes, whose distance is up to 1/1300 of the interval, beside another part of the density that is larger at all of
    them: name places near such peaks as ``points``.

    Args:
        basis: ψ, a differentiable function of places (n, 1) that gives (n, d), such as a module; or ``"quadratic"``.
        density: u: a :class:`~fenchel.Gaussian` of dimension 1, of which queries may have their own; or a function
            that gives log u, not necessarily normalised, (n,) of places (n, 1); None where all places of the
            interval are alike.
        interval: Where integrals are taken, (low, high); None for the closed form.
        breaks: Places within, where basis or density jump or bend, so that panels begin there.
        points: Places within, near which there may be narrow peaks, 64 at most: panels are small there from the start,
            down to 1e-9 of the interval. A peak is found if its width is at least a tenth of its distance to a point.
        accuracy: To which integrals have to converge: log M absolutely, the mean relative to the standard deviation of
            the templates, their covariance relative to its trace; not below rounding.
        dtype: float32 or float64, of what is computed: torch's default, or the Gaussian's. Basis and density are
            evaluated in float64 if they can be.
        device: Likewise.

    Raises:
        ProblemError: On arguments that do not fit, or functions whose values have another shape or are not finite.

    Reference:
        Section 7, which leaves continuous attention open; Martins et al. (2020) for the Gaussian case.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Continuous1d("quadratic", Gaussian(torch.tensor([0.5]).double(), variance=0.04))
        >>> z = torch.tensor([[0.2, 0.2]], dtype=torch.float64)     # how far both moments are observed off
        >>> InferenceProblem(u, z, alpha=10.0).solve("exact").distribution.places.mean()
        tensor([[0.5903]], dtype=torch.float64)
        >>> bumps = Continuous1d(lambda x: torch.exp(-50 * (x - torch.linspace(0, 1, 8)) ** 2), None, (0.0, 1.0))
        >>> InferenceProblem(bumps, torch.eye(8)[2:3]).solve("first_order").mean.argmax(-1)
        tensor([2])
    """

    _dimensions = 1

    def __init__(
        self,
        basis: Places | str,
        density: Gaussian | Places | None = None,
        interval: Interval | None = None,
        *,
        breaks: Sequence[float] = (),
        points: Sequence[float] = (),
        accuracy: float = 1e-12,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        edges = None if interval is None else (checked_edges("interval", interval, breaks),)
        inner, looked = checked_numbers("breaks", breaks), checked_numbers("points", points)
        for name, given in (("breaks", inner), ("points", looked)):
            if interval is None and given:
                raise ProblemError(f"{name} are given without an interval; expected interval= too")
        places = checked_points(points, [(place,) for place in looked], edges)
        super().__init__(basis, density, edges, places, accuracy, dtype, device)


class Continuous2d(AbstractContinuous):
    r"""A density over a plane, with templates :math:`t = \psi(x)`: continuous attention over an image.

    With :math:`\psi(x) = (x, xx^\top)`, six numbers a place, and a Gaussian u on the whole plane p is Gaussian, in
    closed
    form: an ellipse. Otherwise as :class:`Continuous1d`, on a rectangle, with first nodes whose distance is
    up to 1/80 of its sides: peaks narrower than that, beside a wider density, want ``points``.

    Args:
        basis: ψ, a differentiable function of places (n, 2) that gives (n, d); or ``"quadratic"``.
        density: u: a :class:`~fenchel.Gaussian` of dimension 2, or log u, (n,) of places (n, 2), or None.
        interval: The rectangle in which integrals are taken, ((low, high), (low, high)); None for the closed form.
        breaks: Where basis or density jump or bend, a list for each of both dimensions.
        points: Places (x, y) within, near which there may be narrow peaks, 16 at most: panels are small there from the
            start, down to 1.5e-5 of the sides.
        accuracy: To which integrals have to converge: log M absolutely, the mean relative to the standard deviation of
            the templates, their covariance relative to its trace; not below rounding.
        dtype: float32 or float64, of what is computed: torch's default, or the Gaussian's. Basis and density are
            evaluated in float64 if they can be.
        device: Likewise.

    Raises:
        ProblemError: On arguments that do not fit, or functions whose values have another shape or are not finite.

    Reference:
        Section 7, which leaves continuous attention open.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Continuous2d("quadratic", Gaussian(torch.zeros(2), variance=1.0))
        >>> z = torch.tensor([[1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
        >>> InferenceProblem(u, z, alpha=0.1).solve("exact").distribution.places
        Gaussian(queries=(1,), dim=2, covariance=full, dtype=torch.float32, device='cpu')
    """

    _dimensions = 2

    def __init__(
        self,
        basis: Places | str,
        density: Gaussian | Places | None = None,
        interval: Sequence[Interval] | None = None,
        *,
        breaks: Sequence[Sequence[float]] = ((), ()),
        points: Sequence[Sequence[float]] = (),
        accuracy: float = 1e-12,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        edges = None
        if interval is not None:
            if not isinstance(interval, Sequence) or len(interval) != 2 or len(breaks) != 2:
                raise ProblemError(
                    f"interval is {shown(interval)}, breaks {shown(breaks)}; expected a rectangle ((low, high), "
                    "(low, high)), "
                    "and two lists of breaks"
                )
            edges = tuple(checked_edges(f"interval[{i}]", interval[i], breaks[i]) for i in range(2))
        if not isinstance(points, Sequence | Tensor):
            raise ProblemError(f"points are {shown(points)}; expected a list of places (x, y)")
        if interval is None and len(points):
            raise ProblemError("points are given without an interval; expected interval= too")
        places = checked_points(points, [tuple(checked_numbers("points", place)) for place in points], edges)
        super().__init__(basis, density, edges, places, accuracy, dtype, device)
