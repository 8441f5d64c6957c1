r"""What an audit measures of a layer under a closeness that is no softmax, block by block, through the problem core.

Attention is the first-order answer p(αz) under that closeness; λ* is solved for in the working dtype by the one
certified driver, and everything that is compared is computed in float64 from data and dual points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fenchel.auditing.layer import LayerBlock, LayerProblem
from fenchel.closeness import AbstractCloseness
from fenchel.conjugate import conjugate_of
from fenchel.layout import layout_of
from fenchel.preference import Discrete
from fenchel.problem import Problem
from fenchel.solver.closed_form import second_order_point
from fenchel.solver.exact import WORKING_ARRAYS, solved_block

__all__ = ["CloseSolution", "close_solutions"]

ARRAYS = 40
"""Arrays of shape (rows, max(n, d)) alive at once, those in float64 counted twice beside a narrower dtype."""

BEYOND = 0.05
"""How far below the tolerance λ* is solved for, so that what is compared with it is its own."""


@dataclass(frozen=True)
class CloseSolution:
    """Attention's answer and the exact one of every query of a block.

    Attributes:
        block: The queries.
        problem: Theirs, in float64, with (g, h, q) queries.
        dual: λ*, float64, (g, h, q, d).
        second: λ₂, float64, (g, h, q, d).
        steps: Of the exact solve, (g, h, q).
        converged: Whether the float64 certificate meets the tolerance, bool (g, h, q).
        error: A bound on the error of λ*, float64, (g, h, q).
    """

    block: LayerBlock
    problem: Problem
    dual: Tensor
    second: Tensor
    steps: Tensor
    converged: Tensor
    error: Tensor

    @cached_property
    def _first(self) -> Tensor:
        return self.problem.alpha_column * self.problem.evidence

    @cached_property
    def _inferred(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Weights and shift h - μ of attention's answer, and of the exact one."""
        return self.problem.finite.infer(self._first), self.problem.finite.infer(self.dual)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r, n), in the dtype of the queries."""
        first, exact = (found[0].flatten(1, 2).to(self.block.queries.dtype) for found in self._inferred)
        return first, exact

    def measures(self) -> dict[str, Tensor]:
        """Each of ``MEASURES`` that needs no weights, (g, h, q)."""
        (first, of_first), (exact, of_exact) = self._inferred
        problem, lam = self.problem, self._first
        dual_norm, shift = self.dual.norm(dim=-1), of_first.norm(dim=-1)
        room = problem.evidence.norm(dim=-1) - shift
        least = torch.finfo(torch.float64).tiny
        mean = (problem.conjugate.rest_mean() + of_exact).norm(dim=-1)
        values = {
            "relative_deviation": (self.dual - lam).norm(dim=-1) / dual_norm,
            "second_order_deviation": (self.dual - self.second).norm(dim=-1) / dual_norm,
            "total_variation": (first - exact).abs().sum(-1) / 2,
            "mean_error": (of_first - of_exact).norm(dim=-1) / mean.clamp(min=least),
            "certificate": torch.where(room > 0, shift / room, torch.inf),
            "gap": problem.alpha / 2 * shift.square(),
            "predicted_deviation": (self.second - lam).norm(dim=-1)
            / self.second.norm(dim=-1).clamp(min=least),
            "evidence_norm": problem.evidence.norm(dim=-1),
            "dual_error": self.error / dual_norm,
        }
        for name in (
            "relative_deviation",
            "second_order_deviation",
            "certificate",
            "predicted_deviation",
            "dual_error",
        ):
            # No evidence: λ* = αz = 0, and every estimator is exact.
            values[name] = values[name].masked_fill(dual_norm == 0, 0)
        return {name: value.to(self.block.queries.dtype) for name, value in values.items()}


def close_solutions(
    problem: LayerProblem,
    counted: Tensor,
    *,
    closeness: AbstractCloseness,
    alpha: float,
    tol: float,
    max_steps: int,
    memory_budget: int,
) -> Iterator[CloseSolution]:
    """Solve a layer under a closeness.

    Args:
        problem: The layer.
        counted: Queries that are wanted, bool (groups, heads, m); the others are given no evidence.
        closeness: D.
        alpha: α > 0.
        tol: Relative tolerance on λ that the float64 certificate has to meet.
        max_steps: Steps that a query may take.
        memory_budget: Bytes of working memory.

    Yields:
        Solutions of blocks of queries that together make the layer.
    """
    for block in problem.blocks(memory_budget, ARRAYS):
        g, h, _ = block.where
        queries = block.queries * counted[block.where].unsqueeze(-1)
        evidence = queries if problem.lift is None else queries @ problem.lift[h]
        templates = (problem.vectors[g] * problem.scaling).unsqueeze(1)
        believed = Discrete(templates, block.log_preference)
        asked = Problem(conjugate_of(believed, closeness), evidence, alpha)
        yield _solved(block, asked, counted[block.where], tol, max_steps, memory_budget)


def _solved(
    block: LayerBlock, problem: Problem, counted: Tensor, tol: float, max_steps: int, memory_budget: int
) -> CloseSolution:
    layout, itemsize = layout_of(problem), torch.finfo(problem.dtype).bits // 8
    dual, second = (layout.empty(problem.conjugate.dim, dtype=torch.float64) for _ in range(2))
    error = layout.empty(dtype=torch.float64)
    steps, converged = layout.empty(dtype=torch.int64), layout.empty(dtype=torch.bool)
    for groups, rows, part in layout.blocks(memory_budget, WORKING_ARRAYS, itemsize):
        where = (groups[:, None], rows[None, :])
        certificate, steps[where] = solved_block(part, problem.dtype, tol=BEYOND * tol, max_steps=max_steps)
        dual[where], converged[where] = certificate.dual.double(), certificate.meets(tol)
        error[where] = certificate.dual_error.double()
        second[where] = second_order_point(part.to(torch.float64))
    back = layout.restore
    return CloseSolution(
        block,
        problem.to(torch.float64),
        back(dual),
        back(second),
        back(steps),
        back(converged) & counted,
        back(error),
    )
