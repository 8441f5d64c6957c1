r"""Attention under any closeness: weights :math:`p = \nabla D^*(T\lambda)` in the place of a softmax.

Queries are taken in parts, whose weights are computed again in the backward pass: no (m, n) array outlives its part. A
part is a problem of the core, so that whatever offers weights and a curvature has every estimator, bound and gradient.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.closeness import KL, AbstractCloseness, Divergence, OptimalTransport, Tsallis
from fenchel.conjugate import conjugate_of
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.exact import equation_of, solution_of
from fenchel.functional.inference import AttentionCertificate, certificate_of, norm_of
from fenchel.functional.operator import (
    compute_dtype,
    recomputed,
    unit_of_products,
    untraced,
    without_autocast,
)
from fenchel.layout import spans
from fenchel.preference import Discrete
from fenchel.preference.discrete import log_weights
from fenchel.problem import Problem
from fenchel.rounding import summed
from fenchel.selection import narrowed
from fenchel.solver.implicit import implicit_dual_point
from fenchel.tensors import broadcasts_to, check_device, check_finite, check_not_mapped

__all__ = [
    "CloseAttention",
    "CloseRows",
    "check_kind",
    "checked_closeness",
    "closeness_of_heads",
    "closeness_on",
    "in_parts",
    "is_softmax",
]


class CloseAttention:
    """One call under a closeness that is not Kullback and Leibler's.

    Args:
        given: Checked arguments.
        closeness: D, checked.
    """

    def __init__(self, given: AttentionArguments, closeness: AbstractCloseness) -> None:
        self._given = given
        with without_autocast(given.query):
            self._rows = CloseRows.of(given, closeness)

    def dual_point(self, estimator: str, tol: float | None, max_steps: int) -> Tensor:
        """λ of an estimator, (B, H, m, d), in the dtype of the computation; never in a half type."""
        rows = self._rows
        with without_autocast(rows.evidence):
            if estimator == "first_order":
                return rows.alpha * rows.evidence
            check_finite(always=True, query=rows.evidence, key=rows.templates)
            # Of one number for all of its rows the core has a faster way than of one a row.
            heads = range(rows.evidence.shape[1])
            some = [rows.head(head) for head in heads] if rows.has_numbers_of_heads_alone() else [rows]
            found = [_solved(one, estimator, tol, max_steps) for one in some]
            return found[0] if len(found) == 1 else torch.cat(found, 1)

    def output(self, dual: Tensor, dropout_p: float) -> Tensor:
        """The mean of the values at dual points, (B, H, m, d_v), in the dtype of the query."""

        def average(part: CloseRows, lam: Tensor, value: Tensor) -> Tensor:
            return torch.dropout(part.weights(lam), dropout_p, train=dropout_p > 0) @ value

        with without_autocast(dual):
            values = self._given.of_query_heads(self._given.value.to(dual.dtype))
            return self._answer(in_parts(self._rows, average, dual, values))

    def weights(self, dual: Tensor) -> Tensor:
        """The weights, (B, H, m, n), in the dtype of the query."""
        with without_autocast(dual):
            return self._answer(in_parts(self._rows, CloseRows.weights, dual))

    def gap(self, dual: Tensor) -> Tensor:
        r"""The gap :math:`\tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`, differentiable, (B, H, m)."""
        with without_autocast(dual):
            found = in_parts(self._rows, lambda part, lam: part.problem().gap_at(lam).unsqueeze(-1), dual)
            return self._given.without_empty_rows(found).squeeze(-1)

    @torch.no_grad()
    def certificate(self, dual: Tensor) -> AttentionCertificate:
        """What dual points certify, with what rounding can hide."""
        with without_autocast(dual):
            templates = self._rows.templates
            rows = replace(self._rows, templates=templates - templates.mean(-2, keepdim=True))
            norm = self._given.without_empty_rows(in_parts(rows, _bound_on_gradient, dual))
            return certificate_of(norm, rows.alpha.double(), dual.dtype)

    def _answer(self, found: Tensor) -> Tensor:
        return self._given.without_empty_rows(found.to(self._given.query.dtype))


def _bound_on_gradient(rows: CloseRows, dual: Tensor) -> Tensor:
    r"""At least the norm of the dual's gradient, (B, H, m, 1) in float64.

    Where the closeness is strongly convex by σ potentials that are off by :math:`\delta` move weights by
    :math:`2\max|\delta|/\sigma` in the 1-norm, and means by that times the largest norm R of a template: so much for
    rounding, and for how far λ itself moves the mean.
    """
    problem, (count, dim) = rows.problem(), rows.templates.shape[-2:]
    unit, products = torch.finfo(dual.dtype).eps / 2, unit_of_products(dual.dtype, dual.device.type)
    radius, length = norm_of(rows.templates).amax(-2, keepdim=True), norm_of(dual)
    modulus = torch.as_tensor(problem.conjugate.modulus, device=dual.device).double().unsqueeze(-1)
    moved = 2 * length * radius.square() / modulus
    of_sums = 4 * products + (4 * summed(count) + 64) * unit
    unmet = norm_of(rows.evidence - dual / rows.alpha)
    of_vectors = 4 * unit * (unmet + 2 * length / rows.alpha)
    lost = (2 * products + (summed(dim) + 10) * unit) * moved + of_sums * radius
    computed = norm_of(problem.dual_gradient(dual)) + lost.nan_to_num(nan=torch.inf)
    known = unmet + torch.fmin(moved, 2 * radius)
    return (torch.minimum(computed, known) + of_vectors) * (1 + (summed(dim) + 16) * unit)


# An iteration that looks at values is nothing to trace.
@untraced
def _solved(rows: CloseRows, estimator: str, tol: float | None, max_steps: int) -> Tensor:
    def of_part(part: CloseRows, _: Tensor) -> Tensor:
        remedy = "alpha, the query or the norms of the keys smaller"
        with torch.no_grad():
            dual = solution_of(part.problem(), estimator, tol, max_steps, remedy)
        if not torch.is_grad_enabled():
            return dual

        def joined() -> Tensor:
            return implicit_dual_point(part.problem(), equation_of(estimator), dual)

        # An expansion has the curvature in it, which one's own closeness may have made by torch.func.
        foreign = estimator == "second_order" and not isinstance(part.closeness, Tsallis)
        # Built anew in the backward pass: the residual's graph has arrays of all weights.
        return joined() if foreign else recomputed(joined)

    return in_parts(rows, of_part, rows.evidence, again=False)


PART_BYTES = 2**25
"""Size aimed at for one (B, H, queries, n) array of a part."""

LEAST_QUERIES = 32
"""Queries that a part has at least, since it goes through all keys."""

LARGEST_BYTES = 2**28
"""Size of that array from which sequences are taken by themselves, where they share the closeness."""


@dataclass(frozen=True)
class CloseRows:
    """Some queries of some heads and sequences.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: (B, H, n, d).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), something to attend to in every row; or
            None.
        alpha: α, (B or 1, H or 1, m or 1, 1).
        closeness: D, with numbers of its own that broadcast to (B, H, m).
    """

    evidence: Tensor
    templates: Tensor
    log_preference: Tensor | None
    alpha: Tensor
    closeness: AbstractCloseness

    @classmethod
    def of(cls, given: AttentionArguments, closeness: AbstractCloseness) -> CloseRows:
        """Those of a call, never in a half type."""
        evidence, templates, preference, alpha = given.problem_in(compute_dtype(given.query.dtype))
        found = cls(evidence, given.of_query_heads(templates), preference, alpha, closeness)
        if isinstance(closeness, Divergence):
            # Which is tried when it first meets a preference.
            closeness.bind(Discrete(found.templates, next(found.parts())[1].log_weights()))
        return found

    def log_weights(self) -> Tensor:
        """Log u, normalised, (B or 1, H or 1, m or 1, n)."""
        given, like = self.log_preference, self.templates
        if given is None:
            return like.new_zeros(1, 1, 1, like.shape[-2]).log_softmax(-1)
        return log_weights(given, like.dtype).log_softmax(-1)

    def weights(self, dual: Tensor) -> Tensor:
        """P at dual points (B, H, m, d), (B, H, m, n)."""
        return self.closeness.weights(dual @ self.templates.mT, self.log_weights())

    def problem(self) -> Problem:
        """The same as a problem of the core."""
        believed = Discrete(self.templates, self.log_weights())
        return Problem(conjugate_of(believed, self.closeness), self.evidence, self.alpha.squeeze(-1))

    def head(self, index: int) -> CloseRows:
        """One head."""
        closeness = closeness_of_heads(self.closeness, torch.tensor([index], device=self.evidence.device))
        return self._narrowed(1, slice(index, index + 1), closeness)

    def has_numbers_of_heads_alone(self) -> bool:
        """Whether the closeness has numbers, that heads have of their own and their queries share."""
        shapes = self.closeness.query_shapes().values()
        of_heads = [shape for shape in shapes if len(shape) > 1 and shape[-2] > 1]
        return bool(of_heads) and all(
            shape[-1] == 1 and (len(shape) < 3 or shape[-3] == 1) for shape in of_heads
        )

    def row_bytes(self) -> int:
        """Of one query of all heads and sequences in an array (B, H, m, n)."""
        return self.evidence.shape[:2].numel() * self.templates.shape[2] * self.evidence.element_size()

    def sequences(self) -> Iterator[tuple[slice, CloseRows]]:
        """All sequences together, or each by itself where together they are too many."""
        count = self.evidence.shape[0]
        shapes = self.closeness.query_shapes().values()
        shared = all(len(shape) < 3 or shape[-3] == 1 for shape in shapes)
        together = count == 1 or not shared or LEAST_QUERIES * self.row_bytes() <= LARGEST_BYTES
        each = count if together else 1
        for span in spans(count, each):
            yield span, self if together else self._narrowed(0, span, self.closeness)

    def parts(self) -> Iterator[tuple[slice, CloseRows]]:
        """Ranges of queries."""
        queries, each = self.evidence.shape[2], max(LEAST_QUERIES, PART_BYTES // max(1, self.row_bytes()))
        if queries <= each:
            yield slice(0, queries), self
            return
        for span in spans(queries, each):
            yield span, self._narrowed(2, span, self.closeness.queries(span))

    def _narrowed(self, dim: int, span: slice, closeness: AbstractCloseness) -> CloseRows:
        preference = self.log_preference
        return CloseRows(
            narrowed(self.evidence, dim, span),
            self.templates if dim == 2 else narrowed(self.templates, dim, span),
            None if preference is None else narrowed(preference, dim, span),
            narrowed(self.alpha, dim, span),
            closeness,
        )


def in_parts(
    rows: CloseRows, function: Callable[..., Tensor], points: Tensor, *of_keys: Tensor, again: bool = True
) -> Tensor:
    """A function of queries part by part, put together, (B, H, m, any).

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


def is_softmax(closeness: AbstractCloseness | None) -> bool:
    """Whether weights are a softmax, which is what attention is when nothing else is said."""
    return closeness is None or isinstance(closeness, KL)


def check_kind(closeness: Any, estimator: str) -> None:
    """Refuse what is no closeness of attention, or has no such estimator.

    Raises:
        ProblemError: Naming what was given.
    """
    if closeness is None:
        return
    if not isinstance(closeness, AbstractCloseness):
        expected = "one such as fenchel.Tsallis(1.5), or None for softmax"
        if isinstance(closeness, type):
            expected = f"an object of it, such as fenchel.{closeness.__name__}(...)"
        raise ProblemError(f"closeness is {shown(closeness)}; expected {expected}")
    if isinstance(closeness, OptimalTransport):
        raise ProblemError(
            "closeness is an OptimalTransport, whose weights reach further than the keys; use "
            "fenchel.functional.transport_attention or fenchel.nn.TransportAttention"
        )
    if estimator != "first_order" and not closeness.curved:
        raise ProblemError(
            f"closeness is {closeness!r}, whose weights jump, so that there is no {estimator!r} estimate; expected "
            "estimator='first_order', or a closeness with a small temperature, such as fenchel.Tsallis(2, "
            "temperature=0.01)"
        )


def checked_closeness(
    closeness: AbstractCloseness | None, estimator: str, query: Tensor
) -> AbstractCloseness | None:
    """The closeness in the dtype that a call computes in, or None where that is softmax attention.

    Args:
        closeness: What was given.
        estimator: Of the call.
        query: (B, H, m, d).

    Raises:
        ProblemError: If it is none, has no such estimator, or has numbers of other heads or queries.
    """
    check_kind(closeness, estimator)
    if closeness is None or is_softmax(closeness):
        return None
    if estimator != "first_order":
        check_not_mapped(f"{estimator} attention under {type(closeness).__name__}", query)
    lead, name = tuple(query.shape[:3]), type(closeness).__name__
    for argument, shape in closeness.query_shapes().items():
        if not broadcasts_to(shape, lead):
            raise ProblemError(
                f"{argument} of {name} has shape {tuple(shape)}; expected one that broadcasts to (batch, heads, "
                f"queries) = {lead}: one a head has shape ({lead[1]}, 1)"
            )
        own = getattr(closeness, argument, None)
        if isinstance(own, Tensor):
            check_device(f"{argument} of {name}", own, query.device)
    return closeness.to(torch.float64 if query.dtype == torch.float64 else torch.float32)


def closeness_on(closeness: AbstractCloseness, device: torch.device) -> AbstractCloseness:
    """The closeness with the numbers of its own on a device, for a layer that was moved there."""
    if not isinstance(closeness, Tsallis):
        return closeness
    own = (closeness.order, closeness.temperature)
    if all(not isinstance(part, Tensor) or part.device == device for part in own):
        return closeness
    order, temperature = (part.to(device) if isinstance(part, Tensor) else part for part in own)
    return Tsallis(order, closeness.relative, temperature)


def closeness_of_heads(closeness: AbstractCloseness, heads: Tensor) -> AbstractCloseness:
    """The closeness of some heads, by their indices from 0, where it has numbers of its own for each."""

    def chosen(own: Any) -> Any:
        several = isinstance(own, Tensor) and own.dim() > 1 and own.shape[-2] > 1
        return own.index_select(-2, heads.to(own.device)) if several else own

    if isinstance(closeness, Tsallis):
        # Built, not copied: with one number for all rows it offers a faster way.
        return Tsallis(chosen(closeness.order), closeness.relative, chosen(closeness.temperature))
    part = copy.copy(closeness)
    for argument in closeness.query_shapes():
        setattr(part, argument, chosen(getattr(closeness, argument, None)))
    return part
