"""The exact solution of every query of a layer, block by block, certified in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from fenchel.auditing.capture import AttentionCall
from fenchel.auditing.group import LayerGroup, solved_by_passes
from fenchel.auditing.layer import LayerBlock, LayerProblem, layer_problem
from fenchel.layout import DEFAULT_MEMORY_BUDGET, rows_in_block
from fenchel.native import kernels
from fenchel.selection import rows_where
from fenchel.solver.certified import CertifiedSolver
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.passes import PassResponse
from fenchel.solver.served import served
from fenchel.solver.staged import refine_rows

__all__ = ["BlockSolution", "PartSolution", "exact_duals", "exact_solutions"]

WORKING_ARRAYS = 32
"""Arrays of shape (rows, max(n, d)) alive at once, those in float64 counted twice beside a narrower dtype."""

PASS_ARRAYS = 14
"""The same where rows are solved by passes: preferences, and the weights of which patterns are sums."""


@dataclass(frozen=True)
class ExactPoint:
    """The exact answers of rows, as nearly as they are known; all (g, r', ...).

    Attributes:
        x: Coordinates of the dual point, (g, r', size).
        potential: The potential over α there, up to a constant a row, (g, r', n).
        dual_norm: ‖λ‖/α, (g, r').
        moved: ‖λ/α - z‖, (g, r').
        mean: Coordinates of the mean h, (g, r', size).
        image: The potential over α of the point that stands for h, (g, r', n).
        weights: p, (g, r', n), where it came with these.
        variation: The total variation between attention's weights and p, (g, r'), likewise.
    """

    x: Tensor
    potential: Tensor
    dual_norm: Tensor
    moved: Tensor
    mean: Tensor
    image: Tensor
    weights: Tensor | None
    variation: Tensor | None

    @classmethod
    def of(
        cls,
        coordinates: AbstractCoordinates,
        first: NewtonState,
        point: tuple[Tensor, Tensor],
        answer: tuple[Tensor, Tensor],
    ) -> ExactPoint:
        """From coordinates of the dual point and its potential over α, and the same of the mean and what stands for it.

        A potential (g, r', n) may differ by a constant a row.
        """
        (x, potential), rows = point, first.rows
        native = served(coordinates, rows, first.weights, x, potential)
        if native is None:
            apart, lifted = x - first.x, potential - coordinates.scaled_potential(rows, first.lifted)
            square = coordinates.dual_square(rows, x, first.lifted + lifted)
            moved, weights, variation = coordinates.inner(apart, apart, lifted), None, None
        else:
            weights, (beyond, moved, differences) = kernels.exact_point(
                rows.evidence, first.weights, x, potential, native.log_preference, native.alpha
            )
            square, variation = rows.evidence_square.squeeze(-1) + beyond, differences / 2
        dual_norm, moved = (part.clamp(min=0).sqrt() for part in (square, moved))
        return cls(x, potential, dual_norm, moved, *answer, weights, variation)


@dataclass(frozen=True)
class PartSolution:
    """Rows of a block in one coordinate system.

    Attributes:
        coordinates: The coordinates.
        first: Where attention stands, (g, r').
        exact: The exact point, in the same dtype.
        outside: How many keys before and after those that the rows are solved with have no weight in any of them.
    """

    coordinates: AbstractCoordinates
    first: NewtonState
    exact: ExactPoint
    outside: tuple[int, int] = (0, 0)

    @cached_property
    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r', n)."""
        rows, first = self.first.rows, self.first
        if self.exact.weights is not None:
            return first.weights, self.exact.weights
        argument = rows.response.argument(rows.alpha, self.exact.potential)
        if not isinstance(rows.response, PassResponse):
            return first.weights, rows.response.at(argument)
        weights = (rows.response.weights(point) for point in (first.argument, argument))
        attention, exact = (pad(of_rows, self.outside) for of_rows in weights)
        return attention, exact

    @property
    def variation(self) -> Tensor:
        """The total variation between the two, (g, r')."""
        if self.exact.variation is not None:
            return self.exact.variation
        attention, exact = self.weights
        return (attention - exact).abs().sum(-1) / 2


@dataclass(frozen=True)
class BlockSolution:
    """Attention's point and the exact one of every query of a block.

    Attributes:
        group: What the queries share.
        block: The queries.
        point: Coordinates of the points that were certified, or were not, in float64, (g, r, size).
        whole: All rows, in the working dtype; the exact point is one iteration further than the certified one.
        factorised: Rows that this left uncertified: their indices (g, r'), and what a factorisation made of them, in
            float64.
        steps: Iterations and Newton steps, (g, h, q).
        converged: Whether the float64 certificate of the point meets the tolerance, bool (g, h, q).
    """

    group: LayerGroup
    block: LayerBlock
    point: Tensor
    whole: PartSolution
    factorised: tuple[tuple[Tensor, PartSolution], ...]
    steps: Tensor
    converged: Tensor

    def dual(self) -> Tensor:
        """The points λ that were certified, float64, (g, h, q, d)."""
        dual = self.group.dual(self.block, self.point)
        for index, part in self.factorised:
            solved = self.group.alpha * part.exact.x
            dual = dual.scatter(1, index.unsqueeze(-1).expand_as(solved), solved)
        return dual.reshape(*self.block.queries.shape[:3], -1)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r, n)."""
        first, exact = self.whole.weights
        for index, part in self.factorised:
            of_part = part.weights
            everywhere = index.unsqueeze(-1).expand_as(of_part[0])
            first = first.scatter(1, everywhere, of_part[0].to(first.dtype))
            exact = exact.scatter(1, everywhere, of_part[1].to(exact.dtype))
        return first, exact


def exact_solutions(
    problem: LayerProblem,
    counted: Tensor,
    *,
    alpha: float,
    tol: float,
    max_steps: int,
    memory_budget: int,
) -> Iterator[BlockSolution]:
    r"""Solve a layer: in its dtype, in float64 what float64 does not certify, by factorisation what is left.

    Args:
        problem: The layer.
        counted: Queries that are wanted, bool (groups, heads, m); the others are left at attention's point.
        alpha: α > 0.
        tol: Relative tolerance, :math:`\alpha\lVert\nabla\mathcal{D}(\lambda)\rVert \le \mathtt{tol}\,
            \lVert\lambda\rVert` with everything computed in float64 from what was captured.
        max_steps: Steps that a query may take.
        memory_budget: Bytes of working memory.

    Yields:
        Solutions of blocks of queries that together make the layer.
    """
    group, passes = None, solved_by_passes(problem.vectors, tol)
    arrays = PASS_ARRAYS if passes else WORKING_ARRAYS
    for block in problem.blocks(memory_budget, arrays, of_a_cache=not passes):
        if group is None or group.where != block.where[0]:
            group = LayerGroup(problem, block.where[0], alpha, tol)
        yield _solved(group, block, counted[block.where], tol, max_steps, memory_budget)


def _solved(
    group: LayerGroup, block: LayerBlock, counted: Tensor, tol: float, max_steps: int, memory_budget: int
) -> BlockSolution:
    solver = CertifiedSolver(
        group.working, group.wide, low_precision=group.low_precision, tol=tol, max_steps=max_steps
    )
    square = group.evidence_square(block)
    keys = group.usable_keys(block)
    rows, wide_rows = group.rows(block, keys, square)
    first = solver.start(rows)
    # Rows that are stalled at the start are left alone.
    first = replace(first, stalled=~counted.reshape(first.error.shape))
    found = solver.solve(first, wide_rows)
    steps, converged = found.steps, (found.error <= tol) & ~first.stalled
    point, answer = (found.further, found.potential), (found.mean, found.image)
    exact = ExactPoint.of(group.working, first, point, answer)
    outside = keys.start, group.templates.shape[1] - keys.stop
    whole = PartSolution(group.working, first, exact, outside)
    factorised: list[tuple[Tensor, PartSolution]] = []
    failing = ~converged & ~first.stalled & (steps < max_steps)
    if bool(failing.any()):
        # In float64 and template coordinates a row takes several times what it took until here, and a Hessian more.
        most = rows_in_block(group.templates, memory_budget // (8 * WORKING_ARRAYS), 8, of_a_cache=False)
        for index in rows_where(failing).split(min(most, max(1, failing.shape[1] // 4)), dim=1):
            rows = group.template_rows(block, index)
            again = refine_rows(
                group.query_block(rows),
                group.dual(block, found.x, index),
                steps.gather(1, index),
                tol=tol,
                max_steps=max_steps,
                memory_budget=memory_budget // 2,
            )
            coordinates = group.template_coordinates
            # Refreshed: of near-dead heads p - u is lost unless it is computed relative to itself.
            method = Newton(coordinates, tol=tol, refresh=True)
            start, state = method.start(rows), method.start(rows, again.dual / rows.alpha)
            answer = (
                coordinates.complement(rows, state.x) - state.residual,
                state.lifted + state.lifted_residual,
            )
            exact = ExactPoint.of(coordinates, start, (state.x, state.lifted), answer)
            factorised.append((index, PartSolution(coordinates, start, exact)))
            steps = steps.scatter(1, index, again.steps)
            converged = converged.scatter(1, index, again.error <= tol)
    shape = block.queries.shape[:3]
    return BlockSolution(
        group, block, found.x, whole, tuple(factorised), steps.reshape(shape), converged.reshape(shape)
    )


def exact_duals(
    call: AttentionCall,
    *,
    space: str,
    alpha: float = 1.0,
    tol: float = 2e-4,
    max_steps: int = 50,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    heads: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """The exact dual points of a captured call.

    Args:
        call: What reached the attention function.
        space: ``"input"`` or ``"key"``.
        alpha: α > 0.
        tol: Relative tolerance on λ that the float64 certificate has to meet.
        max_steps: Steps a query may take.
        memory_budget: Bytes of working memory.
        heads: Heads to solve, from 1; all where None.

    Returns:
        λ in float64, (batch, heads, m, d), and where it is certified, bool (batch, heads, m).
    """
    with torch.no_grad():
        problem = layer_problem(call, space, heads)
        shape = problem.queries.shape[:3]
        dual = problem.queries.new_zeros((*shape, problem.vectors.shape[-1]), dtype=torch.float64)
        converged = torch.zeros(shape, dtype=torch.bool, device=dual.device)
        counted = problem.counted(call)
        for solution in exact_solutions(
            problem, counted, alpha=alpha, tol=tol, max_steps=max_steps, memory_budget=memory_budget
        ):
            dual[solution.block.where] = solution.dual()
            converged[solution.block.where] = solution.converged
        heads_of_all = converged.shape[0] * converged.shape[1] // problem.batch
        return dual.reshape(problem.batch, heads_of_all, *dual.shape[2:]), problem.by_head(converged)
