r"""The second-order dual point, :math:`\lambda = \alpha(I + \alpha\Sigma_u)^{-1} z`.

Where the queries of a head share preference and α, one d × d matrix a head is factorised, in plain torch operations.
Else every query has a covariance of its own, and conjugate gradients solve for λ: (I + αΣ)x takes two products with the
templates, and Σ is never formed. The gradient is one more such solve (:mod:`fenchel.functional.row_gradients`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.arguments.tensor import values_are_known
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.precision import compute_dtype, without_autocast
from fenchel.functional.row_gradients import second_order_gradients, with_row_gradients
from fenchel.functional.rowwise import Rowwise
from fenchel.solver.closed_form import second_order_point

__all__ = ["inverse", "preference_weights", "second_order_dual_point"]

HELD_BY_FLOAT32 = 200.0
"""α‖t‖² up to which float32 holds I + αΣ to 1e-5 or so of its smallest eigenvalue."""


def second_order_dual_point(given: AttentionArguments) -> Tensor:
    """λ of the second-order estimator, (B, H, m, d), in float32 for half types."""
    query = given.query
    dtype = compute_dtype(query.dtype)
    alpha_is_shared = not isinstance(given.alpha, Tensor) or given.alpha.shape[2] == 1
    with without_autocast(query):
        if given.log_preference_is_shared and alpha_is_shared:
            return _with_one_covariance(given, dtype).to(dtype)
        return _second_order_with_gradients(*given.problem_in(dtype))


def _with_one_covariance(given: AttentionArguments, dtype: torch.dtype) -> Tensor:
    """Solve with the covariance of each head's one preference."""
    heads = given.query.shape[1]
    if dtype == torch.float32 and _loses_digits(given):
        dtype = torch.float64
    templates = (given.key.to(dtype) * given.scale).repeat_interleave(heads // given.key.shape[1], 1)
    n, d = templates.shape[-2:]
    weights = preference_weights(given.log_preference, templates)
    centred = templates - weights @ templates
    alpha = given.alpha.to(dtype) if isinstance(given.alpha, Tensor) else given.alpha
    evidence = given.query.to(dtype)
    if d <= n:
        covariance = centred.mT @ (weights.mT * centred)
        return alpha * (evidence @ inverse(alpha, covariance))
    # Woodbury: (I + αFᵀF)⁻¹ = I - αFᵀ(I + αFFᵀ)⁻¹F, n × n instead of d × d.
    possible = weights.mT > 0
    factor = centred * torch.where(possible, weights.mT, 1).sqrt() * possible
    within = evidence @ factor.mT @ inverse(alpha, factor @ factor.mT)
    return alpha * (evidence - alpha * (within @ factor))


def _loses_digits(given: AttentionArguments) -> bool:
    """Whether rounding αΣ to float32 may move I + αΣ, whose smallest eigenvalue is 1 or little more."""
    if not values_are_known(given.key):
        return True
    with torch.no_grad():
        longest = given.key.float().square().sum(-1).amax() * (given.scale**2)
        size = longest * (given.alpha.max() if isinstance(given.alpha, Tensor) else given.alpha)
        return not float(size) <= HELD_BY_FLOAT32


def inverse(alpha: float | Tensor, matrix: Tensor) -> Tensor:
    """The inverse of I + αA for A symmetric and positive, in float64, since an inverse loses digits that solves keep.

    One small inverse a head and products with it are many times faster than triangular solves for every query.
    """
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    return torch.linalg.inv_ex(identity + (alpha * matrix).double())[0].to(matrix.dtype)


def preference_weights(log_preference: Tensor | None, templates: Tensor) -> Tensor:
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
        dual = evidence.new_empty(evidence.shape)
        for block, rows in rowwise.blocks():
            rowwise.put(dual, block, second_order_point(rows))
        return dual


_second_order_with_gradients = with_row_gradients(
    _second_order,
    "fenchel::second_order_dual_point",
    second_order_gradients,
    "second-order attention with a preference a query",
)
