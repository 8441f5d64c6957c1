r"""Attention calls as inference problems, and the exact solution of every query, under softmax or another closeness.

``space="input"`` is the papers' reading (section 8): :math:`t_i = s\,x_i` and :math:`z = K^\top q`, for inputs
x, key map K and scale s of the call. The key map's bias moves all scores of a query by the same amount and is
dropped. All heads share the templates, so one Gram matrix serves a layer, and scores can be computed in the
head's own width: :math:`\langle t_i, z\rangle = \langle Kt_i, q\rangle`.

``space="key"`` is generic: :math:`t_i = s\,k_i` and :math:`z = q` as they reach the attention function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fenchel.auditing.heads import SCALED
from fenchel.blocks import boxes, keep_freed_memory, part_of
from fenchel.errors import CaptureError, ProblemError
from fenchel.estimators.exact_solver import Solution, infer
from fenchel.estimators.implicit import second_order_point
from fenchel.family import Block, TemplateFamily, TemplatePoint
from fenchel.functional.arguments import compute_dtype
from fenchel.integrations.sites import AttentionCall
from fenchel.preference import Discrete
from fenchel.preference.discrete import centre
from fenchel.problem import WORKING_ARRAYS, rows_in_block
from fenchel.tensors import log_weights, may_attend, norm, total

if TYPE_CHECKING:
    from fenchel.run_options import AuditOptions

_BLOCK_BYTES = 2**22  # of one array: what a call of torch costs counts as much as caches do

# Maximum number of steps of a query.
MOST_STEPS = 50

# Factor of the tolerance of λ* under a closeness, with which its own measures are compared.
BEYOND = 0.05


@dataclass(frozen=True)
class LayerBlock:
    """Queries of some heads of some groups: g groups, h heads, q queries.

    Attributes:
        where: Slices of groups, heads and queries.
        queries: (g, h, q, d_h).
        log_preference: (g or 1, h or 1, q or 1, n), as in the problem.
    """

    where: tuple[slice, slice, slice]
    queries: Tensor
    log_preference: Tensor


@dataclass(frozen=True)
class LayerProblem:
    """All problems of one attention call, as captured; groups are sets of heads that share templates.

    Values are neither scaled nor rounded, so that a problem in float64 is as exact as in the working dtype.

    Attributes:
        vectors: (groups, n, d), with templates ``scaling · vectors``.
        scaling: What scores are multiplied with.
        queries: (groups, heads, m, d_h).
        lift: (heads, d_h, d) with z = queries · lift, or None where z is the query itself.
        log_preference: (groups or 1, heads or 1, m or 1, n), up to a constant per row, or a mask; rows without any
            template are uniform.
        batch: Batch size, which divides the number of groups.
    """

    vectors: Tensor
    scaling: float
    queries: Tensor
    lift: Tensor | None
    log_preference: Tensor
    batch: int

    def by_head(self, values: Tensor) -> Tensor:
        """Results (groups, heads, m) as (batch, heads of the layer, m)."""
        return values.reshape(self.batch, -1, values.shape[-1])

    def counted(self, call: AttentionCall) -> Tensor:
        """The queries that count, bool (groups, heads, m)."""
        shape = self.queries.shape[:3]
        return call.counted.repeat_interleave(shape[0] // self.batch, 0).unsqueeze(1).expand(shape)

    def blocks(self, memory_budget: int, arrays: int) -> Iterator[LayerBlock]:
        """Split the queries into blocks, of several groups if they fit.

        Args:
            memory_budget: Bytes of the working arrays of a block.
            arrays: Number of working arrays of shape (rows, max(n, d)).
        """
        keep_freed_memory()
        groups, heads, m, _ = self.queries.shape
        most = rows_in_block(
            self.vectors, memory_budget // arrays, self.queries.element_size(), aimed_at=_BLOCK_BYTES
        )
        for g, h, q in boxes((groups, heads, m), most):
            preference = log_weights(part_of(self.log_preference, (g, h, q)), self.queries.dtype)
            yield LayerBlock((g, h, q), self.queries[g, h, q], preference)


def layer_problem(call: AttentionCall, space: str, heads: Sequence[int] | None = None) -> LayerProblem:
    """The inference problems of a captured call.

    Args:
        call: Arguments of the attention function.
        space: ``"input"`` or ``"key"``.
        heads: Selected heads, from 1; all where None.

    Raises:
        ProblemError: If the call contains NaN or infinity, or a counted query may attend to nothing.
        CaptureError: If ``space="input"`` and the call has no key map.
    """
    dtype = compute_dtype(call.query.dtype)
    query, key = call.query.to(dtype), call.key.to(dtype)
    batch, count, m, width = query.shape
    repeats = count // key.shape[1]
    _check_finite(call, query, key)
    chosen = torch.arange(count) if heads is None else torch.as_tensor([head - 1 for head in heads])
    chosen = chosen.to(query.device)
    preference = _log_preference(call, dtype, key.shape[2])
    if heads is not None:
        query = query.index_select(1, chosen)
        if preference.shape[1] > 1:
            preference = preference.index_select(1, chosen)
    if space == "input":
        if call.inputs is None or call.key_weight is None:
            raise CaptureError(
                f'{call.site.name}: space="input" needs the inputs and the key map, which were not captured'
            )
        lift = call.key_weight.to(dtype).index_select(0, chosen // repeats)
        return LayerProblem(call.inputs.to(dtype), call.scaling, query, lift, preference, batch)
    if heads is not None:
        key, repeats = key.index_select(1, chosen // repeats), 1
    groups = key.shape[1]
    if max(preference.shape[:2]) > 1:
        preference = preference.expand(batch, len(chosen), -1, -1)
        preference = preference.reshape(batch * groups, repeats, *preference.shape[2:])
    return LayerProblem(
        key.flatten(0, 1),
        call.scaling,
        query.reshape(batch * groups, repeats, m, width),
        None,
        preference,
        batch,
    )


def _check_finite(call: AttentionCall, query: Tensor, key: Tensor) -> None:
    for name, value in (("queries", query), ("keys", key)):
        if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
            raise ProblemError(
                f"{call.site.name}: {name} contain NaN or infinity; the model does not compute attention on this "
                f"text in {call.query.dtype} (try dtype float32)"
            )


def _log_preference(call: AttentionCall, dtype: torch.dtype, n: int) -> Tensor:
    """Log preference or mask, 4-dimensional; rows without any template become uniform and must not count."""
    if call.preference is None:
        return torch.zeros((1, 1, 1, n), dtype=dtype, device=call.query.device)
    preference = call.preference
    if preference.dtype != torch.bool:
        preference = preference.to(dtype)
    empty = ~may_attend(preference).any(-1, keepdim=True)
    if bool(empty.any()):
        if bool((empty.squeeze(-1) & call.counted.unsqueeze(1)).any()):
            raise ProblemError(
                f"{call.site.name}: a query that is not padding may attend to nothing and has no solution"
            )
        preference = (
            preference | empty if preference.dtype == torch.bool else preference.masked_fill(empty, 0)
        )
    return preference


class LayerGroup:
    r"""Quantities shared by queries with the same templates, computed in float64 and rounded once.

    Templates are in an orthonormal basis of their span, with k = min(n, d) coordinates: the part of the evidence
    outside of the span remains in λ = α(z + ...) (fact 3), and only its length is needed.

    Args:
        problem: The layer.
        where: The groups.
        solving: Options with those of the solver.

    Attributes:
        where: The groups.
        centre: Mean of the templates in the support, in these coordinates, working dtype, (g, 1, k).
        centre_length: Its length, (g, 1, 1).
        templates: Centred templates, float64, (g, n, k).
    """

    def __init__(self, problem: LayerProblem, where: slice, solving: AuditOptions) -> None:
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
        closeness = solving.measured_closeness
        self._closeness = None if closeness is None else closeness.bind(Discrete(templates))
        self.centre = (middle if self._basis is None else middle @ self._basis).to(self._dtype)
        self.centre_length = norm(middle).to(self._dtype)

    @cached_property
    def _maps(self) -> Tensor | None:
        """Maps from queries to evidence in these coordinates, (g or 1, h or 1, d_h, k); None for the identity."""
        if self._basis is None:
            return None if self._lift is None else self._lift.unsqueeze(0)
        lift = self._basis.unsqueeze(1)
        return lift if self._lift is None else self._lift @ lift

    @cached_property
    def _outer(self) -> Tensor | None:
        """Quadratic form of the query that gives ‖z‖² outside of the span, (g, h or 1, d_h, d_h)."""
        if self._basis is None:
            return None
        assert self._maps is not None  # noqa: S101 -- there is a basis
        whole = torch.eye(self._maps.shape[-2], dtype=torch.float64, device=self._maps.device)
        whole = whole if self._lift is None else self._lift @ self._lift.mT
        # The rounding error must not count as length.
        return whole * (1 - 1e-13) - self._maps @ self._maps.mT

    def evidence(self, block: LayerBlock) -> tuple[Tensor, Tensor | None]:
        """Evidence of a block's queries, float64, (g, r, k), and its length outside of the span, (g, r, 1)."""
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
        """The problems of a block in float64, given the results of :meth:`evidence`."""
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
    """First-order and exact solutions of a block of queries.

    Attributes:
        group: The group of the queries.
        block: The queries.
        rows: Their problems, in the working dtype.
        first: Φ at the first-order points.
        outside: The length of the evidence outside of the span, (g, r, 1), or None.
        found: The exact dual points; measures use the iterate after one more mixing step.
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
        """Number of steps of the exact solver, (g, h, q)."""
        return self.found.steps.reshape(self.converged.shape)

    @cached_property
    def _exact(self) -> TemplatePoint:
        return self.first.family.at(self.found.further.to(self.rows.evidence.dtype))

    def weights(self) -> tuple[Tensor, Tensor]:
        """Attention's weights and the exact ones, each (g, r, n)."""
        return self.first.weights, self._exact.weights

    @cached_property
    def moved(self) -> Tensor:
        """First-order minus exact weights, (g, r, n)."""
        return self.first.weights - self._exact.weights

    @cached_property
    def sizes(self) -> Tensor:
        """Absolute values of ``moved``."""
        return self.moved.abs()

    def _length(self, lam: Tensor) -> Tensor:
        """‖λ‖ including the part outside of the span, (g, r, 1)."""
        return norm(lam) if self.outside is None else torch.hypot(norm(lam), self.rows.alpha * self.outside)

    def measures(self) -> dict[str, Tensor]:
        """Those of ``MEASURES`` that need no values, (g, h, q)."""
        rows, at_first, at_exact = self.rows, self.first, self._exact
        first, exact = rows.alpha * rows.evidence, self.found.further.to(rows.evidence.dtype)
        second = self.group.second_order(rows)
        # ‖h*‖ from the mean less the group's centre and that centre, whose part outside of the span has no coordinates.
        # A block's family has another centre where masks exclude keys.
        inside = at_exact.mean
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
        values["total_variation"] = total(self.sizes) / 2
        values["entropy"] = at_first.entropy
        return {name: value.reshape(self.converged.shape) for name, value in values.items()}


def solutions_of(problem: LayerProblem, counted: Tensor, solving: AuditOptions) -> Iterator[BlockSolution]:
    """Solve every query to a certificate that accounts for rounding.

    Args:
        problem: The layer.
        counted: Queries to solve, bool (groups, heads, m); the evidence of others is set to zero.
        solving: Options with those of the solver.

    Yields:
        Solutions of blocks that cover the layer.
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
        result, reference = infer(rows, tol=tol, max_steps=MOST_STEPS, shift=first.shift)
        converged = (result.error <= solving.tol * reference).reshape(wanted.shape) & wanted
        yield BlockSolution(group, block, rows, first, outside, result, converged)
