"""The dual point of mixture attention, by each estimator, with gradients to everything that it depends on."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from fenchel.arguments.tensor import check_not_mapped
from fenchel.conjugate import conjugate_of
from fenchel.errors import ConvergenceError
from fenchel.functional.mixture_arguments import MixtureArguments
from fenchel.functional.mixture_preference import HeadMixtures
from fenchel.functional.second_order import inverse, preference_weights
from fenchel.functional.solved import solved_dual_point
from fenchel.functional.untraced import untraced
from fenchel.problem import Problem

__all__ = ["mixture_dual_point"]


def mixture_dual_point(given: MixtureArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    """λ, (B, H, m, d), in the dtype of the computation.

    Args:
        given: Checked arguments.
        estimator: One of :data:`~fenchel.arguments.ESTIMATORS`.
        tol: Of the exact estimator, relative; None is its default.
        max_steps: Of the exact estimator.
    """
    alpha = given.alpha
    if estimator == "first_order":
        return given.evidence * alpha
    alpha_is_shared = not isinstance(alpha, Tensor) or alpha.shape[2] == 1
    if estimator == "second_order" and given.lifted.log_preference_is_shared and alpha_is_shared:
        return _with_one_covariance(given)
    return _solved(given, estimator, tol, max_steps)


# An iteration that looks at values is nothing to trace.
@untraced
def _solved(given: MixtureArguments, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    check_not_mapped(f"{estimator} mixture attention", given.evidence, given.means, given.variances)
    alpha = given.alpha
    of_rows = alpha.squeeze(-1) if isinstance(alpha, Tensor) else alpha
    preference, remedy = HeadMixtures.of(given), "alpha, the variances or the norms of the means smaller"
    options = (estimator, tol, max_steps, remedy)
    with suppress(ConvergenceError):
        return solved_dual_point(Problem(conjugate_of(preference), given.evidence, of_rows), *options)
    # Where λ is small a difference of two means is rounding; what resolves it takes twice as long.
    resolved = replace(preference, resolved=True)
    return solved_dual_point(Problem(conjugate_of(resolved), given.evidence, of_rows), *options)


def _with_one_covariance(given: MixtureArguments) -> Tensor:
    """Second order where the queries of a head share one mixture and α: one d × d inverse a head, in float64."""
    sharing = given.evidence.shape[1] // given.means.shape[1]
    means, variances = (
        (x.double() * factor).repeat_interleave(sharing, 1)
        for x, factor in ((given.means, given.scale), (given.variances, given.scale**2))
    )
    weights = preference_weights(given.lifted.log_preference, means)
    centred = means - weights @ means
    within = (weights @ variances).expand(*variances.shape[:2], 1, means.shape[-1]).squeeze(2)
    covariance = centred.mT @ (weights.mT * centred) + torch.diag_embed(within)
    alpha = given.alpha.double() if isinstance(given.alpha, Tensor) else given.alpha
    return (alpha * (given.evidence.double() @ inverse(alpha, covariance))).to(given.evidence.dtype)
