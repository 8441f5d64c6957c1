r"""How far the attention of one layer is from the inference that it approximates, query by query.

With λ = αz what attention uses, λ* the exact dual point, λ₂ the second-order one, p̂, p* and ĥ, h* weights and means:

=========================  ================================================================================
relative_deviation         :math:`\lVert\lambda^\star - \alpha z\rVert / \lVert\lambda^\star\rVert`
second_order_deviation     :math:`\lVert\lambda^\star - \lambda_2\rVert / \lVert\lambda^\star\rVert`
total_variation            :math:`\frac12\sum_i\lvert \hat p_i - p^\star_i\rvert`
mean_error                 :math:`\lVert\hat h - h^\star\rVert / \lVert h^\star\rVert`
certificate                :math:`\lVert\hat h - \mu\rVert / (\lVert z\rVert - \lVert\hat h - \mu\rVert)`, or infinity
gap                        :math:`\frac\alpha2\lVert\hat h - \mu\rVert^2`
=========================  ================================================================================

The certificate bounds the relative deviation (fact 2) and the gap is attention's suboptimality (fact 1);
neither needs the exact solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fenchel.audit.capture import AttentionCall
from fenchel.audit.heads import METRICS
from fenchel.audit.layer import LayerBlock, LayerProblem, layer_problem
from fenchel.blocks import DEFAULT_MEMORY_BUDGET
from fenchel.solver.conjugate_gradient import newton_direction
from fenchel.solver.coordinates import AbstractCoordinates, GramCoordinates, centre, dot
from fenchel.solver.direct import hessian
from fenchel.solver.exact import WORKING_ARRAYS, coordinates_for, low_precision_for
from fenchel.solver.loop import Outcome, iterate
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.rows import Rows

__all__ = ["Measures", "WorstQueries", "measure"]


@dataclass(frozen=True)
class WorstQueries:
    """The counted query of each sequence and head at which the two answers are farthest apart.

    Attributes:
        position: Its index, the first of equals, or -1 where no query is counted; (batch, heads).
        first_order: Its weights in the model's attention, (batch, heads, n).
        exact: Its weights in the exact answer, (batch, heads, n).
    """

    position: Tensor
    first_order: Tensor
    exact: Tensor


@dataclass(frozen=True)
class Measures:
    """What was measured on one attention call.

    Attributes:
        values: For each of ``METRICS``, a number a query, (batch, heads, m); meaningless where a query is not counted.
        newton_steps: Steps that the exact solve took, (batch, heads, m).
        converged: Whether it met the tolerance, bool (batch, heads, m).
        worst: The queries by which a report shows what the numbers mean.
    """

    values: dict[str, Tensor]
    newton_steps: Tensor
    converged: Tensor
    worst: WorstQueries | None = None


def measure(
    call: AttentionCall,
    *,
    space: str,
    alpha: float = 1.0,
    tol: float = 2e-5,
    max_steps: int = 50,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    heads: Sequence[int] | None = None,
) -> Measures:
    """Measure every query of a captured attention call.

    Args:
        call: What reached the attention function.
        space: ``"input"`` or ``"key"``: what templates and evidence are (:mod:`fenchel.audit.layer`).
        alpha: α > 0.
        tol: Relative tolerance of the exact solve on λ.
        max_steps: Newton steps a query may take.
        memory_budget: Bytes of working memory.
        heads: Heads to measure, from 1; all where None.

    Returns:
        The measures, in float64 for a float64 model and float32 otherwise.
    """
    with torch.no_grad():
        problem = layer_problem(call, space, heads)
        shape = problem.queries.shape[:3]
        values = {name: problem.queries.new_empty(shape) for name in METRICS}
        steps = torch.zeros(shape, dtype=torch.int64, device=problem.queries.device)
        converged = torch.zeros(shape, dtype=torch.bool, device=problem.queries.device)
        counted = call.counted.repeat_interleave(shape[0] // problem.batch, 0).unsqueeze(1).expand(shape)
        worst = _Worst(problem)
        group = None
        for block in problem.blocks(memory_budget, WORKING_ARRAYS):
            if group is None or group.where != block.where[0]:
                group = _GroupMeasure(problem, block.where[0], alpha, tol, max_steps)
            where = block.where
            first, outcome = group.solve(block, counted[where])
            for name, value in group.measures(block, first, outcome.state).items():
                values[name][where] = value
            steps[where] = outcome.steps.reshape(steps[where].shape)
            converged[where] = outcome.converged.reshape(steps[where].shape)
            worst.look(where, values["total_variation"][where], counted[where], first, outcome.state)
        return Measures(
            {name: problem.by_head(value) for name, value in values.items()},
            problem.by_head(steps),
            problem.by_head(converged),
            worst.found(problem),
        )


class _Worst:
    """Keeps the worst query of every head while blocks go by."""

    def __init__(self, problem: LayerProblem) -> None:
        groups, heads = problem.queries.shape[:2]
        new = problem.queries.new_zeros
        self._value = new(groups, heads) - 1
        self._position = torch.full_like(self._value, -1, dtype=torch.int64)
        self._weights = new(2, groups, heads, problem.templates.shape[1])

    def look(
        self,
        where: tuple[slice, slice, slice],
        variation: Tensor,
        counted: Tensor,
        first: NewtonState,
        exact: NewtonState,
    ) -> None:
        g, h, q = where
        variation = variation.masked_fill(~counted, -1)
        position = variation.argmax(-1, keepdim=True)
        value = variation.gather(-1, position).squeeze(-1)
        worse = value > self._value[g, h]
        self._value[g, h] = torch.where(worse, value, self._value[g, h])
        self._position[g, h] = torch.where(worse, position.squeeze(-1) + q.start, self._position[g, h])
        for number, weights in enumerate((first.weights, exact.weights)):
            row = position.unsqueeze(-1).expand(*position.shape, weights.shape[-1])
            chosen = weights.reshape(*variation.shape, -1).gather(2, row).squeeze(2)
            kept = self._weights[number, g, h]
            self._weights[number, g, h] = torch.where(worse.unsqueeze(-1), chosen, kept)

    def found(self, problem: LayerProblem) -> WorstQueries:
        first_order, exact = (problem.by_head(weights) for weights in self._weights)
        position = self._position.reshape(problem.batch, -1)
        return WorstQueries(position, first_order, exact)


class _GroupMeasure:
    """Measures blocks of queries that share templates, and so a Gram matrix and what can be derived from it once.

    Args:
        problem: The layer.
        where: The groups.
        alpha: α.
        tol: Relative tolerance.
        max_steps: Newton steps at most.
    """

    def __init__(self, problem: LayerProblem, where: slice, alpha: float, tol: float, max_steps: int) -> None:
        self.where = where
        self._tol, self._max_steps = tol, max_steps
        self._alpha = problem.queries.new_full((1, 1, 1), alpha)
        preference = problem.log_preference
        self._preference = preference if len(preference) == 1 else preference[where]
        templates = problem.templates[where]
        self._centre = centre(templates, self._preference.flatten(1, 2))
        self._templates = templates - self._centre
        self._keys = problem.keys[where]
        self._coordinates = coordinates_for(self._templates)
        self._low_precision = low_precision_for(self._coordinates)

    def solve(self, block: LayerBlock, counted: Tensor) -> tuple[NewtonState, Outcome[NewtonState]]:
        """Attention and exact solution of a block's queries; those not counted (g, h, q) are left at attention."""
        method = Newton(self._coordinates, tol=self._tol, low_precision=self._low_precision)
        first = method.start(self._rows(block))
        # Rows that are not counted leave the loop before its first step.
        first = replace(first, stalled=~counted.reshape(first.error.shape))
        return first, iterate(method.step, first, tol=self._tol, max_steps=self._max_steps)

    def measures(self, block: LayerBlock, first: NewtonState, exact: NewtonState) -> dict[str, Tensor]:
        """Each of ``METRICS``, (g, h, q)."""
        c, rows = self._coordinates, first.rows
        shape = block.queries.shape[:3]
        shift = first.square.squeeze(-1).sqrt()
        room = rows.evidence_square.squeeze(-1).sqrt() - shift
        moved, lifted = exact.x - first.x, exact.lifted - first.lifted
        values = {
            "relative_deviation": c.inner(moved, moved, lifted).clamp(min=0).sqrt() / exact.dual_norm,
            "second_order_deviation": self._second_order_distance(block, rows, first, exact)
            / exact.dual_norm,
            "total_variation": (first.weights - exact.weights).abs().sum(-1) / 2,
            "mean_error": self._mean_error(rows, first, exact),
            "certificate": torch.where(room > 0, shift / room, torch.full_like(room, torch.inf)),
            "gap": self._alpha[..., 0] / 2 * shift.square(),
        }
        still = (exact.dual_norm == 0).reshape(shape)
        shaped = {name: value.reshape(shape) for name, value in values.items()}
        for name in ("relative_deviation", "second_order_deviation", "certificate"):
            # No evidence: λ* = αz = 0, and every estimator is exact.
            shaped[name] = shaped[name].masked_fill(still, 0)
        return shaped

    def _rows(self, block: LayerBlock) -> Rows:
        g, h, q = block.queries.shape[:3]
        preference = block.log_preference
        if max(preference.shape[1:3]) > 1:
            preference = preference.expand(-1, h, q, -1)
        preference = preference.flatten(1, 2)
        gram = isinstance(self._coordinates, GramCoordinates)
        evidence = block.scores() if gram else block.evidence()
        return Rows(
            preference,
            preference.softmax(-1),
            self._alpha,
            evidence.reshape(g, h * q, -1),
            block.evidence_square().reshape(g, h * q, 1),
        )

    def _mean_error(self, rows: Rows, first: NewtonState, exact: NewtonState) -> Tensor:
        r"""‖ĥ - h*‖ / ‖h*‖, from residuals and lifts that are already there.

        A residual is P(u - p) + o - x, so that P(p̂ - p*) is a difference of residuals and points, and P p* follows from
        P u, which rows with the same preference share.
        """
        c = self._coordinates
        error = exact.residual - first.residual + exact.x - first.x
        lifted = exact.lifted_residual - first.lifted_residual + exact.lifted - first.lifted
        preferred = c.pull(rows.preference)
        mean = preferred - exact.residual + c.from_origin(rows, exact.x)
        lifted_mean = c.lift(preferred) - exact.lifted_residual + first.lifted - exact.lifted
        along = (self._centre @ self._templates.mT).expand_as(exact.weights)
        size = (
            self._centre.square().sum(-1) + 2 * dot(exact.weights, along) + c.inner(mean, mean, lifted_mean)
        )
        return (
            c.inner(error, error, lifted).clamp(min=0) / size.clamp(min=torch.finfo(size.dtype).tiny)
        ).sqrt()

    def _second_order_distance(
        self, block: LayerBlock, rows: Rows, first: NewtonState, exact: NewtonState
    ) -> Tensor:
        """‖λ* - λ₂‖/α, (g, r)."""
        if rows.log_preference.shape[1] > 1:
            found, lifted = self._second_order_by_row(rows, first)
        elif isinstance(self._coordinates, GramCoordinates):
            found, lifted = (self._applied(maps, block) for maps in self._second_order_maps)
        else:
            found = (rows.evidence.double() @ self._second_order_matrix).to(rows.evidence.dtype)
            lifted = exact.lifted
        apart = exact.x - found
        return self._coordinates.inner(apart, apart, exact.lifted - lifted).clamp(min=0).sqrt()

    @cached_property
    def _second_order_maps(self) -> tuple[Tensor, Tensor]:
        r"""Maps from queries to x₂ = -(I + αD_u G)⁻¹αD_u s and to its lift, each (g, heads or 1, d_h, n).

        Scores are linear in a query of d_h numbers, s = Kq, so the system is solved for the columns of K, once for
        all queries.
        """
        gram = self._coordinates.operator
        u = self._preference.flatten(1, 2).double().exp().mT
        g, heads, n, width = self._keys.shape
        keys = self._keys.transpose(1, 2).flatten(2)
        alpha = self._alpha.double()
        matrix = alpha * u * (gram - u.mT @ gram.double())
        matrix.diagonal(dim1=-2, dim2=-1).add_(1)
        # Inverted in float64, whatever α; what it is multiplied with is no more precise than the model.
        inverse = torch.linalg.inv(matrix).to(gram.dtype)
        weight = (alpha * u).to(gram.dtype)
        maps = -inverse @ (weight * (keys - u.mT.to(gram.dtype) @ keys))
        shaped = ((part.reshape(g, n, heads, width).permute(0, 2, 3, 1)) for part in (maps, gram @ maps))
        found, lifted = (part.contiguous() for part in shaped)
        return found, lifted

    @cached_property
    def _second_order_matrix(self) -> Tensor:
        """(I + αΣ)⁻¹, (g, d, d), by which the row of evidence is multiplied."""
        preference = self._preference.flatten(1, 2).double().exp()
        matrix = hessian(self._templates.double(), preference, self._alpha.double())
        return torch.linalg.inv(matrix.squeeze(1))

    def _applied(self, maps: Tensor, block: LayerBlock) -> Tensor:
        """Maps (g, heads or 1, d_h, n) applied to the block's queries, (g, r, n)."""
        chosen = maps[:, block.where[1]] if maps.shape[1] > 1 else maps
        return (block.queries @ chosen).flatten(1, 2)

    def _second_order_by_row(self, rows: Rows, first: NewtonState) -> tuple[Tensor, Tensor]:
        """x₂ by conjugate gradients, where every query has its own preference."""
        c: AbstractCoordinates = self._coordinates
        scores = c.scores(rows, first.lifted)
        images = rows.preference * (scores - dot(rows.preference, scores).unsqueeze(-1))
        right = -self._alpha * c.pull(images)
        lifted = c.lift(right)
        target = (0.25 * self._tol) ** 2 * rows.evidence_square
        found = newton_direction(
            c,
            self._alpha,
            rows.preference.expand_as(images),
            right,
            lifted,
            c.inner(right, right, lifted).unsqueeze(-1),
            target,
            max_iterations=200,
        )
        return first.x + found.step, first.lifted + found.lifted
