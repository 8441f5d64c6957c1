r"""The cost M of moving weight between templates."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.arguments.tensor import check_device, check_tensor, values_are_known
from fenchel.closeness.rounding import UNIT, summed
from fenchel.errors import ProblemError

__all__ = [
    "COSTS",
    "AbstractCost",
    "CosineCost",
    "DotCost",
    "GivenCost",
    "SquaredEuclideanCost",
    "cost_named",
    "kernel_of",
]

GammaColumn = Tensor | float


class AbstractCost(ABC):
    """A symmetric, non-negative cost M(t, t') between templates."""

    @abstractmethod
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        """M from every template (..., N, d) to every source (..., n, d), shape (..., N, n).

        Sources are the first n templates, among which the preference is spread.
        """

    @abstractmethod
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        """-M/γ from the templates in a span, up to a constant of each source, which normalisation removes.

        Args:
            templates: All templates, (..., N, d).
            sources: (..., n, d).
            gamma: γ, a number or (..., 1, 1).
            span: Which templates.
        """

    def rounding(self, templates: Tensor) -> float:
        """How far at most entries of :meth:`matrix`, evaluated in float64, are from the cost."""
        del templates
        return 0.0

    def narrowed(self, dim: int, start: int, length: int) -> Self:
        """The same cost for part of the sets of templates, along a leading dimension of theirs."""
        del dim, start, length
        return self


class DotCost(AbstractCost):
    r""":math:`M(a, b) = C - a^\top b`, where C is the largest squared norm of a template.

    C makes M non-negative and changes nothing else. A template is nearer to a longer one than to itself if that points
    the same way: the papers' condition M(t, t) < M(t', t) holds where ⟨t, t'⟩ < ‖t‖² for every other t', as where norms
    are equal.

    Reference:
        Section 9, tables 1 and 2.
    """

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        bound = templates.square().sum(-1).amax(-1)[..., None, None]
        return (bound - templates @ sources.mT).clamp(min=0)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        return templates[..., span, :] @ (sources / gamma).mT

    @override
    def rounding(self, templates: Tensor) -> float:
        return _longest_square(templates) * (2 * summed(templates.shape[-1]) + 6) * UNIT


class SquaredEuclideanCost(AbstractCost):
    r""":math:`M(a, b) = \lVert a - b\rVert^2`."""

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        # Distances do not see a common shift; rounding does.
        centre = sources.mean(-2, keepdim=True)
        t, s = templates - centre, sources - centre
        squares = t.square().sum(-1, keepdim=True) + s.square().sum(-1).unsqueeze(-2)
        return (squares - 2 * t @ s.mT).clamp(min=0)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        centre = sources.mean(-2, keepdim=True)
        part = templates[..., span, :] - centre
        return part @ ((2 / gamma) * (sources - centre)).mT - part.square().sum(-1, keepdim=True) / gamma

    @override
    def rounding(self, templates: Tensor) -> float:
        centred = templates - templates.mean(-2, keepdim=True)
        # Between any two templates, and so to the sources' centre, it is at most twice the longest of these.
        return 16 * _longest_square(centred) * (summed(templates.shape[-1]) + 4) * UNIT


class CosineCost(AbstractCost):
    r""":math:`M(a, b) = 1 - \cos(a, b)`; a template of norm 0 is at cost 1 from all others."""

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        return (1 - _directions(templates) @ _directions(sources).mT).clamp(min=0)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        return _directions(templates[..., span, :]) @ (_directions(sources) / gamma).mT

    @override
    def rounding(self, templates: Tensor) -> float:
        return (2 * summed(templates.shape[-1]) + 10) * UNIT


class GivenCost(AbstractCost):
    """A given matrix, with infinities where weight cannot move.

    Args:
        matrix: (..., N, N), symmetric, non-negative, finite on the diagonal; ``inf`` elsewhere is allowed.

    Raises:
        ProblemError: If it is not.
    """

    def __init__(self, matrix: Tensor) -> None:
        check_tensor("cost", matrix, "(..., N, N), or the name of a cost")
        if matrix.dim() < 2 or matrix.shape[-1] != matrix.shape[-2]:
            raise ProblemError(
                f"cost has shape {tuple(matrix.shape)}; expected a square matrix (..., N, N) over the templates, the "
                "preference's own first, then the atoms"
            )
        self.given = matrix
        if values_are_known(matrix):
            self._check_values(matrix.detach())

    def _check_values(self, values: Tensor) -> None:
        if bool(torch.isnan(values).any()):
            raise ProblemError("cost contains NaN; expected numbers >= 0, or inf where weight cannot move")
        if bool((values < 0).any()):
            raise ProblemError(f"cost has the negative entry {float(values.min()):g}; expected numbers >= 0")
        diagonal = values.diagonal(dim1=-2, dim2=-1)
        if not bool(torch.isfinite(diagonal).all()):
            raise ProblemError(
                "cost is infinite on its diagonal; a template must be able to keep its own weight"
            )
        different = ~torch.isclose(values, values.mT, rtol=1e-5, atol=1e-8)
        if bool(different.any()):
            *lead, row, column = (int(i) for i in different.nonzero()[0])
            there, back = float(values[(*lead, row, column)]), float(values[(*lead, column, row)])
            raise ProblemError(
                f"cost is not symmetric: entry ({row}, {column}) is {there:g}, entry ({column}, {row}) is {back:g}; "
                "expected the same both ways, such as (cost + cost.mT) / 2"
            )

    @override
    def narrowed(self, dim: int, start: int, length: int) -> Self:
        part = copy.copy(self)
        part.given = self.given if self.given.shape[dim] == 1 else self.given.narrow(dim, start, length)
        return part

    def _check(self, templates: Tensor, sources: Tensor) -> None:
        check_device("cost", self.given, templates.device, "templates")
        if self.given.shape[-1] != templates.shape[-2]:
            raise ProblemError(
                f"cost is {tuple(self.given.shape)}, but there are {templates.shape[-2]} templates "
                f"({sources.shape[-2]} of the preference and {templates.shape[-2] - sources.shape[-2]} atoms); "
                "expected one row and column for each"
            )

    @override
    def matrix(self, templates: Tensor, sources: Tensor) -> Tensor:
        self._check(templates, sources)
        return self.given[..., : sources.shape[-2]].to(templates.dtype)

    @override
    def log_kernel(self, templates: Tensor, sources: Tensor, gamma: GammaColumn, span: slice) -> Tensor:
        self._check(templates, sources)
        return kernel_of(self.given[..., span, : sources.shape[-2]].to(templates.dtype), gamma)


def kernel_of(matrix: Tensor, gamma: GammaColumn) -> Tensor:
    """-M/γ, without the NaN that an infinite cost would otherwise give the gradient of γ."""
    endless = matrix.detach() == torch.inf
    return (-matrix.masked_fill(endless, 0) / gamma).masked_fill(endless, -torch.inf)


def _longest_square(templates: Tensor) -> float:
    return float(templates.detach().square().sum(-1).amax())


def _directions(templates: Tensor) -> Tensor:
    # Norms below this are zero to rounding, and have no direction.
    return torch.nn.functional.normalize(
        templates, dim=-1, eps=1e-30 if templates.dtype == torch.float64 else 1e-15
    )


COSTS: dict[str, AbstractCost] = {
    "dot": DotCost(),
    "squared_euclidean": SquaredEuclideanCost(),
    "cosine": CosineCost(),
}
"""Costs by name."""


def cost_named(cost: str | Tensor | AbstractCost) -> AbstractCost:
    """The cost of that name, or the one that a matrix gives.

    Raises:
        ProblemError: If there is none of that name, or the matrix is not a cost.
    """
    if isinstance(cost, AbstractCost):
        return cost
    if isinstance(cost, Tensor):
        return GivenCost(cost)
    if not isinstance(cost, str) or cost not in COSTS:
        raise ProblemError(
            f"cost is {shown(cost)}; expected one of {', '.join(map(repr, COSTS))}, or a matrix (..., N, N)"
        )
    return COSTS[cost]
