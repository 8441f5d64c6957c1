r"""Calls that are problems of the core: under any closeness, and to memories that are distributions.

Queries are taken in parts, each of them a problem, so that whatever offers weights and a curvature, or a cumulant, has
every estimator, bound and gradient. The backward pass computes a part again: no (m, n) array outlives its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fenchel.closeness import KL, AbstractCloseness, Tsallis
from fenchel.conjugate import conjugate_of
from fenchel.errors import ConvergenceError
from fenchel.functional.exact import limits
from fenchel.functional.operator import recomputed, untraced
from fenchel.layout import layout_of, spans
from fenchel.preference import Discrete, GaussianMixture
from fenchel.preference.discrete import log_weights
from fenchel.problem import Problem
from fenchel.selection import narrowed
from fenchel.solver import Estimator, Exact, SecondOrder
from fenchel.solver.closed_form import second_order_point
from fenchel.solver.exact import blocks_of, solved_block
from fenchel.solver.implicit import implicit_dual_point

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

    # An iteration that looks at values is nothing to trace.
    @untraced
    def dual_point(self, solver: Estimator, remedy: str) -> Tensor:
        """λ of second order or of the exact estimator; see :func:`solved_dual_point`."""
        # An expansion has the curvature in it, which one's own closeness may have made by torch.func.
        foreign = isinstance(solver, SecondOrder) and not isinstance(self.closeness, KL | Tsallis)

        def of_part(part: ProblemRows, _: Tensor) -> Tensor:
            dual = _solution(part.problem(), solver, remedy)

            def joined() -> Tensor:
                return _joined(part.problem(), solver, dual)

            # Built anew in the backward pass: the residual's graph has arrays of all weights.
            return joined() if foreign else recomputed(joined)

        return in_parts(self, of_part, self.evidence, again=False)

    def gap(self, dual: Tensor) -> Tensor:
        r"""The gap :math:`\tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`, differentiable, (B, H, m)."""
        return in_parts(self, lambda part, lam: part.problem().gap_at(lam), dual)

    def row_bytes(self) -> int:
        """Of one query of all heads and sequences in an array (B, H, m, n)."""
        return self.evidence.shape[:2].numel() * self.templates.shape[2] * self.evidence.element_size()

    def sequences(self) -> Iterator[tuple[slice, ProblemRows]]:
        """All sequences together, or each by itself where together they are too many."""
        count = self.evidence.shape[0]
        shapes = self.closeness.query_shapes().values()
        shared = all(len(shape) < 3 or shape[-3] == 1 for shape in shapes)
        together = count == 1 or not shared or LEAST_QUERIES * self.row_bytes() <= LARGEST_BYTES
        for span in spans(count, count if together else 1):
            yield span, self if together else self.narrowed(0, span, self.closeness)

    def parts(self) -> Iterator[tuple[slice, ProblemRows]]:
        """Ranges of queries."""
        queries, each = self.evidence.shape[2], max(LEAST_QUERIES, PART_BYTES // max(1, self.row_bytes()))
        if queries <= each:
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
    layout = layout_of(problem)
    dual = layout.empty(problem.conjugate.dim)
    if not isinstance(solver, Exact):
        for where, block in blocks_of(layout):
            block = block.to(torch.float64) if block.family.selectable else block
            dual[where] = second_order_point(block).to(problem.dtype)
        return layout.restore(dual)
    (tol, steps), missed = limits(solver, problem.dtype), 0
    for where, block in blocks_of(layout):
        certificate, _ = solved_block(block, problem.dtype, tol, steps)
        dual[where] = certificate.dual
        missed += int((~certificate.meets(tol)).sum())
    if missed:
        raise ConvergenceError(
            f"{missed} of {problem.shape.numel()} queries did not reach dual_error <= {tol:g} ||dual|| within {steps} "
            f"steps. Raise tol or max_steps, give the tensors in float64, or make {remedy}"
        )
    return layout.restore(dual)
