r"""Calls that are problems of the core: under any closeness, and to memories that are distributions.

Queries are taken in parts, each of them a problem, so that whatever offers weights and a curvature, or a cumulant, has
every estimator, bound and gradient. The backward pass computes a part again: no (m, n) array outlives its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fenchel.closeness import KL, AbstractCloseness, Divergence, Tsallis
from fenchel.conjugate import conjugate_of
from fenchel.family import Block
from fenchel.functional.arguments import AttentionArguments, compute_dtype, dropped, unit_of_products
from fenchel.functional.exact import check_reached, limits
from fenchel.functional.inference import AttentionCertificate, certificate_of, norm_of
from fenchel.functional.rows import recomputed, untraced
from fenchel.preference import Discrete, GaussianMixture
from fenchel.problem import DEFAULT_MEMORY_BUDGET, Problem, QueryLayout
from fenchel.solver import Estimator, Exact, FirstOrder, SecondOrder
from fenchel.solver.closed_form import second_order_point
from fenchel.solver.exact import WORKING_ARRAYS, solved_block
from fenchel.solver.implicit import implicit_dual_point
from fenchel.tensors import log_weights, narrowed, spans, summed

__all__ = ["ProblemRows", "in_parts", "normalised_log_weights", "solved_dual_point"]

PART_BYTES = 2**25
"""Size aimed at for one (B, H, queries, n) array of a part."""

LEAST_QUERIES = 32
"""Queries that a part has at least, since it goes through all keys."""

LARGEST_BYTES = 2**28
"""Size of that array from which sequences are taken by themselves, where they share the closeness."""


@dataclass(frozen=True)
class ProblemRows:
    """Some queries of some heads and sequences.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: (B, H, n, d).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), something to attend to in every row; or None.
        alpha: α, (B or 1, H or 1, m or 1, 1).
        closeness: D, with numbers of its own that broadcast to (B, H, m).
        variances: Of templates that are means of Gaussians, (B, H, n, d or 1); None where they are points.
    """

    evidence: Tensor
    templates: Tensor
    log_preference: Tensor | None
    alpha: Tensor
    closeness: AbstractCloseness
    variances: Tensor | None = None

    def log_weights(self) -> Tensor:
        """Log u, normalised, (B or 1, H or 1, m or 1, n)."""
        return normalised_log_weights(self.log_preference, self.templates)

    def problem(self) -> Problem:
        """The same as a problem of the core."""
        if self.variances is None:
            preference = Discrete(self.templates, self.log_weights())
        else:
            preference = GaussianMixture(self.templates, self.variances, self.log_weights())
        return Problem(conjugate_of(preference, self.closeness), self.evidence, self.alpha.squeeze(-1))

    @classmethod
    def under(cls, closeness: AbstractCloseness, given: AttentionArguments) -> ProblemRows:
        """A call under a closeness that is not Kullback and Leibler's, in the dtype of the computation."""
        evidence, templates, log_u, alpha = given.problem_in(compute_dtype(given.query.dtype))
        rows = cls(evidence, given.of_query_heads(templates), log_u, alpha, closeness)
        if isinstance(closeness, Divergence):
            # Which is tried when it first meets a preference.
            closeness.bind(Discrete(rows.templates, next(rows.parts())[1].log_weights()))
        return rows

    def dual_point(self, solver: Estimator, remedy: str) -> Tensor:
        """λ of an estimator, (B, H, m, d), never in a half type; see :func:`solved_dual_point`."""
        if isinstance(solver, FirstOrder):
            return self.alpha * self.evidence
        return torch.cat([one._solved(solver, remedy) for one in self._with_one_number()], 1)

    def _with_one_number(self) -> Iterator[ProblemRows]:
        """Heads by themselves where the closeness has numbers of theirs alone: solving is faster with one for all."""
        shapes = [
            shape for shape in self.closeness.query_shapes().values() if len(shape) > 1 and shape[-2] > 1
        ]
        if not shapes or any(shape[-1] > 1 or (len(shape) > 2 and shape[-3] > 1) for shape in shapes):
            yield self
            return
        for head in range(self.evidence.shape[1]):
            index = torch.tensor([head], device=self.evidence.device)
            yield self.narrowed(1, slice(head, head + 1), self.closeness.heads(index))

    # An iteration that looks at values is nothing to trace.
    @untraced
    def _solved(self, solver: Estimator, remedy: str) -> Tensor:
        # An expansion has the curvature in it, which one's own closeness may have made by torch.func.
        foreign = isinstance(solver, SecondOrder) and not isinstance(self.closeness, KL | Tsallis)

        def of_part(part: ProblemRows, _: Tensor) -> Tensor:
            dual = _solution(part.problem(), solver, remedy)

            def joined() -> Tensor:
                return _joined(part.problem(), solver, dual)

            # Built anew in the backward pass: the residual's graph has arrays of all weights.
            return joined() if foreign else recomputed(joined)

        return in_parts(self, of_part, self.evidence, again=False)

    def weights(self, dual: Tensor) -> Tensor:
        """P at dual points (B, H, m, d), (B, H, m, n)."""
        return in_parts(self, _weights, dual)

    def average(self, dual: Tensor, values: Tensor, dropout_p: float) -> Tensor:
        """The mean of values (B, H, n, d_v) at dual points, (B, H, m, d_v)."""

        def of_part(part: ProblemRows, lam: Tensor, value: Tensor) -> Tensor:
            return dropped(_weights(part, lam), dropout_p) @ value

        return in_parts(self, of_part, dual, values)

    def gap(self, dual: Tensor) -> Tensor:
        r"""The gap :math:`\tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`, differentiable, (B, H, m)."""
        return in_parts(self, lambda part, lam: part.problem().gap_at(lam), dual)

    @torch.no_grad()
    def certificate(self, dual: Tensor, dtype: torch.dtype) -> AttentionCertificate:
        """What dual points certify, with what rounding can hide, in a dtype."""
        rows = self
        if self.variances is None:
            rows = replace(self, templates=self.templates - self.templates.mean(-2, keepdim=True))
        return certificate_of(in_parts(rows, _bound_on_gradient, dual), rows.alpha.double(), dtype)

    def row_bytes(self) -> int:
        """Of one query of all heads and sequences in an array (B, H, m, n)."""
        return math.prod(self.evidence.shape[:2]) * self.templates.shape[2] * self.evidence.element_size()

    def sequences(self) -> Iterator[tuple[slice, ProblemRows]]:
        """All sequences together, or each by itself where together they are too many."""
        count = self.evidence.shape[0]
        shapes = self.closeness.query_shapes().values()
        shared = all(len(shape) < 3 or shape[-3] == 1 for shape in shapes)
        # A graph for any number of sequences cannot be cut by how many there are.
        together = torch.compiler.is_exporting() or count == 1 or not shared
        if together or LEAST_QUERIES * self.row_bytes() <= LARGEST_BYTES:
            yield slice(0, count), self
            return
        for span in spans(count, 1):
            yield span, self.narrowed(0, span, self.closeness)

    def parts(self) -> Iterator[tuple[slice, ProblemRows]]:
        """Ranges of queries."""
        queries, each = self.evidence.shape[2], max(LEAST_QUERIES, PART_BYTES // max(1, self.row_bytes()))
        if torch.compiler.is_exporting() or queries <= each:
            yield slice(0, queries), self
            return
        for span in spans(queries, each):
            yield span, self.narrowed(2, span, self.closeness.queries(span))

    def narrowed(self, dim: int, span: slice, closeness: AbstractCloseness) -> ProblemRows:
        """Part of the sequences (dimension 0), heads (1) or queries (2), with the closeness of these."""
        names = ("evidence", "log_preference", "alpha", *(("templates", "variances") if dim < 2 else ()))
        given = {name: getattr(self, name) for name in names}
        cut = {name: None if own is None else narrowed(own, dim, span) for name, own in given.items()}
        return replace(self, closeness=closeness, **cut)


def _weights(rows: ProblemRows, dual: Tensor) -> Tensor:
    """P at dual points (B, H, m, d), (B, H, m, n)."""
    return rows.closeness.weights(dual @ rows.templates.mT, rows.log_weights())


def _bound_on_gradient(rows: ProblemRows, dual: Tensor) -> Tensor:
    r"""At least the norm of the dual's gradient, (B, H, m, 1) in float64: from what families say of rounding, or below.

    Where the closeness is strongly convex by σ potentials that are off by :math:`\delta` move weights by
    :math:`2\max|\delta|/\sigma` in the 1-norm, and means by that times the largest norm R of a template: so much for
    rounding, and for how far λ itself moves the mean.
    """
    problem, (count, dim) = rows.problem(), rows.templates.shape[-2:]
    unit, length = torch.finfo(dual.dtype).eps / 2, norm_of(dual)
    unmet = norm_of(rows.evidence - dual / rows.alpha)
    of_vectors = 4 * unit * (unmet + 2 * length / rows.alpha)
    found, lost = norm_of(problem.dual_gradient(dual)), problem.preference.rounding(dual)
    if lost is not None:
        found = found + lost.unsqueeze(-1)
    else:
        products = unit_of_products(dual.dtype, dual.device.type)
        radius = norm_of(rows.templates).amax(-2, keepdim=True)
        modulus = torch.as_tensor(problem.conjugate.modulus, device=dual.device).double().unsqueeze(-1)
        moved = 2 * length * radius.square() / modulus
        of_sums = 4 * products + (4 * summed(count) + 64) * unit
        lost = (2 * products + (summed(dim) + 10) * unit) * moved + of_sums * radius
        known = unmet + torch.fmin(moved, 2 * radius)
        found = torch.minimum(found + lost.nan_to_num(nan=torch.inf), known)
    return (found + of_vectors) * (1 + (summed(dim) + 16) * unit)


def normalised_log_weights(preference: Tensor | None, templates: Tensor) -> Tensor:
    """Log u of templates (B, H, n, d), (B or 1, H or 1, m or 1, n)."""
    if preference is None:
        return templates.new_zeros(1, 1, 1, templates.shape[-2]).log_softmax(-1)
    return log_weights(preference, templates.dtype).log_softmax(-1)


def in_parts(
    rows: ProblemRows, function: Callable[..., Tensor], points: Tensor, *of_keys: Tensor, again: bool = True
) -> Tensor:
    """A function of queries part by part, put together, (B, H, m, ...).

    Args:
        rows: The queries.
        function: Of a part, its points, and whatever goes with the keys of its sequences.
        points: (B, H, m, d).
        *of_keys: (B, H, n, any) each.
        again: Whether the backward pass computes a part again instead of keeping its arrays.
    """
    found = []
    for sequences, some in rows.sequences():
        of_these = [tensor[sequences] for tensor in of_keys]
        pieces = []
        for span, part in some.parts():
            given = (part, points[sequences, :, span], *of_these)
            pieces.append(recomputed(function, *given) if again else function(*given))
        found.append(pieces[0] if len(pieces) == 1 else torch.cat(pieces, 2))
    return found[0] if len(found) == 1 else torch.cat(found, 0)


def solved_dual_point(problem: Problem, solver: Estimator, remedy: str) -> Tensor:
    """λ of second order or of the exact estimator, (..., m, d), with gradients to all that the problem is made of.

    Args:
        problem: The problem.
        solver: Either of them.
        remedy: What else may help a query that does not get there, after "make".

    Raises:
        ConvergenceError: If a query does not.
    """
    return _joined(problem, solver, _solution(problem, solver, remedy))


def _joined(problem: Problem, solver: Estimator, dual: Tensor) -> Tensor:
    """A dual point with gradients to the problem's data, where they are recorded."""
    if solver.equation is None or not torch.is_grad_enabled():
        return dual
    return implicit_dual_point(problem, solver.equation, dual)


@untraced
@torch.no_grad()
def _solution(problem: Problem, solver: Estimator, remedy: str) -> Tensor:
    """The same without gradient."""
    tol, steps = limits(solver, problem.dtype) if isinstance(solver, Exact) else (0.0, 0)

    def solve(block: Block) -> dict[str, Tensor]:
        if isinstance(solver, Exact):
            found, _ = solved_block(block, problem.dtype, tol, steps)
            missed = (found.dual_error / found.reference).masked_fill(found.meets(tol), 0)
            return {"dual": found.dual, "missed": missed}
        block = block.to(torch.float64) if block.family.selectable else block
        return {"dual": second_order_point(block).to(problem.dtype)}

    found = QueryLayout(problem).solved(solve, DEFAULT_MEMORY_BUDGET, WORKING_ARRAYS)
    if "missed" in found:
        check_reached(found["missed"], tol, steps, remedy)
    return found["dual"]
