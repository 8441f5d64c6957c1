r"""Attention under any closeness: weights :math:`p = \nabla D^*(T\lambda)` in the place of a softmax.

Queries are taken in parts, whose weights are computed again in the backward pass: no (m, n) array outlives its part. A
part is a problem of the core, so that whatever offers weights and a curvature has every estimator, bound and gradient.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fenchel.arguments.tensor import values_are_known
from fenchel.closeness import AbstractCloseness, Tsallis
from fenchel.closeness.rounding import summed
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.certificate import AttentionCertificate, norm_of
from fenchel.functional.close_rows import CloseRows, for_heads, in_parts
from fenchel.functional.precision import unit_of_products, without_autocast
from fenchel.functional.recomputed import recomputed
from fenchel.functional.solved import equation_of, solution_of
from fenchel.functional.untraced import untraced
from fenchel.solver.implicit import implicit_dual_point

__all__ = ["CloseAttention"]


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
            _check_finite(query=rows.evidence, key=rows.templates)
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
            values = for_heads(self._given.value.to(dual.dtype), self._given)
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
            alpha, dtype = rows.alpha.double(), dual.dtype
            bounds = (alpha / 2 * norm.square(), norm, alpha * norm)
            return AttentionCertificate(*(bound.squeeze(-1).to(dtype) for bound in bounds))

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


def _check_finite(**tensors: Tensor) -> None:
    """Refuse NaN by the names that attention has for what a problem of the core is made of."""
    for name, tensor in tensors.items():
        if values_are_known(tensor) and not bool(torch.isfinite(tensor).all()):
            raise ProblemError(
                f"{name} contains NaN or infinity; every entry must be finite, masked ones too"
            )


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
