"""The dual point λ of each estimator, differentiable in everything it depends on."""

from __future__ import annotations

from torch import Tensor

from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.exact import exact_dual_point
from fenchel.functional.second_order import second_order_dual_point

__all__ = ["dual_point"]


def dual_point(given: AttentionArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    """λ, (B, H, m, d), in the dtype of the query.

    Args:
        given: Checked arguments.
        estimator: One of :data:`~fenchel.arguments.ESTIMATORS`.
        tol: Of the exact estimator, relative; None is its default.
        max_steps: Of the exact estimator.
    """
    if estimator == "second_order":
        return second_order_dual_point(given)
    if estimator == "exact":
        return exact_dual_point(given, tol, max_steps)
    if isinstance(given.alpha, Tensor):
        return (given.query * given.alpha).to(given.query.dtype)
    return given.query if given.alpha == 1.0 else given.query * given.alpha
