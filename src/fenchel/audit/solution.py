"""The exact solution of every query of a layer, block by block, certified in float64."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from fenchel.audit.group import LayerGroup
from fenchel.audit.layer import LayerBlock, LayerProblem
from fenchel.selection import rows_where
from fenchel.solver.certified import certified_newton
from fenchel.solver.coordinates import AbstractCoordinates
from fenchel.solver.exact import solve_rows
from fenchel.solver.newton import Newton, NewtonState

__all__ = ["BlockSolution", "PartSolution", "exact_solutions"]

WORKING_ARRAYS = 32
"""Arrays of shape (rows, max(n, d)) alive at once, those in float64 counted twice beside a narrower dtype."""


@dataclass(frozen=True)
class PartSolution:
    """Rows of a block in one coordinate system.

    Attributes:
        coordinates: The coordinates.
        first: Where attention stands, (g, r').
        exact: The exact point, in the same dtype.
        index: Which rows of the block they are, (g, r'); all where None.
    """

    coordinates: AbstractCoordinates
    first: NewtonState
    exact: NewtonState
    index: Tensor | None = None


@dataclass(frozen=True)
class BlockSolution:
    """Attention's point and the exact one of every query of a block.

    Attributes:
        group: What the queries share.
        block: The queries.
        parts: All rows as conjugate gradients left them, and then again those that were factorised.
        steps: Newton steps, (g, h, q).
        converged: Whether the float64 certificate of the exact point meets the tolerance, bool (g, h, q).
    """

    group: LayerGroup
    block: LayerBlock
    parts: tuple[PartSolution, ...]
    steps: Tensor
    converged: Tensor

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r, n)."""
        whole, *later = self.parts
        first, exact = whole.first.weights, whole.exact.weights
        for part in later:
            assert part.index is not None
            index = part.index.unsqueeze(-1).expand_as(part.exact.weights)
            first = first.scatter(1, index, part.first.weights.to(first.dtype))
            exact = exact.scatter(1, index, part.exact.weights.to(exact.dtype))
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
    method = Newton(group.working, tol=tol, low_precision=group.low_precision)
    square = group.evidence_square(block)
    first = method.start(group.rows(block, square))
    # Rows that are stalled at the start are left alone.
    first = replace(first, stalled=~counted.reshape(first.error.shape))
    outcome = certified_newton(
        method, first, group.wide, lambda: group.wide_rows(block, square), tol=tol, max_steps=max_steps
    )
    steps, converged = outcome.steps, outcome.converged
    parts = [PartSolution(group.working, first, _rounded(outcome.state, group.dtype))]
    del outcome
    failing = ~converged & ~first.stalled & (steps < max_steps)
    if bool(failing.any()):
        # In float64 and template coordinates a row takes several times what it took until here.
        for index in rows_where(failing).split(max(1, failing.shape[1] // 4), dim=1):
            rows = group.template_rows(block, index)
            method = Newton(group.template_coordinates, tol=tol)
            left = max_steps - int(steps.gather(1, index).max())
            found = solve_rows(group.query_block(rows), tol=tol, max_steps=left, memory_budget=memory_budget)
            exact = method.start(rows, found.dual / rows.alpha)
            parts.append(PartSolution(group.template_coordinates, method.start(rows), exact, index))
            steps = steps.scatter_add(1, index, found.steps)
            converged = converged.scatter(1, index, found.error <= tol)
    shape = block.queries.shape[:3]
    return BlockSolution(group, block, tuple(parts), steps.reshape(shape), converged.reshape(shape))


def _rounded(state: NewtonState, dtype: torch.dtype) -> NewtonState:
    """A state's numbers in another dtype; its rows stay, to be replaced by those that were there."""
    numbers = {
        field.name: value.to(dtype)
        for field in fields(state)
        if isinstance(value := getattr(state, field.name), Tensor) and value.is_floating_point()
    }
    return replace(state, **numbers)
