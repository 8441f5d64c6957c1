r"""The dual point λ of each estimator, differentiable in everything it depends on, with no weights kept.

The second-order one is :math:`\lambda = \alpha(I + \alpha\Sigma_u)^{-1} z`. Where the queries of a head share
preference and α, one d × d matrix a head is factorised, in plain torch operations. Else every query has a covariance of
its own, and conjugate gradients solve for λ: (I + αΣ)x takes two products with the templates, and Σ is never formed.
Whether they arrived is looked at once a call on an accelerator, which waits for that.
The gradient is one more such solve, as it is of the exact one (:mod:`fenchel.solver.implicit`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.errors import ConvergenceError, ProblemError
from fenchel.functional.arguments import AttentionArguments, compute_dtype, without_autocast
from fenchel.functional.rows import Rowwise, with_one_look, with_row_gradients
from fenchel.solver import Estimator, Exact, FirstOrder
from fenchel.solver.closed_form import second_order_point, with_one_hessian
from fenchel.solver.driver import infer
from fenchel.solver.implicit import Expansion, StationaryPoint
from fenchel.tensors import values_are_known

__all__ = [
    "DEFAULT_STEPS",
    "by_inverse",
    "check_reached",
    "dual_point",
    "limits",
    "preference_weights",
]


DEFAULT_TOL = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Relative tolerance of the exact estimator."""

DEFAULT_STEPS = 50
"""Steps that a query may take there."""


def limits(solver: Exact, dtype: torch.dtype) -> tuple[float, int]:
    """Relative tolerance and steps of the exact estimator, those of ops where it leaves them open."""
    tol = DEFAULT_TOL[dtype] if solver.tol is None else solver.tol
    return tol, DEFAULT_STEPS if solver.max_steps is None else solver.max_steps


def dual_point(given: AttentionArguments, solver: Estimator) -> Tensor:
    """λ, (B, H, m, d), in the dtype of the query; for half types in float32 if it is solved for and α may be above 1.

    Rounding λ to a half type moves scores by up to α‖z‖‖t‖/1000: at α = 1 what rounding the query does.

    Args:
        given: Checked arguments.
        solver: First order, second order or exact.
    """
    if not isinstance(solver, FirstOrder) and not given.has_no_evidence:
        exact = isinstance(solver, Exact)
        dual = _exact_dual_point(given, solver) if exact else _second_order_dual_point(given)
        return dual if isinstance(given.alpha, Tensor) or given.alpha > 1 else dual.to(given.query.dtype)
    if isinstance(given.alpha, Tensor):
        return (given.query * given.alpha).to(given.query.dtype)
    return given.query if given.alpha == 1.0 else given.query * given.alpha


BLOCK_BYTES = 2**24
"""Size of an array (rows, n) of a block: mixing makes none but that of a preference a query."""


def _exact_dual_point(given: AttentionArguments, solver: Exact) -> Tensor:
    """λ* of every query, (B, H, m, d), in float32 for half types.

    Raises:
        ConvergenceError: If a query does not get there.
    """
    dtype = compute_dtype(given.query.dtype)
    with without_autocast(given.query):
        return _exact_with_gradients(*given.problem_in(dtype), *limits(solver, dtype))


@torch.library.custom_op("fenchel::exact_dual_point", mutates_args=())
def _exact(
    evidence: Tensor,
    templates: Tensor,
    log_preference: Tensor | None,
    alpha: Tensor,
    tol: float,
    max_steps: int,
) -> Tensor:
    with torch.no_grad(), without_autocast(evidence):
        rowwise = Rowwise(evidence, templates, log_preference, alpha)
        dual, error = evidence.new_empty(evidence.shape), evidence.new_empty(*evidence.shape[:3], 1)
        for block, rows in rowwise.blocks(BLOCK_BYTES):
            found = infer(rows, tol=tol, max_steps=max_steps)
            rowwise.put(dual, block, found.dual)
            rowwise.put(error, block, (found.error / found.reference).masked_fill(found.error == 0, 0))
        remedy = "alpha or the norms of the keys smaller"
        check_reached(
            error.squeeze(-1), tol, max_steps, remedy, " (worst at (batch, head, query) {}: {:.2e})"
        )
        _check_range(dual, templates)
        return dual


def check_reached(error: Tensor, tol: float, max_steps: int, remedy: str, worst: str = "") -> None:
    """Raise where relative errors are above a tolerance.

    Args:
        error: Bounds on the errors of dual points, relative to their lengths.
        tol: The tolerance.
        max_steps: Steps that there were at most.
        remedy: What else may help, after "make".
        worst: What to say of the worst, given its index and its error.

    Raises:
        ConvergenceError: Naming how many they are.
    """
    missed = ~(error <= tol)
    if not bool(missed.any()):
        return
    flat = error.nan_to_num(nan=torch.inf).argmax()
    where = tuple(int(i) for i in torch.unravel_index(flat, error.shape))
    raise ConvergenceError(
        f"{int(missed.sum())} of {missed.numel()} queries did not reach dual_error <= {tol:g} ||dual|| within "
        f"{max_steps} steps{worst.format(where, float(error[where]))}. Raise tol or max_steps, give the tensors in "
        f"float64, or make {remedy}"
    )


def _check_range(dual: Tensor, templates: Tensor) -> None:
    """Weights are a softmax of scores <t, λ>, which the dtype has to hold."""
    if dual.numel() == 0:
        return
    largest = dual.abs().amax().double() * templates.abs().amax().double() * dual.shape[-1]
    if not float(largest) < torch.finfo(dual.dtype).max / 4:
        raise ProblemError(
            f"exact attention has scores of up to {float(largest):.1g}, which {str(dual.dtype).removeprefix('torch.')} "
            "does not hold: give the tensors in float64, or make alpha, the query or the norms of the keys smaller"
        )


_exact_with_gradients = with_row_gradients(
    _exact, "fenchel::exact_dual_point", StationaryPoint(), "exact attention"
)


HELD_BY_FLOAT32 = 200.0
"""α‖t‖² up to which float32 holds I + αΣ to 1e-5 or so of its smallest eigenvalue."""


def _second_order_dual_point(given: AttentionArguments) -> Tensor:
    """λ of the second-order estimator, (B, H, m, d), in float32 for half types."""
    query = given.query
    dtype = compute_dtype(query.dtype)
    with without_autocast(query):
        if given.problem_is_shared:
            return _with_one_covariance(given, dtype).to(dtype)
        return _second_order_with_gradients(*given.problem_in(dtype))


def _with_one_covariance(given: AttentionArguments, dtype: torch.dtype) -> Tensor:
    """Solve with the covariance of each head's one preference."""
    heads = given.query.shape[1]
    if dtype == torch.float32 and _loses_digits(given):
        dtype = torch.float64
    templates = (given.key.to(dtype) * given.scale).repeat_interleave(heads // given.key.shape[1], 1)
    weights = preference_weights(given.log_preference, templates)
    alpha = given.alpha.to(dtype) if isinstance(given.alpha, Tensor) else given.alpha
    return with_one_hessian(templates, weights, alpha, given.query.to(dtype), solve=by_inverse)


def _loses_digits(given: AttentionArguments) -> bool:
    """Whether rounding αΣ to float32 may move I + αΣ, whose smallest eigenvalue is 1 or little more."""
    if not values_are_known(given.key):
        return True
    with torch.no_grad():
        longest = given.key.float().square().sum(-1).amax() * (given.scale**2)
        size = longest * (given.alpha.max() if isinstance(given.alpha, Tensor) else given.alpha)
        return not float(size) <= HELD_BY_FLOAT32


def by_inverse(matrix: Tensor, rows: Tensor) -> Tensor:
    """Rows times (I + A)⁻¹ for A symmetric and positive, in float64, since an inverse loses digits that solves keep.

    One small inverse a head and products with it are many times faster than triangular solves for every query.
    """
    identity = torch.eye(matrix.shape[-1], dtype=torch.float64, device=matrix.device)
    return rows @ torch.linalg.inv_ex(identity + matrix.double())[0].to(matrix.dtype)


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

        def attempt(unsure: list[Tensor] | None) -> Tensor:
            dual = evidence.new_empty(evidence.shape)
            for block, rows in rowwise.blocks():
                rowwise.put(dual, block, second_order_point(rows, unsure))
            return dual

        return with_one_look(attempt, evidence)


_second_order_with_gradients = with_row_gradients(
    _second_order,
    "fenchel::second_order_dual_point",
    Expansion(),
    "second-order attention with a preference a query",
)
