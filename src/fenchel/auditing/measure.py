r"""How far the attention of one layer is from the inference that it approximates, query by query.

With λ = αz what attention uses, λ* the exact dual point, λ₂ the second-order one, p̂, p* and ĥ, h* weights and means:

=========================  ================================================================================
relative_deviation         :math:`\lVert\lambda^\star - \alpha z\rVert / \lVert\lambda^\star\rVert`
second_order_deviation     :math:`\lVert\lambda^\star - \lambda_2\rVert / \lVert\lambda^\star\rVert`
total_variation            :math:`\frac12\sum_i\lvert \hat p_i - p^\star_i\rvert`
mean_error                 :math:`\lVert\hat h - h^\star\rVert / \lVert h^\star\rVert`
certificate                :math:`\lVert\hat h - \mu\rVert / (\lVert z\rVert - \lVert\hat h - \mu\rVert)`, or infinity
gap                        :math:`\frac\alpha2\lVert\hat h - \mu\rVert^2`
predicted_deviation        :math:`\lVert\lambda_2 - \alpha z\rVert / \lVert\lambda_2\rVert`
=========================  ================================================================================

The certificate bounds the relative deviation (fact 2) and the gap bounds attention's suboptimality (fact 1); neither
needs the exact solution. As λ₂ - αz = -αΣλ₂, the predicted deviation is what the covariance Σ of the preference alone
makes of the relative deviation (fact 14). λ* is a point whose own certificate, computed in float64, meets the tolerance
(:mod:`fenchel.auditing.solution`); a query for which there is none is not ``converged``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.capture import AttentionCall
from fenchel.auditing.farthest import FarthestQueries, FarthestSearch
from fenchel.auditing.heads import METRICS
from fenchel.auditing.largest_move import LargestMoves, LargestMoveSearch
from fenchel.auditing.layer import layer_problem
from fenchel.auditing.pattern import PatternSearch, PatternSums, TokenClasses
from fenchel.auditing.solving import solutions_of
from fenchel.closeness import AbstractCloseness
from fenchel.layout import DEFAULT_MEMORY_BUDGET

__all__ = ["Measures", "measure"]


@dataclass(frozen=True)
class Measures:
    """What was measured on one attention call.

    Attributes:
        values: For each of ``METRICS``, a number a query, (batch, heads, m); meaningless where a query is not counted.
        newton_steps: Steps that the exact solve took, (batch, heads, m).
        converged: Whether the float64 certificate of the exact point meets the tolerance, bool (batch, heads, m); false
            where a query is not counted.
        farthest: The queries that may be shown, with their weights.
        patterns: What moved between which tokens; None where the tokens were not given.
        moves: The key of every query whose weight moves most; None where it was not asked for.
    """

    values: dict[str, Tensor]
    newton_steps: Tensor
    converged: Tensor
    farthest: FarthestQueries | None = None
    patterns: PatternSums | None = None
    moves: LargestMoves | None = None

    def cpu(self) -> Measures:
        """The same on the CPU, without the queries that a report shows."""
        return Measures(
            values={name: values.cpu() for name, values in self.values.items()},
            newton_steps=self.newton_steps.cpu(),
            converged=self.converged.cpu(),
            patterns=None if self.patterns is None else self.patterns.cpu(),
        )


def measure(
    call: AttentionCall,
    *,
    space: str,
    closeness: AbstractCloseness | None = None,
    alpha: float = 1.0,
    tol: float = 2e-4,
    max_steps: int = 50,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    heads: Sequence[int] | None = None,
    tokens: TokenClasses | None = None,
    moves: bool = False,
    beginning: tuple[int, int] | None = None,
) -> Measures:
    """Measure every query of a captured attention call.

    Args:
        call: What reached the attention function.
        space: ``"input"`` or ``"key"``: what templates and evidence are (:mod:`fenchel.auditing.layer`).
        closeness: D, under which attention is the first-order answer; None is softmax.
        alpha: α > 0.
        tol: Relative tolerance on λ that the float64 certificate of an exact point has to meet.
        max_steps: Steps a query may take.
        memory_budget: Bytes of working memory.
        heads: Heads to measure, from 1; all where None.
        tokens: What queries and keys are, to see what moves between them.
        moves: Find the key of every query whose weight moves most.
        beginning: A row of the batch and how many of its first queries have their weights kept.

    Returns:
        The measures, in float64 for a float64 model and float32 otherwise.
    """
    with torch.no_grad():
        problem = layer_problem(call, space, heads)
        shape = problem.queries.shape[:3]
        values = {name: problem.queries.new_empty(shape) for name in METRICS}
        steps = torch.zeros(shape, dtype=torch.int64, device=problem.queries.device)
        converged = torch.zeros(shape, dtype=torch.bool, device=problem.queries.device)
        counted = problem.counted(call)
        farthest = FarthestSearch(problem, beginning)
        patterns = None if tokens is None else PatternSearch(problem, tokens)
        largest = LargestMoveSearch(problem) if moves else None
        for solution in solutions_of(
            problem,
            counted,
            closeness=closeness,
            alpha=alpha,
            tol=tol,
            max_steps=max_steps,
            memory_budget=memory_budget,
        ):
            where = solution.block.where
            found = solution.measures()
            for name, value in found.items():
                values[name][where] = value
            steps[where] = solution.steps
            converged[where] = solution.converged
            weights = solution.weights()
            farthest.look(where, found["total_variation"], counted[where], weights)
            if patterns is not None:
                patterns.add(where, *weights)
            if largest is not None:
                largest.look(where, *weights)
        return Measures(
            {name: problem.by_head(value) for name, value in values.items()},
            problem.by_head(steps),
            problem.by_head(converged),
            farthest.found(problem),
            None if patterns is None else patterns.found(problem.batch),
            None if largest is None else largest.found(problem),
        )
