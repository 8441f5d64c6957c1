"""The exact solution of every query of a layer, block by block, certified in float64."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fenchel.auditing.capture import AttentionCall
from fenchel.auditing.group import LayerGroup
from fenchel.auditing.layer import LayerBlock, LayerProblem, layer_problem
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.selection import rows_where
from fenchel.solver.certified import CertifiedNewton
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.staged import refine_rows

__all__ = ["BlockSolution", "PartSolution", "exact_duals", "exact_solutions"]

WORKING_ARRAYS = 32
"""Arrays of shape (rows, max(n, d)) alive at once, those in float64 counted twice beside a narrower dtype."""


@dataclass(frozen=True)
class PartSolution:
    """Rows of a block in one coordinate system.

    Attributes:
        coordinates: The coordinates.
        first: Where attention stands, (g, r').
        exact: The exact point, in the same dtype.
    """

    coordinates: AbstractCoordinates
    first: NewtonState
    exact: NewtonState


@dataclass(frozen=True)
class BlockSolution:
    """Attention's point and the exact one of every query of a block.

    Attributes:
        group: What the queries share.
        block: The queries.
        point: Coordinates of the exact points as conjugate gradients left them, float64, (g, r, size).
        whole: All rows there, in the working dtype.
        factorised: Rows that this left uncertified: their indices (g, r'), and what a factorisation made of them, in
            float64.
        steps: Newton steps, (g, h, q).
        converged: Whether the float64 certificate of the exact point meets the tolerance, bool (g, h, q).
    """

    group: LayerGroup
    block: LayerBlock
    point: Tensor
    whole: PartSolution
    factorised: tuple[tuple[Tensor, PartSolution], ...]
    steps: Tensor
    converged: Tensor

    def dual(self) -> Tensor:
        """The exact points λ, float64, (g, h, q, d)."""
        dual = self.group.dual(self.block, self.point)
        for index, part in self.factorised:
            solved = self.group.alpha * part.exact.x
            dual = dual.scatter(1, index.unsqueeze(-1).expand_as(solved), solved)
        return dual.reshape(*self.block.queries.shape[:3], -1)

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r, n)."""
        first, exact = self.whole.first.weights, self.whole.exact.weights
        for index, part in self.factorised:
            everywhere = index.unsqueeze(-1).expand_as(part.exact.weights)
            first = first.scatter(1, everywhere, part.first.weights.to(first.dtype))
            exact = exact.scatter(1, everywhere, part.exact.weights.to(exact.dtype))
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
        max_steps: Newton steps that a query may take.
        memory_budget: Bytes of working memory.

    Yields:
        Solutions of blocks of queries that together make the layer.
    """
    group = None
    for block in problem.blocks(memory_budget, WORKING_ARRAYS):
        if group is None or group.where != block.where[0]:
            group = LayerGroup(problem, block.where[0], alpha, tol)
        yield _solved(group, block, counted[block.where], tol, max_steps, memory_budget)


def _solved(
    group: LayerGroup, block: LayerBlock, counted: Tensor, tol: float, max_steps: int, memory_budget: int
) -> BlockSolution:
    newton = CertifiedNewton(
        group.working, group.wide, low_precision=group.low_precision, tol=tol, max_steps=max_steps
    )
    square = group.evidence_square(block)
    first = newton.start(group.rows(block, square))
    # Rows that are stalled at the start are left alone.
    first = replace(first, stalled=~counted.reshape(first.error.shape))
    outcome = newton.solve(first, lambda: group.wide_rows(block, square))
    steps, converged = outcome.steps, outcome.converged
    whole = PartSolution(group.working, first, _rounded(outcome.state, group.dtype))
    factorised: list[tuple[Tensor, PartSolution]] = []
    point = outcome.state.x
    del outcome
    failing = ~converged & ~first.stalled & (steps < max_steps)
    if bool(failing.any()):
        # In float64 and template coordinates a row takes several times what it took until here, and a Hessian more.
        for index in rows_where(failing).split(max(1, failing.shape[1] // 4), dim=1):
            rows = group.template_rows(block, index)
            # Refreshed: of near-dead heads p - u is lost unless it is computed relative to itself.
            method = Newton(group.template_coordinates, tol=tol, refresh=True)
            found = refine_rows(
                group.query_block(rows),
                group.dual(block, point, index),
                steps.gather(1, index),
                tol=tol,
                max_steps=max_steps,
                memory_budget=memory_budget // 2,
            )
            exact = method.start(rows, found.dual / rows.alpha)
            part = PartSolution(group.template_coordinates, method.start(rows), exact)
            factorised.append((index, part))
            steps = steps.scatter(1, index, found.steps)
            converged = converged.scatter(1, index, found.error <= tol)
    shape = block.queries.shape[:3]
    return BlockSolution(
        group, block, point, whole, tuple(factorised), steps.reshape(shape), converged.reshape(shape)
    )


def _rounded(state: NewtonState, dtype: torch.dtype) -> NewtonState:
    """A state's numbers in another dtype; its rows stay, to be replaced by those that were there."""
    numbers = {
        field.name: value.to(dtype)
        for field in fields(state)
        if isinstance(value := getattr(state, field.name), Tensor) and value.is_floating_point()
    }
    return replace(state, **numbers)


def exact_duals(
    call: AttentionCall,
    *,
    space: str,
    alpha: float = 1.0,
    tol: float = 2e-5,
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
        max_steps: Newton steps a query may take.
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
