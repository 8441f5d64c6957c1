r"""Gradients of ops that solve for a dual point of every query, by the implicit function theorem (fact 8).

At λ* the gradient of the dual vanishes, and the negative of its derivative is :math:`H = I/\alpha +
\operatorname{Cov}_p(T)`. For a gradient g of λ* let :math:`\nu = H^{-1} g`. Then, with :math:`D_p =
\operatorname{diag} p - pp^\top`, :math:`f = D_p T\nu` and :math:`w = D_u T\nu`,

.. math:: \partial z = \nu, \qquad \partial\alpha = \langle\nu, \lambda\rangle/\alpha^2, \qquad \partial\log u = w - f,
    \qquad \partial T = (u - p)^\top \nu - f^\top \lambda

whatever number of steps led to λ*. The second-order point :math:`\lambda = \alpha x`, :math:`(I + \alpha\Sigma)x = z`,
is a linear solve already. With :math:`y = (I + \alpha\Sigma)^{-1}\alpha g`, :math:`a = Ty - \langle u, Ty\rangle` and
:math:`b = Tx - \langle u, Tx\rangle` its gradients are

.. math:: \partial z = y, \qquad \partial\alpha = \langle g, x\rangle - y^\top\Sigma x, \qquad
    \partial\log u = -\alpha\,u\circ(a \circ b - \langle u, a \circ b\rangle), \qquad
    \partial T = -\alpha\bigl((u\circ b)^\top y + (u \circ a)^\top x\bigr)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.blocks import QueryBlock
from fenchel.functional.operator import with_gradient
from fenchel.functional.precision import without_autocast
from fenchel.functional.rowwise import DualGradients, Rowwise, RowwiseGradients
from fenchel.solver.driver import solved
from fenchel.solver.family import TemplateFamily, total
from fenchel.solver.implicit import second_derivative_of

__all__ = ["implicit_gradients", "second_order_gradients", "with_row_gradients"]


def implicit_gradients(block: QueryBlock, dual: Tensor, gradient: Tensor, rtol: float) -> DualGradients:
    """Gradients to the data of a block of rows, given the gradient of their solutions.

    Args:
        block: The rows.
        dual: λ*, (g, r, d).
        gradient: g, (g, r, d).
        rtol: To which the linear system is solved, relative to g; to rounding where that is more.
    """
    point = TemplateFamily(block).at(dual)
    preference, weights = block.log_preference.exp(), point.weights
    nu = solved(point, gradient, block.alpha, rtol=rtol)
    lifted = nu @ point.templates.mT
    inferred = weights * (lifted - total(weights * lifted))
    believed = preference * (lifted - total(preference * lifted))
    return DualGradients(
        evidence=nu,
        templates=(preference - weights).mT @ nu - inferred.mT @ dual,
        log_weights=believed - inferred,
        alpha=total(nu * dual) / block.alpha.square(),
    )


def second_order_gradients(block: QueryBlock, dual: Tensor, gradient: Tensor, rtol: float) -> DualGradients:
    """Gradients to the data of a block of rows, given the gradient of their second-order dual points.

    Args:
        block: The rows.
        dual: λ, (g, r, d).
        gradient: g, (g, r, d).
        rtol: To which the linear system is solved, relative to g; to rounding where that is more.
    """
    point = TemplateFamily(block).at(torch.zeros_like(dual))
    preference, x = point.weights, dual / block.alpha
    y = solved(point, gradient, block.alpha, rtol=rtol)
    a, b = (lift - total(preference * lift) for lift in (v @ point.templates.mT for v in (y, x)))
    product = a * b
    covariance = total(preference * product)
    return DualGradients(
        evidence=y,
        templates=-((preference * b).mT @ (block.alpha * y) + (preference * a).mT @ dual),
        log_weights=-block.alpha * preference * (product - covariance),
        alpha=total(gradient * x) - covariance,
    )


def with_row_gradients(
    operator: Any, name: str, rule: Callable[[QueryBlock, Tensor, Tensor, float], DualGradients], of: str
) -> Callable[..., Tensor]:
    """An operator with its shape for ``torch.compile`` and its gradient, of which there is no second.

    Args:
        operator: Made by ``torch.library.custom_op``; takes (evidence, templates, log_preference, alpha, *options) and
            returns dual points of the shape of the evidence, contiguous. The first option, if there are any, is
            the relative tolerance to which it solves.
        name: Of the operator.
        rule: Gradients to the data of a block of rows, given their dual points and the gradient of those.
        of: What a second derivative would be of, for the error.

    Returns:
        What to call in place of the operator.
    """

    @torch.library.custom_op(f"{name}_backward", mutates_args=())
    def differentiated(
        gradient: Tensor,
        dual: Tensor,
        evidence: Tensor,
        templates: Tensor,
        log_preference: Tensor | None,
        alpha: Tensor,
        to_preference: bool,
        rtol: float = 0.0,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        with torch.no_grad(), without_autocast(evidence):
            rowwise = Rowwise(evidence, templates, log_preference, alpha)
            wanted = log_preference if to_preference else None
            gradients = RowwiseGradients(rowwise, evidence, templates, wanted, alpha)
            for block, rows in rowwise.blocks():
                found = rule(rows, rowwise.take(dual, block), rowwise.take(gradient, block), rtol)
                gradients.put(block, found)
            return gradients.build()

    @differentiated.register_fake
    def _(gradient, dual, evidence, templates, log_preference, alpha, to_preference, rtol=0.0):
        preference = templates.new_empty(log_preference.shape if to_preference else ())
        to_evidence, to_templates, to_alpha = (x.new_empty(x.shape) for x in (evidence, templates, alpha))
        return to_evidence, to_templates, preference, to_alpha

    operator.register_fake(lambda evidence, *others: evidence.new_empty(evidence.shape))
    differentiated_once = with_gradient(differentiated, second_derivative_of(of))

    def remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output, *inputs[:4])
        ctx.options = inputs[4:]

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Read once: under checkpointing what is saved is computed again when it is read, and is then no longer there.
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad[2]
        log_preference = saved[3]
        # To the tolerance of the forward solve, where there is one.
        rtol = ctx.options[0] if ctx.options else 0.0
        to_evidence, to_templates, found, to_alpha = differentiated_once(gradient, *saved, wanted, rtol)
        to_preference = found.to(log_preference.dtype) if wanted else None
        return to_evidence, to_templates, to_preference, to_alpha, *(None,) * len(ctx.options)

    return with_gradient(operator, backward, remember)
