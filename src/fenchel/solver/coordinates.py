r"""The two coordinate systems in which the exact problem is solved.

Every dual point that matters is :math:`\lambda = \alpha(z + v)` with v in the span of the templates (fact 3).
A dual point is written as x, its lift gives the inner products with the templates and the pull the coordinates
of a weighted sum of templates; then :math:`\nabla\mathcal{D}` has coordinates P(u - p) + o - x, with an origin o:

============  ================================  ====================  ================  ==================  ==========
coordinates   a dual point                      logits - log u        lift L            pull P              origin o
============  ================================  ====================  ================  ==================  ==========
Gram          :math:`\lambda = \alpha(z + T^\top x)`  :math:`\alpha(s + Lx)`  :math:`G = TT^\top`  identity            0
template      :math:`\lambda = \alpha x`        :math:`\alpha Lx`      :math:`T`         :math:`T^\top`       z
============  ================================  ====================  ================  ==================  ==========

with s = Tz. A Hessian product takes one lift and one pull: n² multiplications in Gram coordinates, 2nd in template
coordinates. Where λ is much smaller than αz, Gram coordinates lose it to cancellation and template coordinates do not.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.blocks import AbstractBlock
from fenchel.errors import ProblemError
from fenchel.layout import is_rowwise
from fenchel.problem import Problem
from fenchel.solver.rows import Rows

__all__ = [
    "AbstractCoordinates",
    "GramCoordinates",
    "IdentityCoordinates",
    "TemplateCoordinates",
    "check_coordinates",
    "coordinates_for",
    "coordinates_over",
    "dot",
    "multiplies_fast_in_bfloat16",
]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product along the last dimension."""
    return torch.linalg.vecdot(a, b)


def multiplies_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


def _templates_of(block: AbstractBlock) -> Tensor:
    offsets = block.offsets
    assert offsets is not None  # noqa: S101 -- Gram coordinates are made of templates
    return offsets


class AbstractCoordinates(ABC):
    """How vectors in the span of the templates are written as rows of numbers.

    Args:
        operator: The matrix that is multiplied with: (g, n, n) or (g, n, d).
    """

    products_each: int
    """Products with the operator in one Hessian product."""

    def __init__(self, operator: Tensor) -> None:
        self.operator = operator

    @property
    @abstractmethod
    def longest(self) -> Tensor:
        """The largest norm of a template of the group, (g, 1)."""

    @abstractmethod
    def spread(self, weights: Tensor) -> Tensor:
        r"""At least :math:`(\sum_i p_i \lVert t_i - h\rVert^2)^{1/2}` for weights (g, r, n), (g, r)."""

    @property
    def factors(self) -> Tensor:
        """The templates in these coordinates, (g, n, size), where vectors have an orthonormal basis.

        Raises:
            NotImplementedError: In Gram coordinates, which have none.
        """
        raise NotImplementedError(f"{type(self).__name__} have no orthonormal basis")

    @property
    def size(self) -> int:
        """How many coordinates a vector has."""
        return self.operator.shape[-1]

    @property
    def terms(self) -> int:
        """How many templates a mean is made of."""
        return self.operator.shape[-2]

    def low_precision(self) -> AbstractCoordinates:
        """The same coordinates with products in bfloat16: good enough for directions, never for residuals."""
        return type(self)(self.operator.bfloat16())

    def _multiply(self, rows: Tensor, matrix: Tensor) -> Tensor:
        if rows.shape[0] == matrix.shape[0] == 1:
            return (rows[0].to(matrix.dtype) @ matrix[0]).to(rows.dtype).unsqueeze(0)
        return (rows.to(matrix.dtype) @ matrix).to(rows.dtype)

    @abstractmethod
    def lift(self, x: Tensor) -> Tensor:
        """Inner products with the templates of the vectors with coordinates x (g, r, size); (g, r, n)."""

    @abstractmethod
    def pull(self, weights: Tensor) -> Tensor:
        r"""Coordinates of the vectors :math:`T^\top w` for w (g, r, n); (g, r, size)."""

    @abstractmethod
    def inner(self, a: Tensor, b: Tensor, lifted_b: Tensor) -> Tensor:
        """Inner products of the vectors with coordinates a and b, given the lift of b too; (g, r)."""

    @abstractmethod
    def evidence_of(self, block: AbstractBlock) -> Tensor:
        """The evidence of a block's rows in these coordinates' own terms."""

    @abstractmethod
    def vectors_of(self, block: AbstractBlock, x: Tensor) -> Tensor:
        """The vectors λ/α with coordinates x (g, r, size), (g, r, d), in the dtype of the block."""

    @abstractmethod
    def first_order_point(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The point λ = αz and its lift."""

    @abstractmethod
    def scaled_potential(self, rows: Rows, lifted: Tensor) -> Tensor:
        """The potential Tλ, up to a constant a row, over α, at the dual point with that lift, (g, r, n)."""

    @abstractmethod
    def scores(self, rows: Rows, first_lifted: Tensor) -> Tensor:
        """The scores s = Tz, given the lift of λ = αz, (g, r, n)."""

    @abstractmethod
    def residual(self, rows: Rows, moved: Tensor, x: Tensor) -> Tensor:
        """The dual's gradient o - x - Pm, given m = p - u in an array that may be written to, (g, r, size)."""

    @abstractmethod
    def from_origin(self, rows: Rows, x: Tensor) -> Tensor:
        """The origin less the point, o - x, (g, r, size)."""

    def complement(self, rows: Rows, x: Tensor) -> Tensor:
        r"""The mean :math:`c - \lambda/\alpha` that a point stands for, o + Pu - x, or its point, (g, r, size)."""
        return self.from_origin(rows, x) + self.pull(rows.rest)

    @abstractmethod
    def dual_square(self, rows: Rows, x: Tensor, lifted: Tensor) -> Tensor:
        """‖λ/α‖², (g, r)."""


class GramCoordinates(AbstractCoordinates):
    """Weights on templates, from λ = αz on; the operator is the Gram matrix (g, n, n)."""

    products_each = 1

    @property
    @override
    def longest(self) -> Tensor:
        return self.squares.amax(-1, keepdim=True).sqrt()

    @cached_property
    def squares(self) -> Tensor:
        """Squared norms of the templates, (g, n)."""
        return self.operator.diagonal(dim1=-2, dim2=-1).clamp(min=0)

    @override
    def spread(self, weights: Tensor) -> Tensor:
        return (weights @ self.squares.unsqueeze(-1)).squeeze(-1).sqrt()

    @override
    def evidence_of(self, block: AbstractBlock) -> Tensor:
        return block.evidence @ _templates_of(block).mT

    @override
    def vectors_of(self, block: AbstractBlock, x: Tensor) -> Tensor:
        return block.evidence + x @ _templates_of(block)

    @override
    def lift(self, x: Tensor) -> Tensor:
        return self._multiply(x, self.operator)

    @override
    def pull(self, weights: Tensor) -> Tensor:
        return weights

    @override
    def inner(self, a: Tensor, b: Tensor, lifted_b: Tensor) -> Tensor:
        return dot(a, lifted_b)

    @override
    def first_order_point(self, rows: Rows) -> tuple[Tensor, Tensor]:
        nothing = torch.zeros_like(rows.evidence)
        return nothing, nothing

    @override
    def scaled_potential(self, rows: Rows, lifted: Tensor) -> Tensor:
        return rows.evidence + lifted

    @override
    def residual(self, rows: Rows, moved: Tensor, x: Tensor) -> Tensor:
        return moved.neg_().sub_(x)

    @override
    def scores(self, rows: Rows, first_lifted: Tensor) -> Tensor:
        return rows.evidence

    @override
    def from_origin(self, rows: Rows, x: Tensor) -> Tensor:
        return -x

    @override
    def complement(self, rows: Rows, x: Tensor) -> Tensor:
        return rows.rest - x

    @override
    def dual_square(self, rows: Rows, x: Tensor, lifted: Tensor) -> Tensor:
        return rows.evidence_square.squeeze(-1) + 2 * dot(x, rows.evidence) + dot(x, lifted)


class TemplateCoordinates(AbstractCoordinates):
    """The vectors λ/α themselves; the operator is the matrix of templates (g, n, d)."""

    products_each = 2

    @property
    @override
    def longest(self) -> Tensor:
        return self.operator.norm(dim=-1).amax(-1, keepdim=True)

    @override
    def spread(self, weights: Tensor) -> Tensor:
        return (weights @ self.operator.square().sum(-1, keepdim=True)).squeeze(-1).sqrt()

    @property
    @override
    def factors(self) -> Tensor:
        return self.operator

    @override
    def evidence_of(self, block: AbstractBlock) -> Tensor:
        return block.evidence

    @override
    def vectors_of(self, block: AbstractBlock, x: Tensor) -> Tensor:
        return x

    @override
    def lift(self, x: Tensor) -> Tensor:
        return self._multiply(x, self.operator.mT)

    @override
    def pull(self, weights: Tensor) -> Tensor:
        return self._multiply(weights, self.operator)

    @override
    def inner(self, a: Tensor, b: Tensor, lifted_b: Tensor) -> Tensor:
        return dot(a, b)

    @override
    def first_order_point(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return rows.evidence, self.lift(rows.evidence)

    @override
    def scaled_potential(self, rows: Rows, lifted: Tensor) -> Tensor:
        return lifted

    @override
    def residual(self, rows: Rows, moved: Tensor, x: Tensor) -> Tensor:
        return self.pull(moved).neg_().add_(rows.evidence).sub_(x)

    @override
    def scores(self, rows: Rows, first_lifted: Tensor) -> Tensor:
        return first_lifted

    @override
    def from_origin(self, rows: Rows, x: Tensor) -> Tensor:
        return rows.evidence - x

    @override
    def dual_square(self, rows: Rows, x: Tensor, lifted: Tensor) -> Tensor:
        # In coordinates over the span of the templates, the evidence outside it is part of λ and never changes.
        outside = rows.evidence_square.squeeze(-1) - dot(rows.evidence, rows.evidence)
        return dot(x, x) + outside.clamp(min=0)


class IdentityCoordinates(TemplateCoordinates):
    """The vectors λ/α themselves, for a response that takes λ for its potential: there are no templates.

    Args:
        like: Rows of the evidence, (g, r, d).
    """

    products_each = 0

    def __init__(self, like: Tensor) -> None:
        # Never multiplied with: it only says what an identity matrix would be, of which d² numbers can be too many.
        super().__init__(like.new_zeros(()).expand(1, like.shape[-1], like.shape[-1]))

    @property
    @override
    def factors(self) -> Tensor:
        return torch.eye(self.size, dtype=self.operator.dtype, device=self.operator.device).unsqueeze(0)

    @override
    def low_precision(self) -> AbstractCoordinates:
        return self

    @override
    def lift(self, x: Tensor) -> Tensor:
        return x

    @override
    def pull(self, weights: Tensor) -> Tensor:
        return weights


def check_coordinates(problem: Problem, name: str) -> None:
    """Refuse coordinates over templates where the problem's response is not made of templates.

    Raises:
        ProblemError: Saying whose response it is.
    """
    if name != "auto" and not is_rowwise(problem):
        raise ProblemError(
            f"coordinates is {name!r}, but {problem.closeness!r} on a {type(problem.preference).__name__} preference "
            'is solved in the coordinates of the dual point; expected "auto"'
        )


def coordinates_for(block: AbstractBlock, name: str = "auto") -> AbstractCoordinates:
    """The coordinates of a block's rows: λ's own where it has no templates, else :func:`coordinates_over` those."""
    offsets = block.offsets
    return IdentityCoordinates(block.evidence) if offsets is None else coordinates_over(offsets, name)


def coordinates_over(templates: Tensor, name: str = "auto") -> AbstractCoordinates:
    """Gram or template coordinates over centred templates (g, n, d): by name, or whichever multiplies less."""
    n, d = templates.shape[-2:]
    if name == "gram" or (name == "auto" and n <= 2 * d):
        return GramCoordinates(templates @ templates.mT)
    return TemplateCoordinates(templates)
