"""Places of a Gaussian, known by their first and second moments: a family that tilting does not leave."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments.tensor import check_tensor
from fenchel.errors import ProblemError
from fenchel.preference.abstract import AbstractPreference, Shape
from fenchel.preference.covariance import Full
from fenchel.preference.gaussian import Gaussian
from fenchel.preference.panels import refined, starting
from fenchel.preference.parameters import sums

__all__ = ["GaussianMoments", "moments"]


def moments(places: Tensor) -> Tensor:
    r""":math:`(x, xx^\top)` of places (..., k), (..., k + k²)."""
    return torch.cat([places, (places.unsqueeze(-1) * places.unsqueeze(-2)).flatten(-2)], -1)


ROUNDS = 8
"""How often values may turn out to be much larger between the places that were looked at, at most."""

WIDE = 9.0
"""In standard deviations: what is outside is less than rounding."""


class GaussianMoments(AbstractPreference):
    r"""The vectors :math:`t = (x, xx^\top)` of places :math:`x \sim \mathcal{N}(m, S)` in one or two dimensions.

    With :math:`\lambda = (a, A)`, A symmetric, :math:`b = a + 2Am` and :math:`P = (I - 2SA)^{-1}S`,

    .. math:: \log M(\lambda) = \langle a, m\rangle + m^\top Am + \tfrac12 b^\top Pb - \tfrac12\log\det(I - 2SA),
              \qquad x \sim \mathcal{N}(m + Pb, P) \text{ under } p(\lambda),

    finite where :math:`I - 2S^{1/2}AS^{1/2}` is positive definite.

    Args:
        places: The Gaussian of the places.
    """

    resolves_shift = True

    def __init__(self, places: Gaussian) -> None:
        self.places = places

    @property
    def _k(self) -> int:
        return self.places.dim

    @property
    @override
    def dim(self) -> int:
        return self._k + self._k**2

    @property
    @override
    def dtype(self) -> torch.dtype:
        return self.places.dtype

    @property
    @override
    def device(self) -> torch.device:
        return self.places.device

    @property
    @override
    def lead(self) -> torch.Size:
        return self.places.lead

    def _parts(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """A (..., m, k) and A (..., m, k, k), which is only known through its symmetric part."""
        self.check_point("lam", lam)
        square = lam[..., self._k :].unflatten(-1, (self._k, self._k))
        return lam[..., : self._k], (square + square.mT) / 2

    def _given(self) -> tuple[Tensor, Tensor]:
        return self.places.mean(), self.places.covariance()

    def _tilt(self, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How far the place's mean moves, its covariance, and A: (..., m, k), (..., m, k, k) twice."""
        (a, square), (m, s) = self._parts(lam), self._given()
        identity = torch.eye(self._k, dtype=lam.dtype, device=lam.device)
        spread, full = identity - 2 * s @ square, s.expand(torch.broadcast_shapes(s.shape, square.shape))
        # What is outside of the domain may be singular; whoever asks there is told so elsewhere.
        p = torch.linalg.solve_ex(spread.expand_as(full), full).result
        p = (p + p.mT) / 2
        return _times(p, a + 2 * _times(square, m)), p, square

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        (a, square), (m, s) = self._parts(lam), self._given()
        moved, _, _ = self._tilt(lam)
        b = a + 2 * _times(square, m)
        # log det(I - X) of a matrix with one or two rows is log1p(det X - tr X), 0 to rounding where λ is small.
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
        m, s = self._given()
        return torch.cat([m, (s + _outer(m, m)).flatten(-2)], -1) + self.tilted_shift(lam)

    @override
    def tilted_shift(self, lam: Tensor) -> Tensor:
        (m, s), (moved, p, square) = self._given(), self._tilt(lam)
        # P - S = 2PAS, in which nothing cancels where λ is small.
        apart = 2 * p @ square @ s
        second = (apart + apart.mT) / 2 + _outer(moved, m) + _outer(m, moved) + _outer(moved, moved)
        return torch.cat([moved, second.flatten(-2)], -1)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        (m, _), (moved, p, _) = self._given(), self._tilt(lam)
        mean = m + moved

        def product(vector: Tensor) -> Tensor:
            along, across = self._parts(vector)
            of_mean = _times(p, along + 2 * _times(across, mean))
            of_square = 2 * p @ across @ p + _outer(of_mean, mean) + _outer(mean, of_mean)
            return torch.cat([of_mean.expand(of_square.shape[:-1]), of_square.flatten(-2)], -1)

        return product

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor:
        r"""The reciprocal of the largest eigenvalue of 2PD for a direction (d, D)."""
        _, p, _ = self._tilt(lam)
        _, across = self._parts(direction)
        product = 2 * p @ across
        half = product.diagonal(dim1=-2, dim2=-1).sum(-1) / 2
        apart = half.square() - (torch.linalg.det(product) if self._k == 2 else 0)
        largest = half + apart.clamp(min=0).sqrt()
        return torch.where(largest > 0, 1 / largest, torch.inf)

    @override
    def rounding(self, lam: Tensor) -> Tensor:
        """Of the solve with I - 2SA, as well as that is conditioned, and of the few products after it."""
        (a, square), (m, s), (moved, p, _) = self._parts(lam), self._given(), self._tilt(lam)
        size, at = _norm(square), m.norm(dim=-1)
        conditioned = 1 + 2 * size * _norm(p) + 2 * size * _norm(s)
        of_mean = _norm(p) * (a.norm(dim=-1) + 2 * size * at)
        of_square = 2 * _norm(p) * size * _norm(s) + (2 * at + moved.norm(dim=-1)) * of_mean
        return 2 * sums(4) * conditioned * (of_mean + of_square)

    @override
    def tilted(self, lam: Tensor) -> GaussianMoments:
        moved, p, _ = self._tilt(lam)
        return GaussianMoments(Gaussian._of(self.places.mean() + moved, Full("covariance", p)))

    @override
    def sample(self, shape: Shape = (), generator: torch.Generator | None = None) -> Tensor:
        return moments(self.places.sample(shape, generator))

    @override
    def log_density(self, points: Tensor) -> Tensor:
        return self.places.log_density(points)

    def expectation(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        r""":math:`\mathbb{E}[f(x)]` of a function from places (n, k) to (n, v), (..., m or 1, v)."""
        places, root = self.places.mean(), Full("covariance", self.places.covariance()).root()

        def at(normals: Tensor) -> Tensor:
            """Values at standard normal numbers (n, k), mapped to the places of every query, (n, ..., m or 1, v)."""
            moved = places.unsqueeze(-2) + normals.to(self.dtype) @ root.mT
            return self._called(function, moved.movedim(-2, 0))

        panels = starting(((-WIDE, WIDE),) * self._k, ()).to(self.device)
        accuracy = max(1e-10, 64 * torch.finfo(self.dtype).eps)
        settled = True
        with torch.no_grad():
            sizes = torch.zeros((), dtype=torch.float64)
            for _ in range(ROUNDS):
                largest = at(panels.nodes()[0]).flatten(1).double().abs().amax(0)
                if bool((largest <= 16 * sizes).all()):
                    break
                # Each query relative to itself, as far as it is seen.
                sizes = largest.clamp(min=1e-50 * float(largest.amax()) or 1.0)
                found = refined(
                    panels,
                    lambda normals, sizes=sizes: (
                        _log_normal(normals).unsqueeze(0),
                        at(normals).flatten(1).double() / sizes,
                    ),
                    rows=len(sizes),
                    accuracy=accuracy,
                    eps=torch.finfo(self.dtype).eps,
                    span=1.0,
                    exponent=sizes.new_zeros(1),
                )
                panels, settled = found.panels, bool(found.settled.all())
        if not settled:
            raise ProblemError(
                f"the expectation did not converge to {accuracy:.1g}: the function changes too fast within the "
                "density; expected a smoother one, or smaller variances"
            )
        normals, log_lengths = panels.halved().nodes()
        weights = (_log_normal(normals) + log_lengths).exp().to(self.dtype)
        return torch.tensordot(weights, at(normals), 1)

    def _called(self, function: Callable[[Tensor], Tensor], places: Tensor) -> Tensor:
        """A function's values (..., v) at places (..., k)."""
        values = function(places.reshape(-1, self._k))
        check_tensor("function", values, "(n, v) of places (n, k)")
        if values.dim() != 2 or values.shape[0] != places.numel() // self._k:
            raise ProblemError(
                f"function gives shape {tuple(values.shape)} at places {(places.numel() // self._k, self._k)}; "
                "expected a row of numbers for each place"
            )
        return values.to(self.dtype).reshape(*places.shape[:-1], -1)

    @override
    def to(self, dtype: torch.dtype) -> GaussianMoments:
        return self if dtype == self.dtype else GaussianMoments(self.places.to(dtype))

    @override
    def queries(self, part: slice) -> GaussianMoments:
        return GaussianMoments(self.places.queries(part))


def _log_normal(places: Tensor) -> Tensor:
    """The log density of standard normal numbers (n, k), (n,)."""
    return -(places.square() + math.log(2 * math.pi)).sum(-1) / 2


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)


def _outer(one: Tensor, other: Tensor) -> Tensor:
    return one.unsqueeze(-1) * other.unsqueeze(-2)


def _norm(matrix: Tensor) -> Tensor:
    return matrix.flatten(-2).norm(dim=-1)
