r"""Gradients of dual points by the implicit function theorem, never by unrolling a solver.

At λ* the gradient of the dual vanishes, :math:`F = z + \mu - \lambda/\alpha - h(\lambda) = 0`, and -∂F/∂λ is
the Hessian :math:`H = I/\alpha + \operatorname{Cov}_p(T)`. For a gradient g of λ* let :math:`\nu = H^{-1} g`, one
linear solve with the operator of a Newton step. Then, with :math:`D_p = \operatorname{diag} p - pp^\top`,
:math:`f = D_p T\nu` and :math:`w = D_u T\nu`,

.. math:: \partial z = \nu, \qquad \partial\alpha = \langle\nu, \lambda\rangle/\alpha^2, \qquad \partial\log u = w - f,
    \qquad \partial T = (u - p)^\top \nu - f^\top \lambda

whatever number of steps led to λ* (fact 8).

The second-order point :math:`\lambda = \alpha x`, :math:`(I + \alpha\Sigma)x = z`, is a linear solve already. With
:math:`y = (I + \alpha\Sigma)^{-1}\alpha g`, :math:`a = Ty - \langle u, Ty\rangle` and :math:`b = Tx - \langle u,
Tx\rangle` its gradients are

.. math:: \partial z = y, \qquad \partial\alpha = \langle g, x\rangle - y^\top\Sigma x, \qquad
    \partial\log u = -\alpha\,u\circ(a \circ b - \langle u, a \circ b\rangle), \qquad
    \partial T = -\alpha\bigl((u\circ b)^\top y + (u \circ a)^\top x\bigr)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.blocks import QueryBlock
from fenchel.solver.coordinates import TemplateCoordinates, dot
from fenchel.solver.linear import HessianSolution, solve_hessian

__all__ = [
    "DualGradients",
    "implicit_gradients",
    "second_order_gradients",
    "second_order_rows",
]


@dataclass(frozen=True)
class DualGradients:
    """Gradients to what a dual point depends on.

    Attributes:
        evidence: (g, r, d).
        templates: (g, n, d).
        log_weights: (g, r, n), of each row.
        alpha: (g, r, 1), of each row.
    """

    evidence: Tensor
    templates: Tensor
    log_weights: Tensor
    alpha: Tensor


def _solved(block: QueryBlock, templates: Tensor, weights: Tensor, right: Tensor) -> HessianSolution:
    r"""Solutions of :math:`(I + \alpha\operatorname{Cov}_p(T))\,x = b`, given centred templates."""
    # The curvature of a softmax is that of its weights, whatever they are the softmax of.
    return solve_hessian(TemplateCoordinates(templates), block.response, weights, weights, block.alpha, right)


def implicit_gradients(block: QueryBlock, dual: Tensor, gradient: Tensor) -> DualGradients:
    """Gradients to the data of a block of rows, given the gradient of their solutions.

    Args:
        block: The rows.
        dual: λ*, (g, r, d).
        gradient: g, (g, r, d).
    """
    templates = block.offsets
    preference = block.log_preference.exp()
    weights = torch.baddbmm(block.log_preference.expand(dual.shape[0], -1, -1), dual, templates.mT).softmax(
        -1
    )
    found = _solved(block, templates, weights, block.alpha * gradient)
    nu, lifted = found.vectors, found.lifted
    inferred = weights * (lifted - dot(weights, lifted).unsqueeze(-1))
    believed = preference * (lifted - dot(preference.expand_as(lifted), lifted).unsqueeze(-1))
    return DualGradients(
        evidence=nu,
        templates=(preference - weights).mT @ nu - inferred.mT @ dual,
        log_weights=believed - inferred,
        alpha=dot(nu, dual).unsqueeze(-1) / block.alpha.square(),
    )


def second_order_rows(block: QueryBlock) -> Tensor:
    """The second-order dual points of a block of rows, (g, r, d)."""
    templates, preference = _believed(block)
    return block.alpha * _solved(block, templates, preference, block.evidence).vectors


def second_order_gradients(block: QueryBlock, dual: Tensor, gradient: Tensor) -> DualGradients:
    """Gradients to the data of a block of rows, given the gradient of their second-order dual points.

    Args:
        block: The rows.
        dual: λ, (g, r, d).
        gradient: g, (g, r, d).
    """
    templates, preference = _believed(block)
    x = dual / block.alpha
    found = _solved(block, templates, preference, block.alpha * gradient)
    y = found.vectors
    a, b = (lift - dot(preference, lift).unsqueeze(-1) for lift in (found.lifted, x @ templates.mT))
    product = a * b
    covariance = dot(preference, product).unsqueeze(-1)
    return DualGradients(
        evidence=y,
        templates=-((preference * b).mT @ (block.alpha * y) + (preference * a).mT @ dual),
        log_weights=-block.alpha * preference * (product - covariance),
        alpha=dot(gradient, x).unsqueeze(-1) - covariance,
    )


def _believed(block: QueryBlock) -> tuple[Tensor, Tensor]:
    """Centred templates, and the preference of every row, (g, r, n)."""
    shape = (*block.evidence.shape[:2], block.templates.shape[1])
    return block.offsets, block.log_preference.exp().expand(shape)
