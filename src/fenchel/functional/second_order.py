r"""The second-order dual point, :math:`\lambda = \alpha(I + \alpha\Sigma_u)^{-1} z`.

Where the queries of a head share preference and α, one d × d matrix a head is factorised, in plain torch operations.
Else every query has a covariance of its own, and conjugate gradients solve for λ: (I + αΣ)x takes two products with the
templates, and Σ is never formed. The gradient of :math:`\lambda = \alpha x` is then, with
:math:`y = (I + \alpha\Sigma)^{-1} \alpha g` for the gradient g of λ, :math:`a = Ty - \langle u, Ty\rangle` and
:math:`b = Tx - \langle u, Tx\rangle`,

.. math:: \partial z = y, \qquad \partial\alpha = \langle g, x\rangle - y^\top\Sigma x, \qquad
    \partial\log u = -\alpha\,u\circ(a \circ b - \langle u, a \circ b\rangle), \qquad
    \partial T = -\alpha\bigl((u\circ b)^\top y + (u \circ a)^\top x\bigr).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.adjoint import DualGradients, solve_hessian
from fenchel.blocks import QueryBlock
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.precision import compute_dtype, without_autocast
from fenchel.functional.rowwise import Rowwise, RowwiseGradients
from fenchel.functional.second_derivative import refuse_second_derivative
from fenchel.solver.coordinates import centred, dot

__all__ = ["second_order_dual_point"]


def second_order_dual_point(given: AttentionArguments) -> Tensor:
    """λ of the second-order estimator, (B, H, m, d), in the dtype of the query."""
    query = given.query
    dtype = compute_dtype(query.dtype)
    alpha_is_shared = not isinstance(given.alpha, Tensor) or given.alpha.shape[2] == 1
    with without_autocast(query):
        if given.log_preference_is_shared and alpha_is_shared:
            dual = _with_one_covariance(given, dtype)
        else:
            alpha = (
                given.alpha if isinstance(given.alpha, Tensor) else query.new_full((1, 1, 1, 1), given.alpha)
            )
            templates = given.key.to(dtype) * given.scale
            dual = _second_order(query.to(dtype), templates, given.log_preference, alpha.to(dtype))
        return dual.to(query.dtype)


def _with_one_covariance(given: AttentionArguments, dtype: torch.dtype) -> Tensor:
    """Solve with the covariance of each head's one preference."""
    heads = given.query.shape[1]
    templates = (given.key.to(dtype) * given.scale).repeat_interleave(heads // given.key.shape[1], 1)
    n, d = templates.shape[-2:]
    weights = _preference_weights(given.log_preference, templates)
    centred = templates - weights @ templates
    alpha = given.alpha.to(dtype) if isinstance(given.alpha, Tensor) else given.alpha
    evidence = given.query.to(dtype)
    if d <= n:
        matrix = alpha * (centred.mT @ (weights.mT * centred)) + torch.eye(
            d, dtype=dtype, device=templates.device
        )
        triangle = torch.linalg.cholesky_ex(matrix)[0]
        return alpha * torch.cholesky_solve(evidence.mT, triangle).mT
    possible = weights.mT > 0
    factor = centred * torch.where(possible, weights.mT, 1).sqrt() * possible
    # Woodbury: (I + αFᵀF)⁻¹ = I - αFᵀ(I + αFFᵀ)⁻¹F, n × n instead of d × d.
    matrix = alpha * (factor @ factor.mT) + torch.eye(n, dtype=dtype, device=templates.device)
    triangle = torch.linalg.cholesky_ex(matrix)[0]
    within = torch.cholesky_solve(factor @ evidence.mT, triangle).mT
    return alpha * (evidence - alpha * (within @ factor))


def _preference_weights(log_preference: Tensor | None, templates: Tensor) -> Tensor:
    """Weights u of preferences shared by queries, (B or 1, H or 1, 1, n)."""
    n = templates.shape[-2]
    if log_preference is None:
        return templates.new_full((1, 1, 1, n), 1 / n)
    if log_preference.dtype == torch.bool:
        weights = log_preference.to(templates.dtype)
        return weights / weights.sum(-1, keepdim=True)
    return log_preference.to(templates.dtype).softmax(-1)


@torch.library.custom_op("fenchel::second_order_dual_point", mutates_args=())
def _second_order(
    evidence: Tensor, templates: Tensor, log_preference: Tensor | None, alpha: Tensor
) -> Tensor:
    with torch.no_grad(), without_autocast(evidence):
        rowwise = Rowwise(evidence, templates, log_preference, alpha)
        dual = torch.empty_like(evidence)
        for block, rows in rowwise.blocks():
            templates, weights = _believed(rows)
            found = solve_hessian(templates, weights, rows.alpha, rows.evidence)
            rowwise.put(dual, block, rows.alpha * found.vectors)
        return dual


def _believed(rows: QueryBlock) -> tuple[Tensor, Tensor]:
    """Templates less the mean that they have under the preferences, and the preferences of every row."""
    shape = (*rows.evidence.shape[:2], rows.templates.shape[1])
    return centred(rows.templates, rows.log_preference), rows.log_preference.exp().expand(shape)


@_second_order.register_fake
def _(evidence, templates, log_preference, alpha):
    return torch.empty_like(evidence)


@torch.library.custom_op("fenchel::second_order_dual_point_backward", mutates_args=())
def _second_order_backward(
    gradient: Tensor,
    dual: Tensor,
    evidence: Tensor,
    templates: Tensor,
    log_preference: Tensor | None,
    alpha: Tensor,
    to_preference: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    with torch.no_grad(), without_autocast(evidence):
        rowwise = Rowwise(evidence, templates, log_preference, alpha)
        wanted = log_preference if to_preference else None
        gradients = RowwiseGradients(rowwise, evidence, templates, wanted, alpha)
        for block, rows in rowwise.blocks():
            x = rowwise.take(dual, block) / rows.alpha
            gradients.put(block, _row_gradients(rows, x, rowwise.take(gradient, block)))
        return gradients.build()


def _row_gradients(rows: QueryBlock, x: Tensor, gradient: Tensor) -> DualGradients:
    templates, weights = _believed(rows)
    found = solve_hessian(templates, weights, rows.alpha, rows.alpha * gradient)
    y = found.vectors
    a, b = (lift - dot(weights, lift).unsqueeze(-1) for lift in (found.lifted, x @ templates.mT))
    product = a * b
    covariance = dot(weights, product).unsqueeze(-1)
    # The sum over rows has α inside, so it goes to the smaller factor.
    scaled_x, scaled_y = rows.alpha * x, rows.alpha * y
    return DualGradients(
        evidence=y,
        templates=-((weights * b).mT @ scaled_y + (weights * a).mT @ scaled_x),
        log_weights=-rows.alpha * weights * (product - covariance),
        alpha=dot(gradient, x).unsqueeze(-1) - covariance,
    )


@_second_order_backward.register_fake
def _(gradient, dual, evidence, templates, log_preference, alpha, to_preference):
    like = log_preference if to_preference else templates.new_empty(())
    return (
        torch.empty_like(evidence),
        torch.empty_like(templates),
        torch.empty_like(like, dtype=templates.dtype),
        torch.empty_like(alpha),
    )


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output, *inputs)
    ctx.to_preference = ctx.needs_input_grad[2]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    log_preference = ctx.saved_tensors[3]
    to_evidence, to_templates, to_preference, to_alpha = _second_order_backward(
        gradient, *ctx.saved_tensors, ctx.to_preference
    )
    if ctx.to_preference:
        to_preference = to_preference.to(log_preference.dtype)
    return to_evidence, to_templates, to_preference if ctx.to_preference else None, to_alpha


_second_order.register_autograd(_backward, setup_context=_remember)
refuse_second_derivative(_second_order_backward, "second-order attention with a preference a query")
