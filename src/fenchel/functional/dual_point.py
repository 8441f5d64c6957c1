"""The dual point λ of each estimator, differentiable in everything it depends on."""

from __future__ import annotations

from torch import Tensor

from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.exact import exact_dual_point
from fenchel.functional.second_order import second_order_dual_point

__all__ = ["dual_point"]


def dual_point(given: AttentionArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    """λ, (B, H, m, d), in the dtype of the query; for half types in float32 if it is solved for and α may be above 1.

    Rounding λ to a half type moves scores by up to α‖z‖‖t‖/1000: at α = 1 what rounding the query does.

    Args:
        given: Checked arguments.
        estimator: One of :data:`~fenchel.arguments.ESTIMATORS`.
        tol: Of the exact estimator, relative; None is its default.
        max_steps: Of the exact estimator.
    """
    if estimator != "first_order":
        exact = estimator == "exact"
        dual = exact_dual_point(given, tol, max_steps) if exact else second_order_dual_point(given)
        return dual if isinstance(given.alpha, Tensor) or given.alpha > 1 else dual.to(given.query.dtype)
    if isinstance(given.alpha, Tensor):
        return (given.query * given.alpha).to(given.query.dtype)
    return given.query if given.alpha == 1.0 else given.query * given.alpha
