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
from functools import cached_property

import torch
from torch import Tensor

from fenchel.auditing.capture import AttentionCall
from fenchel.auditing.close_solution import CloseSolution
from fenchel.auditing.farthest import FarthestQueries, FarthestSearch
from fenchel.auditing.heads import METRICS
from fenchel.auditing.largest_move import LargestMoves, LargestMoveSearch
from fenchel.auditing.layer import layer_problem
from fenchel.auditing.pattern import PatternSearch, PatternSums, TokenClasses
from fenchel.auditing.solution import BlockSolution, PartSolution
from fenchel.auditing.solving import solutions_of
from fenchel.closeness import AbstractCloseness
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.native import kernels
from fenchel.solver.conjugate_gradient import newton_direction
from fenchel.solver.coordinates import GramCoordinates, dot
from fenchel.solver.served import served

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
            found = solution.measures() if isinstance(solution, CloseSolution) else _measures(solution)
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


def _measures(solution: BlockSolution) -> dict[str, Tensor]:
    """Each of ``METRICS``, (g, h, q)."""
    values = _PartMeasures(solution, solution.whole).values()
    for index, part in solution.factorised:
        for name, value in _PartMeasures(solution, part).values().items():
            values[name] = values[name].scatter(1, index, value.to(values[name].dtype))
    shape = solution.block.queries.shape[:3]
    return {name: value.reshape(shape) for name, value in values.items()}


class _PartMeasures:
    """Measures rows (g, r) of a block in the coordinates in which they were solved."""

    def __init__(self, solution: BlockSolution, part: PartSolution) -> None:
        self._group, self._block = solution.group, solution.block
        self._whole, self._part = part is solution.whole, part
        self._c, self._first, self._exact, self._rows = (
            part.coordinates,
            part.first,
            part.exact,
            part.first.rows,
        )

    def values(self) -> dict[str, Tensor]:
        """Each of ``METRICS``, (g, r)."""
        first, exact = self._first, self._exact
        shift = first.square.squeeze(-1).sqrt()
        room = self._rows.evidence_square.squeeze(-1).sqrt() - shift
        values = {
            "relative_deviation": exact.moved / exact.dual_norm,
            "second_order_deviation": self._second_order_distance() / exact.dual_norm,
            "total_variation": self._part.variation,
            "mean_error": self._mean_error(),
            "certificate": torch.where(room > 0, shift / room, torch.full_like(room, torch.inf)),
            "gap": self._rows.alpha[..., 0] / 2 * shift.square(),
            "predicted_deviation": self._predicted_deviation(),
        }
        still = exact.dual_norm == 0
        for name in ("relative_deviation", "second_order_deviation", "certificate", "predicted_deviation"):
            # No evidence: λ* = αz = 0, and every estimator is exact.
            values[name] = values[name].masked_fill(still, 0)
        return values

    def _mean_error(self) -> Tensor:
        """‖ĥ - h*‖ / ‖h*‖, from residuals and lifts that are already there.

        A point stands for the mean c - λ/α: attention's for P u, so that P ĥ is P u less the residual there.
        """
        dtype, centre = self._exact.mean.dtype, self._group.centre
        error, product, square = self._mean_products()
        size = centre.to(dtype).square().sum(-1) + 2 * product + square
        return (error.clamp(min=0) / size.clamp(min=torch.finfo(dtype).tiny)).sqrt()

    def _mean_products(self) -> tuple[Tensor, ...]:
        """‖ĥ - h*‖², the weighted products of templates with their centre, and ‖h* - centre‖², each (g, r)."""
        c, first, exact, rows = self._c, self._first, self._exact, self._rows
        preferred = c.pull(rows.rest)
        known = isinstance(c, GramCoordinates) and self._group.shares_preference
        lifted_preferred = self._group.lifted_preference if known else c.lift(preferred)
        parts = (first.residual, first.lifted_residual, exact.mean, exact.image)
        native = served(c, rows, *parts)
        if native is not None:
            shared = {
                "rest": native.rest,
                "lifted_rest": lifted_preferred,
                "centre": self._group.centre_products,
            }
            return tuple(kernels.mean_error(rows.evidence, *parts, self._part.weights[1], **shared))
        if isinstance(c, GramCoordinates):
            across = (self._part.weights[1] @ self._group.centre_products.mT).squeeze(-1)
        else:
            across = dot(exact.mean, self._group.centre.to(exact.mean.dtype).expand_as(exact.mean))
        moved = exact.image - c.scaled_potential(rows, first.lifted)
        error = (preferred - exact.mean).sub_(first.residual)
        return (
            c.inner(error, error, moved - first.lifted_residual),
            across,
            c.inner(exact.mean, exact.mean, lifted_preferred - moved),
        )

    def _second_order_distance(self) -> Tensor:
        """‖λ* - λ₂‖/α, (g, r)."""
        exact, first, rows = self._exact, self._first, self._rows
        if not self._group.shares_preference:
            found, lifted = self._second_order_by_row
            lifted = lifted - first.lifted
        elif isinstance(self._c, GramCoordinates):
            found, lifted = (self._applied(maps) for maps in self._group.second_order_maps)
        else:
            found = (rows.evidence.double() @ self._group.second_order_matrix).to(rows.evidence.dtype)
            lifted = torch.zeros_like(exact.potential)
        if served(self._c, rows, exact.x, exact.potential, found, lifted):
            return (
                kernels.distance(rows.evidence, exact.x, exact.potential, found, lifted).clamp_(min=0).sqrt_()
            )
        apart, start = exact.x - found, self._c.scaled_potential(rows, first.lifted)
        return self._c.inner(apart, apart, exact.potential - start - lifted).clamp(min=0).sqrt()

    def _applied(self, maps: Tensor) -> Tensor:
        """Maps (g, heads or 1, d_h, n) applied to the block's queries, (g, r, n)."""
        chosen = maps[:, self._block.where[1]] if maps.shape[1] > 1 else maps
        return (self._block.queries @ chosen).flatten(1, 2)

    def _predicted_deviation(self) -> Tensor:
        """‖λ₂ - αz‖ / ‖λ₂‖, (g, r)."""
        c, group, rows = self._c, self._group, self._rows
        if group.shares_preference and self._whole:
            queries = self._block.queries.double()
            of_block = (
                form[:, self._block.where[1]] if form.shape[1] > 1 else form
                for form in group.second_order_forms
            )
            moved, reached = (dot(queries @ form, queries).flatten(1, 2) for form in of_block)
        elif group.shares_preference:
            point = rows.evidence @ group.second_order_matrix
            moved, reached = dot(point - rows.evidence, point - rows.evidence), dot(point, point)
        else:
            point, lifted = self._second_order_by_row
            apart = point - self._first.x
            moved = c.inner(apart, apart, lifted - self._first.lifted)
            reached = c.dual_square(rows, point, lifted)
        reached = reached.clamp(min=torch.finfo(reached.dtype).tiny)
        return (moved.clamp(min=0) / reached).sqrt().to(self._exact.dual_norm.dtype)

    @cached_property
    def _second_order_by_row(self) -> tuple[Tensor, Tensor]:
        """x₂ by conjugate gradients, where every query has its own preference."""
        c, rows, first = self._c, self._rows, self._first
        scores = c.scores(rows, first.lifted)
        curvature = rows.response.curvature(torch.zeros_like(scores), rows.rest.expand_as(scores))
        right = -rows.alpha * c.pull(curvature(scores))
        lifted = c.lift(right)
        target = (0.25 * self._group.tol) ** 2 * rows.evidence_square
        found = newton_direction(
            c,
            rows.alpha,
            curvature,
            right,
            lifted,
            c.inner(right, right, lifted).unsqueeze(-1),
            target,
            max_iterations=200,
        )
        return first.x + found.step, first.lifted + found.lifted
