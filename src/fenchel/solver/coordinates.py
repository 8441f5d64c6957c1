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

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.solver.rows import Rows

__all__ = [
    "AbstractCoordinates",
    "GramCoordinates",
    "TemplateCoordinates",
    "centre",
    "centred",
    "dot",
    "multiplies_fast_in_bfloat16",
]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Inner product along the last dimension."""
    return torch.linalg.vecdot(a, b)


def centre(templates: Tensor, log_preference: Tensor) -> Tensor:
    """The mean of the templates that some query of the group may choose, (g, 1, d).

    Args:
        templates: (g, n, d).
        log_preference: (g or 1, r, n), -inf where masked.
    """
    chosen = (~torch.isneginf(log_preference)).any(1, keepdim=True).to(templates.dtype)
    return chosen @ templates / chosen.sum(-1, keepdim=True).clamp(min=1)


def centred(templates: Tensor, log_preference: Tensor) -> Tensor:
    """Templates less their :func:`centre`.

    A common vector changes neither weights nor dual point (fact 3), only rounding.
    """
    return templates - centre(templates, log_preference)


def multiplies_fast_in_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 matrices faster than float32 ones."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    )


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
    def size(self) -> int:
        """How many coordinates a vector has."""
        return self.operator.shape[-1]

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
    def first_order_point(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """The point λ = αz and its lift."""

    @abstractmethod
    def logits(self, rows: Rows, lifted: Tensor) -> Tensor:
        """What weights are the softmax of, at the dual point with that lift, (g, r, n)."""

    @abstractmethod
    def scores(self, rows: Rows, first_lifted: Tensor) -> Tensor:
        """The scores s = Tz, given the lift of λ = αz, (g, r, n)."""

    @abstractmethod
    def residual(self, rows: Rows, moved: Tensor, x: Tensor) -> Tensor:
        """The dual's gradient o - x - Pm, given m = p - u in an array that may be written to, (g, r, size)."""

    @abstractmethod
    def from_origin(self, rows: Rows, x: Tensor) -> Tensor:
        """The origin less the point, o - x, (g, r, size)."""

    @abstractmethod
    def dual_square(self, rows: Rows, x: Tensor, lifted: Tensor) -> Tensor:
        """‖λ/α‖², (g, r)."""


class GramCoordinates(AbstractCoordinates):
    """Weights on templates, from λ = αz on; the operator is the Gram matrix (g, n, n)."""

    products_each = 1

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
    def logits(self, rows: Rows, lifted: Tensor) -> Tensor:
        return torch.addcmul(rows.log_preference, rows.alpha, rows.evidence + lifted)

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
    def dual_square(self, rows: Rows, x: Tensor, lifted: Tensor) -> Tensor:
        return rows.evidence_square.squeeze(-1) + 2 * dot(x, rows.evidence) + dot(x, lifted)


class TemplateCoordinates(AbstractCoordinates):
    """The vectors λ/α themselves; the operator is the matrix of templates (g, n, d)."""

    products_each = 2

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
    def logits(self, rows: Rows, lifted: Tensor) -> Tensor:
        return torch.addcmul(rows.log_preference, rows.alpha, lifted)

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
