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
from fenchel.solver.conjugate_gradient import newton_direction
from fenchel.solver.coordinates import TemplateCoordinates, centred, dot
from fenchel.solver.direct import solve_shifted

__all__ = [
    "DualGradients",
    "HessianSolution",
    "implicit_gradients",
    "second_order_gradients",
    "second_order_rows",
    "solve_hessian",
]

ITERATIONS = 60
"""Conjugate gradients before rows that are not done are factorised."""


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


@dataclass(frozen=True)
class HessianSolution:
    """Solutions x of (I + α Cov_p(T)) x = b.

    Attributes:
        vectors: x, (g, r, d).
        lifted: Tx for the centred templates, (g, r, n).
    """

    vectors: Tensor
    lifted: Tensor


def solve_hessian(templates: Tensor, weights: Tensor, alpha: Tensor, right: Tensor) -> HessianSolution:
    r"""Solve :math:`(I + \alpha\operatorname{Cov}_p(T))\,x = b` for every row, to the rounding of the dtype.

    Conjugate gradients (the operator is symmetric with eigenvalues in [1, 1 + α λ_max]); rows on which they do not get
    there are factorised in float64.

    Args:
        templates: Centred, (g, n, d).
        weights: p, (g, r, n).
        alpha: α, (g or 1, r or 1, 1).
        right: b, (g, r, d).
    """
    coordinates = TemplateCoordinates(templates)
    square = right.square().sum(-1, keepdim=True)
    target = square * (8 * torch.finfo(right.dtype).eps) ** 2
    found = newton_direction(
        coordinates, alpha, weights, right, coordinates.lift(right), square, target, ITERATIONS
    )
    images = found.lifted - dot(weights, found.lifted).unsqueeze(-1)
    left = torch.addcmul(found.step, alpha, coordinates.pull(images * weights))
    # What conjugate gradients carry along as their residual drifts from the true one by a few roundings.
    missed = (left - right).square().sum(-1, keepdim=True) > 64**2 * target
    if not bool(missed.any()):
        return HessianSolution(found.step, found.lifted)
    step = found.step.clone()
    for group, row in (missed.squeeze(-1)).nonzero().tolist():
        wide = (t.double() for t in (templates[group], weights[group, row], right[group, row]))
        of_group, of_row, b = wide
        a = alpha[group % alpha.shape[0], row % alpha.shape[1]].double()
        x = solve_shifted(of_group.unsqueeze(0), of_row[None, None], a[None, None], b[None, None, :, None])
        step[group, row] = x.flatten().to(step.dtype)
    return HessianSolution(step, coordinates.lift(step))


def implicit_gradients(block: QueryBlock, dual: Tensor, gradient: Tensor) -> DualGradients:
    """Gradients to the data of a block of rows, given the gradient of their solutions.

    Args:
        block: The rows.
        dual: λ*, (g, r, d).
        gradient: g, (g, r, d).
    """
    templates = centred(block.templates, block.log_preference)
    preference = block.log_preference.exp()
    weights = torch.baddbmm(block.log_preference.expand(dual.shape[0], -1, -1), dual, templates.mT).softmax(
        -1
    )
    found = solve_hessian(templates, weights, block.alpha, block.alpha * gradient)
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
    return block.alpha * solve_hessian(templates, preference, block.alpha, block.evidence).vectors


def second_order_gradients(block: QueryBlock, dual: Tensor, gradient: Tensor) -> DualGradients:
    """Gradients to the data of a block of rows, given the gradient of their second-order dual points.

    Args:
        block: The rows.
        dual: λ, (g, r, d).
        gradient: g, (g, r, d).
    """
    templates, preference = _believed(block)
    x = dual / block.alpha
    found = solve_hessian(templates, preference, block.alpha, block.alpha * gradient)
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
    return centred(block.templates, block.log_preference), block.log_preference.exp().expand(shape)
