"""The exact solution of every query of a layer, block by block, under softmax or another closeness."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fenchel.auditing.heads import SCALED
from fenchel.auditing.layer import LayerBlock, LayerProblem
from fenchel.closeness import AbstractCloseness
from fenchel.estimators.closed_form import second_order_point
from fenchel.estimators.exact_solver import WORKING_ARRAYS, Solution, infer
from fenchel.family import Block, TemplateFamily, TemplatePoint, centre
from fenchel.preference import Discrete
from fenchel.problem import DEFAULT_MEMORY_BUDGET
from fenchel.tensors import may_attend, norm, total

if TYPE_CHECKING:
    from fenchel.run_options import AuditOptions

__all__ = ["BlockSolution", "Solving", "solutions_of"]

BEYOND = 0.05
"""Under a closeness, λ* is solved for this far below the tolerance: what is compared with it is its own."""


@dataclass(frozen=True)
class Solving:
    """How the queries of an audit are solved.

    Attributes:
        space: ``"input"`` or ``"key"``: what templates and evidence are (:mod:`fenchel.auditing.layer`).
        alpha: α > 0.
        tol: Relative tolerance on λ that the float64 certificate of an exact point has to meet.
        memory_budget: Bytes of working memory.
        closeness: D, under which attention is the first-order answer; None is softmax.
        max_steps: Steps that a query may take.
    """

    space: str
    alpha: float = 1.0
    tol: float = 2e-4
    memory_budget: int = DEFAULT_MEMORY_BUDGET
    closeness: AbstractCloseness | None = None
    max_steps: int = 50

    @classmethod
    def of(cls, options: AuditOptions) -> Solving:
        """As the options of an audit say."""
        return cls(
            options.space, options.alpha, options.tol, options.memory_budget, options.measured_closeness
        )


class LayerGroup:
    r"""What queries with the same templates share, computed in float64 and rounded once.

    Templates are written in an orthonormal basis of their span, with k = min(n, d) coordinates: evidence outside of it
    stays in λ = α(z + ...) as it is (fact 3), and all that is needed of it is its length.

    Args:
        problem: The layer.
        where: The groups.
        solving: How its queries are solved.

    Attributes:
        where: The groups.
        centre: Mean of the templates that may be chosen, in these coordinates, working dtype, (g, 1, k).
        centre_length: Its length, (g, 1, 1).
        templates: The templates less their centre, float64, (g, n, k).
    """

    def __init__(self, problem: LayerProblem, where: slice, solving: Solving) -> None:
        self.where, self._solving, self._dtype = where, solving, problem.queries.dtype
        preference = problem.log_preference
        preference = preference if len(preference) == 1 else preference[where]
        templates = problem.vectors[where].double() * problem.scaling
        middle = centre(templates, may_attend(preference.flatten(1, 2)).any(1, keepdim=True))
        templates = templates - middle
        n, d = templates.shape[-2:]
        self._lift = None if problem.lift is None else problem.lift.double()
        self._basis: Tensor | None = None
        self._second_order: Tensor | None = None
        if n < d:
            self._basis, triangle = torch.linalg.qr(templates.mT)
            templates = triangle.mT
        self.templates = templates
        closeness = solving.closeness
        self._closeness = None if closeness is None else closeness.bind(Discrete(templates))
        self.centre = (middle if self._basis is None else middle @ self._basis).to(self._dtype)
        self.centre_length = norm(middle).to(self._dtype)

    @cached_property
    def _maps(self) -> Tensor | None:
        """By which queries become evidence in these coordinates, (g or 1, h or 1, d_h, k); None where they are it."""
        if self._basis is None:
            return None if self._lift is None else self._lift.unsqueeze(0)
        lift = self._basis.unsqueeze(1)
        return lift if self._lift is None else self._lift @ lift

    @cached_property
    def _outer(self) -> Tensor | None:
        """The form of the query that is ‖z‖² outside of the span, (g, h or 1, d_h, d_h)."""
        if self._basis is None:
            return None
        assert self._maps is not None  # noqa: S101 -- there is a basis
        whole = torch.eye(self._maps.shape[-2], dtype=torch.float64, device=self._maps.device)
        whole = whole if self._lift is None else self._lift @ self._lift.mT
        # What rounding leaves of it must not count as length.
        return whole * (1 - 1e-13) - self._maps @ self._maps.mT

    def evidence(self, block: LayerBlock) -> tuple[Tensor, Tensor | None]:
        """Z of a block's queries, float64, (g, r, k), and the length of what is outside of the span, (g, r, 1)."""
        queries, h = block.queries, block.where[1]
        if self._maps is None:
            return queries.double().flatten(1, 2), None
        maps = self._maps[:, h] if self._maps.shape[1] > 1 else self._maps
        inside = (queries.double() @ maps).flatten(1, 2)
        if self._outer is None:
            return inside, None
        form = self._outer[:, h] if self._outer.shape[1] > 1 else self._outer
        wide = queries.double()
        square = total((wide @ form) * wide).clamp(min=0)
        return inside, square.sqrt().flatten(1, 2).to(queries.dtype)

    def rows(self, block: LayerBlock, evidence: Tensor, outside: Tensor | None) -> Block:
        """A block's rows, in float64, given what :meth:`evidence` gives."""
        preference = block.log_preference
        if max(preference.shape[1:3]) > 1:
            preference = preference.expand(-1, *block.queries.shape[1:3], -1)
        preference = preference.flatten(1, 2).double().log_softmax(-1)
        alpha = torch.full((1, 1, 1), self._solving.alpha, dtype=torch.float64, device=evidence.device)
        beyond = None if outside is None else self._solving.alpha * outside.double()
        return Block(TemplateFamily(self.templates, preference, self._closeness), evidence, alpha, beyond)

    def second_order(self, rows: Block) -> Tensor:
        """λ₂ of a block's rows, (g, r, k)."""
        assert isinstance(rows.family, TemplateFamily)  # noqa: S101 -- see rows
        if rows.family.log_preference.shape[1] > 1:
            return second_order_point(rows)
        if self._second_order is None:
            identity = torch.eye(self.templates.shape[-1], dtype=torch.float64, device=rows.evidence.device)
            wide = rows.to(torch.float64)
            one = replace(wide, evidence=identity.expand(len(self.templates), -1, -1), beyond=None)
            self._second_order = second_order_point(one).to(self._dtype)
        return rows.evidence @ self._second_order


@dataclass(frozen=True)
class BlockSolution:
    """Attention's answer and the exact one of every query of a block.

    Attributes:
        group: What the queries share.
        block: The queries.
        rows: Their problems, in the working dtype.
        first: Φ at the first-order points.
        outside: The length of the evidence outside of the span, (g, r, 1), or None.
        found: The exact dual points; measured is what is one mixing further.
        converged: Whether the certificate meets the tolerance, bool (g, h, q).
    """

    group: LayerGroup
    block: LayerBlock
    rows: Block
    first: TemplatePoint
    outside: Tensor | None
    found: Solution
    converged: Tensor

    @property
    def steps(self) -> Tensor:
        """Of the exact solve, (g, h, q)."""
        return self.found.steps.reshape(self.converged.shape)

    @cached_property
    def _exact(self) -> TemplatePoint:
        return self.first.family.at(self.found.further.to(self.rows.evidence.dtype))

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r, n)."""
        return self.first.weights, self._exact.weights

    def _length(self, lam: Tensor) -> Tensor:
        """‖λ‖ with the part outside of the span, (g, r, 1)."""
        return norm(lam) if self.outside is None else torch.hypot(norm(lam), self.rows.alpha * self.outside)

    def measures(self) -> dict[str, Tensor]:
        """Each of ``MEASURES`` that needs no values, (g, h, q)."""
        rows, at_first, at_exact = self.rows, self.first, self._exact
        first, exact = rows.alpha * rows.evidence, self.found.further.to(rows.evidence.dtype)
        second = self.group.second_order(rows)
        # ‖h*‖ of the mean less the centre, and the centre, of which the part outside of the span is not in coordinates.
        inside = self.first.family.rest + at_exact.shift
        mean = (
            self.group.centre_length.square() + 2 * total(inside * self.group.centre) + total(inside * inside)
        )
        mean = mean.clamp(min=torch.finfo(mean.dtype).tiny).sqrt()
        size, size_of_second = self._length(exact), self._length(second)
        evidence, shift = self._length(first) / rows.alpha, norm(at_first.shift)
        room = evidence - shift
        values = {
            "relative_deviation": norm(exact - first) / size,
            "second_order_deviation": norm(exact - second) / size,
            "mean_error": norm(at_first.shift - at_exact.shift) / mean,
            "certificate": torch.where(room > 0, shift / room, torch.inf),
            "gap": rows.alpha / 2 * shift.square(),
            "predicted_deviation": norm(second - first)
            / size_of_second.clamp(min=torch.finfo(second.dtype).tiny),
            "evidence_norm": evidence,
            "dual_error": self.found.error / size,
        }
        # No evidence: λ* = αz = 0, and every estimator is exact.
        values |= {name: values[name].masked_fill(size == 0, 0) for name in SCALED}
        values["total_variation"] = total((at_first.weights - at_exact.weights).abs()) / 2
        values["entropy"] = at_first.entropy
        return {name: value.reshape(self.converged.shape) for name, value in values.items()}


def solutions_of(problem: LayerProblem, counted: Tensor, solving: Solving) -> Iterator[BlockSolution]:
    """Attention's answer and the exact one of every query, to a certificate that includes what rounding can hide.

    Args:
        problem: The layer.
        counted: Queries that are wanted, bool (groups, heads, m); the others are given no evidence.
        solving: How.

    Yields:
        Solutions of blocks of queries that together make the layer.
    """
    group, tol = None, solving.tol if solving.closeness is None else BEYOND * solving.tol
    for block in problem.blocks(solving.memory_budget, WORKING_ARRAYS):
        if group is None or group.where != block.where[0]:
            group = LayerGroup(problem, block.where[0], solving)
        wanted = counted[block.where]
        evidence, outside = group.evidence(block)
        mask = wanted.flatten(1, 2).unsqueeze(-1)
        evidence = evidence.masked_fill(~mask, 0)
        outside = None if outside is None else outside.masked_fill(~mask, 0)
        rows = group.rows(block, evidence, outside).to(problem.queries.dtype)
        first = rows.family.at(rows.alpha * rows.evidence)
        assert isinstance(first, TemplatePoint)  # noqa: S101 -- a layer has templates
        found = infer(rows, tol=tol, max_steps=solving.max_steps, shift=first.shift)
        converged = (found.error <= solving.tol * found.reference).reshape(wanted.shape) & wanted
        yield BlockSolution(group, block, rows, first, outside, found, converged)
