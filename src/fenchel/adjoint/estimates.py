"""Estimates of problems that require gradients: solved without, then joined to what they depend on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fenchel.adjoint.gradients import DualGradients, implicit_gradients, second_order_gradients
from fenchel.adjoint.implicit import implicit_dual_point
from fenchel.adjoint.second_derivative import differentiated_once
from fenchel.arguments.tensor import check_not_mapped
from fenchel.blocks import DEFAULT_MEMORY_BUDGET, QueryBlock, QueryLayout
from fenchel.closeness import KL
from fenchel.errors import ProblemError
from fenchel.estimate import Estimate
from fenchel.problem import InferenceProblem
from fenchel.solver import check_options, solve

__all__ = ["solve_with_gradients"]

_Rule = Callable[[QueryBlock, Tensor, Tensor], DualGradients]

WORKING_ARRAYS = 24
"""Arrays of shape (rows, max(n, d)) that a backward pass keeps at once."""

_RULES: dict[str, _Rule] = {
    "second_order": second_order_gradients,
    "exact": implicit_gradients,
    "gradient_ascent": implicit_gradients,
}


def solve_with_gradients(problem: InferenceProblem, estimator: str, /, **options: Any) -> Estimate:
    """Solve a problem; where its data require gradients, the answer's dual, weights and mean carry them.

    Bounds, steps and ``converged`` never do. What an iterative solver found is taken for the solution, so where it did
    not converge the gradients are off as much as it is.

    Args:
        problem: The problem.
        estimator: Name of the estimator.
        **options: Of the estimator.

    Raises:
        ProblemError: If there is no such estimator, or none of its gradients.
    """
    check_options(estimator, options)
    data = _data(problem)
    own = problem.closeness.parameters()
    check_not_mapped("an inference problem", *data.values(), *own.values())
    wanted = [name for name, part in {**data, **own}.items() if part.requires_grad]
    if not wanted or not torch.is_grad_enabled():
        return solve(problem, estimator, **options)
    if estimator not in ("first_order", *_RULES):
        raise ProblemError(
            f"{' and '.join(wanted)} require gradients, which {estimator!r} does not carry; solve under "
            "torch.no_grad(), or give detached tensors"
        )
    with torch.no_grad():
        estimate = solve(problem, estimator, **options)
    if estimator == "first_order":
        dual = (problem.alpha_column * problem.evidence).expand_as(estimate.dual)
    elif not isinstance(problem.closeness, KL):
        dual = implicit_dual_point(problem, estimator, estimate.dual)
    else:
        dual = _DualPoint.apply(*data.values(), estimate.dual, problem, _RULES[estimator])
    weights = problem.weights(dual)
    return replace(estimate, dual=dual, weights=weights, mean=problem.mean(weights))


def _data(problem: InferenceProblem) -> dict[str, Tensor]:
    return {
        "templates": problem.preference.templates,
        "log_weights": problem.preference.log_weights,
        "evidence": problem.evidence,
        "alpha": problem.alpha_column,
    }


class _DualPoint(torch.autograd.Function):
    """A dual point that was found, as a function of the data that determine it."""

    @staticmethod
    def forward(
        templates: Tensor,
        log_weights: Tensor,
        evidence: Tensor,
        alpha: Tensor,
        dual: Tensor,
        problem: InferenceProblem,
        rule: _Rule,
    ) -> Tensor:
        return dual.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *data, _, ctx.problem, ctx.rule = inputs
        ctx.save_for_backward(output, *data)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        dual, *data = ctx.saved_tensors
        found = _gradients_once(ctx.problem, ctx.rule, dual, gradients[0], *data)
        shaped = (part.sum_to_size(like.shape) for part, like in zip(found, data, strict=True))
        return (*shaped, None, None, None)


def _gradients(
    problem: InferenceProblem, rule: _Rule, dual: Tensor, gradient: Tensor, *data: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients to the problem's data, which are named so that a second derivative is known to be asked for."""
    layout = QueryLayout(problem)
    preference = problem.preference
    to_evidence, to_alpha = layout.empty(preference.dim), layout.empty(1)
    to_log_weights = layout.empty(preference.support_size)
    to_templates = preference.templates.new_zeros(layout.groups, preference.support_size, preference.dim)
    duals, incoming = layout.arrange(dual), layout.arrange(gradient)
    itemsize = torch.finfo(problem.dtype).bits // 8
    for groups, rows, block in layout.blocks(DEFAULT_MEMORY_BUDGET, WORKING_ARRAYS, itemsize):
        where = (groups[:, None], rows[None, :])
        found = rule(block, duals[where], incoming[where])
        to_evidence[where], to_alpha[where], to_log_weights[where] = (
            found.evidence,
            found.alpha,
            found.log_weights,
        )
        to_templates.index_add_(0, groups, found.templates)
    back = layout.restore
    return (
        to_templates.reshape(preference.templates.shape),
        back(to_log_weights),
        back(to_evidence),
        back(to_alpha),
    )


_gradients_once = differentiated_once(_gradients, "an estimate")
