"""Gradient ascent on the dual: the papers' own way to λ*, kept as the baseline to measure against."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fenchel.blocks import AbstractBlock
from fenchel.certificate import certify, reference_norm
from fenchel.estimate import Estimate, EstimateBuilder
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.problem import Problem
from fenchel.solver.exact import check_convergence
from fenchel.solver.loop import iterate
from fenchel.solver.newton import HALFWAY
from fenchel.solver.options import check_call, check_curved, check_evidence, check_iterations
from fenchel.solver.staged import MARGIN

__all__ = ["gradient_ascent"]

WORKING_ARRAYS = 12


def gradient_ascent(
    problem: Problem,
    *,
    tol: float = 1e-6,
    max_steps: int = 10_000,
    throw: bool = True,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
) -> Estimate:
    r"""Climb the dual from αz along its gradient, with a step that doubles on success and halves on failure.

    .. math:: \lambda \leftarrow \lambda + \eta\,\nabla\mathcal{D}(\lambda)

    A step is kept where the gradient gets shorter. The first and smallest η is one over a bound on the Hessian, with
    which it always does: :math:`1 / (\alpha^{-1} + \max_i\lVert t_i - \bar t\rVert^2/\sigma)` where there are
    templates. A preference that has no such bound begins with η = α, and no step is smallest.

    Args:
        problem: What to solve.
        tol: Relative tolerance on λ, certified as in :func:`~fenchel.solver.exact`.
        max_steps: Steps a query may take.
        throw: Raise where the tolerance is not met.
        memory_budget: Bytes of working memory.

    Returns:
        The estimate with its bounds.

    Raises:
        ProblemError: If the tolerance is not positive, and on evidence that :func:`~fenchel.solver.exact` refuses.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Section 8: "performing gradient ascent".

    Example:
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(2, dtype=torch.float64))
        >>> slow = gradient_ascent(InferenceProblem(u, torch.tensor([[1.0, 0.0]], dtype=torch.float64)))
        >>> bool(slow.converged.all())
        True
    """
    check_call(problem, memory_budget)
    check_curved(problem, "gradient_ascent")
    check_iterations(tol, max_steps, throw)
    check_evidence(problem.evidence, problem.alpha_column)
    builder = EstimateBuilder(problem, tol)
    itemsize = torch.finfo(problem.dtype).bits // 8
    with torch.no_grad():
        for groups, rows, block in builder.layout.blocks(memory_budget, WORKING_ARRAYS, itemsize):
            method = _Ascent()
            outcome = iterate(
                method.step,
                method.start(block),
                tol=MARGIN * tol,
                max_steps=max_steps,
                selectable=block.response.selectable,
            )
            certificate = certify(block.to(torch.float64), outcome.state.dual.double(), problem.dtype)
            builder.put(groups[:, None], rows[None, :], certificate, outcome.steps)
    estimate = builder.build()
    if throw:
        check_convergence(estimate, tol, max_steps)
    return estimate


@dataclass(frozen=True)
class _AscentState:
    block: AbstractBlock
    first_order_norm: Tensor
    alpha: Tensor
    dual: Tensor
    gradient: Tensor
    size: Tensor
    step: Tensor
    safe_step: Tensor
    error: Tensor
    stalled: Tensor


class _Ascent:
    def start(self, block: AbstractBlock) -> _AscentState:
        g, r = block.evidence.shape[:2]
        alpha = block.alpha.expand(g, r, 1)
        bound, first = block.smoothness(), alpha * block.evidence
        reach = block.response.reach(torch.zeros_like(first), first) if block.offsets is None else None
        start = first if reach is None else first * torch.where(reach > 1, 1, HALFWAY * reach).unsqueeze(-1)
        state = _AscentState(
            block=block,
            first_order_norm=first.norm(dim=-1),
            alpha=alpha,
            dual=start,
            gradient=torch.zeros_like(first),
            size=torch.zeros_like(alpha),
            step=alpha if bound is None else 1 / (1 / alpha + bound),
            safe_step=torch.zeros_like(alpha) if bound is None else 1 / (1 / alpha + bound),
            error=torch.zeros_like(first[..., 0]),
            stalled=torch.zeros_like(first[..., 0], dtype=torch.bool),
        )
        return self._moved(state, start)

    def _moved(self, state: _AscentState, dual: Tensor) -> _AscentState:
        gradient = state.block.evidence - dual / state.alpha - state.block.shift(dual)
        reference = reference_norm(dual.norm(dim=-1), state.first_order_norm)
        size = gradient.norm(dim=-1, keepdim=True)
        error = (state.alpha * size).squeeze(-1) / reference
        return replace(
            state, dual=dual, gradient=gradient, size=size, error=error.masked_fill(size.squeeze(-1) == 0, 0)
        )

    def step(self, state: _AscentState, active: Tensor) -> _AscentState:
        tried = self._moved(state, state.dual + state.step * state.gradient)
        kept = (tried.size < state.size) | (state.step <= state.safe_step)
        kept &= active.unsqueeze(-1)
        halved = torch.maximum(state.step / 2, state.safe_step)
        step = torch.where(kept, 2 * state.step, torch.where(active.unsqueeze(-1), halved, state.step))
        return replace(
            state,
            dual=torch.where(kept, tried.dual, state.dual),
            gradient=torch.where(kept, tried.gradient, state.gradient),
            size=torch.where(kept, tried.size, state.size),
            error=torch.where(kept.squeeze(-1), tried.error, state.error),
            step=step,
        )
