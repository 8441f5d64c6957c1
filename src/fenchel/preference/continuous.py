"""Densities of positions: continuous attention over an interval, a rectangle or Gaussian positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, AbstractView, Shape, of_source, sums
from fenchel.preference.covariance import Full
from fenchel.preference.gaussian import Gaussian
from fenchel.preference.panels import checked_edges, checked_points
from fenchel.preference.quadrature import Places, Quadrature, values_at
from fenchel.tensors import PRECISE, check_floating, check_type, checked_argument

# Two ends, the lower first.
Interval = Sequence[float]


class AbstractContinuous(AbstractView):
    """A density of positions, with basis functions of the position as templates, in closed form or by quadrature."""

    resolves_shift = True
    _dimensions: ClassVar[int]
    source: GaussianMoments | Quadrature  # pyright: ignore[reportIncompatibleVariableOverride]
    tilted_shift = of_source("tilted_shift")
    rounding = of_source("rounding")
    mean_rounding = of_source("mean_rounding")

    def __init__(
        self,
        basis: Places | str,
        density: Gaussian | Places | None = None,
        interval: Interval | Sequence[Interval] | None = None,
        *,
        breaks: Sequence[float] | Sequence[Sequence[float]] = (),
        points: Sequence[float] | Sequence[Sequence[float]] = (),
        accuracy: float = 1e-12,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        k = self._dimensions
        if isinstance(density, Gaussian):
            if density.dim != k:
                raise ProblemError(
                    f"density is a Gaussian of dimension {density.dim}; expected a Gaussian of positions, of dimension "
                    f"{k}"
                )
            if dtype is not None or device is not None:
                raise ProblemError(
                    "dtype or device is given with a Gaussian density, which has its own; expected neither"
                )
            dtype, device = density.dtype, density.device
        else:
            expected = "a fenchel.Gaussian of positions, a function that returns the log density, or None for uniform"
            check_type("density", density, Callable | None, expected)
        if basis != "quadratic":
            check_type("basis", basis, Callable, f"a function of positions (n, {k}), or 'quadratic'")
        if interval is None:
            for name, positions in (("breaks", breaks), ("points", points)):
                if not isinstance(positions, Sequence) or len(positions):
                    raise ProblemError(f"{name} are given without an interval; expected interval= as well")
            if basis != "quadratic" or not isinstance(density, Gaussian):
                raise ProblemError(
                    f"{type(self).__name__} has no interval; expected interval=, the domain of integration, which may "
                    "be omitted only with basis 'quadratic' and a fenchel.Gaussian density"
                )
            super().__init__(GaussianMoments(density))
            return
        edges = checked_edges(k, interval, breaks)
        places = checked_points(points, edges)
        function = moments if isinstance(basis, str) else basis
        dtype = torch.get_default_dtype() if dtype is None else dtype
        check_floating("dtype", dtype, PRECISE)
        accuracy, device = checked_argument("tol", accuracy, name="accuracy"), torch.device(device or "cpu")
        super().__init__(Quadrature(function, density, edges, places, accuracy, dtype, device))

    @property
    def places(self) -> Gaussian:
        """The Gaussian of the positions, if basis is ``"quadratic"`` and no interval is given.

        Raises:
            ProblemError: If the positions have another density.
        """
        if isinstance(self.source, GaussianMoments):
            return self.source.places
        raise ProblemError(
            "positions in an interval have no Gaussian density; expected sample_places, log_density or expectation, "
            "which are defined for every density"
        )

    @override
    def tilted(self, lam: Tensor) -> Self:
        return self._changed(source=self.source.tilted(lam))

    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Templates ψ(x) of sampled positions x, shape (\*shape, ..., m or 1, d)."""
        return self.source.sample(shape, generator)

    def sample_places(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        r"""Sampled positions, shape (\*shape, ..., m or 1, k); differentiable if they are Gaussian.

        Args:
            shape: Shape of the samples; () is one of each distribution.
            generator: Source of randomness; torch's default generator if None.
        """
        return self.source.sample_places(shape, generator)

    def log_density(self, points: Tensor) -> Tensor:
        """The log density of the position, at positions (..., m, k), (..., m).

        Raises:
            ProblemError: If they have another dimension, dtype or device.
        """
        self.check_vectors("points", points, "(..., m, k), places", self._dimensions)
        return self.source.log_density(points)

    def expectation(self, function: Places) -> Tensor:
        r"""The mean :math:`\mathbb{E}[f(x)]` of a function of the position, such as the values that attention pools.

        Args:
            function: f, from positions (n, k) to (n, v).

        Returns:
            (..., m or 1, v).

        Raises:
            ProblemError: If its integral does not converge, or the argument is not a function.
        """
        check_type("function", function, Callable, f"a function of positions (n, {self._dimensions})")
        return self.source.expectation(function)

    def __repr__(self) -> str:
        how = "closed form" if isinstance(self.source, GaussianMoments) else f"{self.source.width} places"
        return self._described(f"dim={self.dim}", how)


class Continuous1d(AbstractContinuous):
    r"""A density on a line, with templates :math:`t = \psi(x)`: continuous attention over a signal.

    .. math:: \log M(\lambda) = \log\int u(x)\,e^{\langle\psi(x), \lambda\rangle}\,dx

    With :math:`\psi(x) = (x, x^2)` and a Gaussian u on the whole line, p is Gaussian, in closed form. Otherwise
    integrals are computed on an interval by the Gauss-Legendre rule, on panels that are halved for each λ until
    cumulant, mean and covariance have converged. The change in the last halving is part of the bounds of an estimate,
    and integrals that do not converge raise an error. A narrow peak between the initial nodes, up to 1/1300 of the
    interval apart, is missed if another part of the density is larger at all of them: give positions near such peaks as
    ``points``.

    Args:
        basis: ψ, a differentiable function of positions (n, 1) that returns (n, d), such as a module; or
            ``"quadratic"``.
        density: u: a :class:`~fenchel.Gaussian` of dimension 1, possibly one per query; or a function of positions
            (n, 1) that returns log u, (n,), not necessarily normalised; None for the uniform density.
        interval: Interval of integration, (low, high); None for the closed form.
        breaks: Positions of jumps or kinks of basis or density, which become borders of panels.
        points: At most 64 positions near which there may be narrow peaks: initial panels are small there, down to 1e-9
            of the interval. A peak is found if its width is at least a tenth of its distance to a point.
        accuracy: Tolerance of the integrals: absolute for log M, relative to the standard deviation of the templates
            for the mean, and relative to the trace for the covariance; not below rounding.
        dtype: float32 or float64, of arguments and results: the Gaussian's, or else torch's default. Basis and density
            are evaluated in float64 if possible.
        device: The Gaussian's, or else the CPU.

    Raises:
        ProblemError: If arguments are inconsistent, or a function returns a wrong shape or non-finite values.

    Reference:
        Section 7, which leaves continuous attention open; Martins et al. (2020) for the Gaussian case.

    Example:
        >>> from fenchel import InferenceProblem
        >>> u = Continuous1d("quadratic", Gaussian(torch.tensor([0.5]).double(), variance=0.04))
        >>> z = torch.tensor([[0.2, 0.2]], dtype=torch.float64)     # observed shift of both moments
        >>> InferenceProblem(u, z, alpha=10.0).solve("exact").distribution.places.mean()
        tensor([[0.5903]], dtype=torch.float64)
        >>> bumps = Continuous1d(lambda x: torch.exp(-50 * (x - torch.linspace(0, 1, 8)) ** 2), None, (0.0, 1.0))
        >>> InferenceProblem(bumps, torch.eye(8)[2:3]).solve("first_order").mean.argmax(-1)
        tensor([2])
    """

    _dimensions = 1


class Continuous2d(AbstractContinuous):
    r"""A density on a plane, with templates :math:`t = \psi(x)`: continuous attention over an image.

    With :math:`\psi(x) = (x, xx^\top)`, six numbers per position, and a Gaussian u on the whole plane, p is Gaussian,
    in closed form. Otherwise as :class:`Continuous1d`, on a rectangle, with initial nodes up to 1/80 of its sides
    apart: narrower peaks next to a wider density need ``points``.

    Args:
        basis: ψ, a differentiable function of positions (n, 2) that returns (n, d); or ``"quadratic"``.
        density: u: a :class:`~fenchel.Gaussian` of dimension 2; or a function of positions (n, 2) that returns log u,
            (n,); or None.
        interval: Rectangle of integration, ((low, high), (low, high)); None for the closed form.
        breaks: Positions of jumps or kinks of basis or density, a list for each dimension.
        points: At most 16 positions (x, y) near which there may be narrow peaks: initial panels are small there, down
            to 1.5e-5 of the sides.
        accuracy: As for :class:`Continuous1d`.
        dtype: As for :class:`Continuous1d`.
        device: As for :class:`Continuous1d`.

    Raises:
        ProblemError: If arguments are inconsistent, or a function returns a wrong shape or non-finite values.

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


def moments(places: Tensor) -> Tensor:
    r""":math:`(x, xx^\top)` of positions (..., k), (..., k + k²)."""
    return torch.cat([places, (places.unsqueeze(-1) * places.unsqueeze(-2)).flatten(-2)], -1)


# Standard deviations up to which a Gaussian is integrated; the rest is below rounding.
WIDE = 9.0


class GaussianMoments(AbstractPreference):
    r"""The vectors :math:`t = (x, xx^\top)` of positions :math:`x \sim \mathcal{N}(m, S)` in one or two dimensions.

    With :math:`\lambda = (a, A)`, A symmetric, :math:`b = a + 2Am` and :math:`P = (I - 2SA)^{-1}S`,

    .. math:: \log M(\lambda) = \langle a, m\rangle + m^\top Am + \tfrac12 b^\top Pb - \tfrac12\log\det(I - 2SA),
              \qquad x \sim \mathcal{N}(m + Pb, P) \text{ under } p(\lambda),

    finite where :math:`I - 2S^{1/2}AS^{1/2}` is positive definite. Proof: with y = x - m the exponent is
    :math:`\langle a, m\rangle + m^\top Am + \langle b, y\rangle + y^\top Ay`. Times the density's
    :math:`e^{-\frac12 y^\top S^{-1}y}` this is a Gaussian integral with precision :math:`S^{-1} - 2A = P^{-1}` and
    linear term b: mean Pb, and a factor :math:`\det(PS^{-1})^{1/2}e^{\frac12 b^\top Pb}`.

    Args:
        places: The Gaussian of the positions.
    """

    resolves_shift = True
    rows = ("places",)

    def __init__(self, places: Gaussian) -> None:
        self.places = places

    @property
    def _k(self) -> int:
        return self.places.dim

    @property
    @override
    def dim(self) -> int:
        return self._k + self._k**2

    def _parts(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """The vector a (..., m, k) and the symmetric part of A (..., m, k, k)."""
        self.check_point("lam", lam)
        square = lam[..., self._k :].unflatten(-1, (self._k, self._k))
        return lam[..., : self._k], (square + square.mT) / 2

    def _mean_and_covariance(self) -> tuple[Tensor, Tensor]:
        return self.places.mean(), self.places.covariance()

    def _tilt(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The shift of the positions' mean (..., m, k), their covariance P and A, (..., m, k, k) each."""
        (a, square), (m, s) = self._parts(lam), self._mean_and_covariance()
        identity = torch.eye(self._k, dtype=lam.dtype, device=lam.device)
        spread, full = identity - 2 * s @ square, s.expand(torch.broadcast_shapes(s.shape, square.shape))
        # May be singular outside the domain, which callers check.
        p = torch.linalg.solve_ex(spread.expand_as(full), full).result
        p = (p + p.mT) / 2
        return _times(p, a + 2 * _times(square, m)), p, square

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        (a, square), (m, s) = self._parts(lam), self._mean_and_covariance()
        moved, _, _ = self._tilt(lam)
        b = a + 2 * _times(square, m)
        # log det(I - X) of a matrix with one or two rows is log1p(det X - tr X), 0 to rounding for small λ.
        product = 2 * s @ square
        below = -product.diagonal(dim1=-2, dim2=-1).sum(-1)
        if self._k == 2:
            below = below + torch.linalg.det(product)
        return (
            (a * m).sum(-1)
            + (m * _times(square, m)).sum(-1)
            + (b * moved).sum(-1) / 2
            - torch.log1p(below) / 2
        )

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        m, s = self._mean_and_covariance()
        return torch.cat([m, (s + _outer(m, m)).flatten(-2)], -1) + self.tilted_shift(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        (m, s), (moved, p, square) = self._mean_and_covariance(), self._tilt(lam)
        # P - S = 2PAS does not cancel for small λ.
        change = 2 * p @ square @ s
        second = (change + change.mT) / 2 + _outer(moved, m) + _outer(m, moved) + _outer(moved, moved)
        return torch.cat([moved, second.flatten(-2)], -1)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        (m, _), (moved, p, _) = self._mean_and_covariance(), self._tilt(lam)
        mean = m + moved

        def product(vector: Tensor) -> Tensor:
            along, across = self._parts(vector)
            of_mean = _times(p, along + 2 * _times(across, mean))
            of_square = 2 * p @ across @ p + _outer(of_mean, mean) + _outer(mean, of_mean)
            return torch.cat([of_mean.expand(of_square.shape[:-1]), of_square.flatten(-2)], -1)

        return product

    def reach(self, lam: Tensor, direction: Tensor) -> Tensor:
        r"""The reciprocal of the largest eigenvalue of 2PD for a direction (d, D)."""
        _, p, _ = self._tilt(lam)
        _, across = self._parts(direction)
        product = 2 * p @ across
        half = product.diagonal(dim1=-2, dim2=-1).sum(-1) / 2
        discriminant = half.square() - (torch.linalg.det(product) if self._k == 2 else 0)
        largest = half + discriminant.clamp(min=0).sqrt()
        return torch.where(largest > 0, 1 / largest, torch.inf)

    def rounding(self, lam: Tensor) -> Tensor:
        """The error of the solve with I - 2SA, by its condition number, and of the products after it."""
        (a, square), (m, s), (moved, p, _) = self._parts(lam), self._mean_and_covariance(), self._tilt(lam)
        at, (size, of_p, of_s) = m.norm(dim=-1), map(torch.linalg.matrix_norm, (square, p, s))
        conditioned = 1 + 2 * size * of_p + 2 * size * of_s
        of_mean = of_p * (a.norm(dim=-1) + 2 * size * at)
        of_square = 2 * of_p * size * of_s + (2 * at + moved.norm(dim=-1)) * of_mean
        return 2 * sums(4) * conditioned * (of_mean + of_square)

    @override
    def tilted(self, lam: Tensor) -> GaussianMoments:
        moved, p, _ = self._tilt(lam)
        mean, covariance = self.places.mean() + moved, Full("covariance", p)
        return GaussianMoments(self.places._changed(_mean=mean, _covariance=covariance))

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        return moments(self.sample_places(shape, generator))

    def sample_places(self, shape: Shape, generator: torch.Generator | None) -> Tensor:
        """Sampled positions, differentiable."""
        return self.places.sample(shape, generator)

    @override
    def log_density(self, points: Tensor) -> Tensor:
        return self.places.log_density(points)

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        r""":math:`\mathbb{E}[f(x)]` of a function from positions (n, k) to (n, v), (..., m or 1, v)."""
        mean, root = self.places.mean(), Full("covariance", self.places.covariance()).root()

        def at(normals: Tensor) -> Tensor:
            """Values at standard normal numbers (n, k), mapped to the positions of every query, (n, ..., m or 1, v)."""
            places = (mean.unsqueeze(-2) + normals.to(self.dtype) @ root.mT).movedim(-2, 0)
            return values_at("function(places)", function, places).to(self.dtype)

        edges = ((-WIDE, WIDE),) * self._k
        standard = Quadrature(lambda x: x, _log_normal, edges, (), 1e-10, self.dtype, self.device)
        # Each query has its own scale.
        result = standard.expectation(lambda normals: at(normals).flatten(1), least=1e-50)
        return result.reshape(*mean.shape[:-1], -1)


def _log_normal(places: Tensor) -> Tensor:
    """The log density of standard normal numbers (n, k), (n,)."""
    return -(places.square() + math.log(2 * math.pi)).sum(-1) / 2


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _outer(one: Tensor, other: Tensor) -> Tensor:
    return one.unsqueeze(-1) * other.unsqueeze(-2)
