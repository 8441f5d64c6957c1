r"""Certificates of attention, and queries as problems of the core, which has estimates and bounds for any closeness.

Queries are split into parts, each of them a problem: anything that defines weights and a curvature, or a cumulant, gets
every estimator, bound and gradient. The backward pass recomputes each part, and (m, n) arrays are freed after their
part.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fenchel.blocks import CACHE_BYTES, Box, boxes_of_queries, in_parts
from fenchel.closeness import KL, AbstractCloseness, Tsallis
from fenchel.estimate import certify
from fenchel.estimators import Estimator, Exact, FirstOrder, SecondOrder
from fenchel.estimators.exact_solver import check_reached, solved_block
from fenchel.estimators.implicit import second_order_point
from fenchel.family import Block
from fenchel.functional.arguments import (
    AttentionArguments,
    compute_dtype,
    dropped,
    largest_level,
    normalised_log_weights,
    softmax_under,
    unit_of_products,
)
from fenchel.functional.exact import REMEDY, limits, untraced
from fenchel.preference import Discrete, GaussianMixture
from fenchel.problem import Problem, QueryLayout
from fenchel.tensors import LINEAR, may_attend, norm, summed


@torch.no_grad()
def means_at(call: AttentionArguments, dual: Tensor, key: Tensor, averaged: Tensor) -> Tensor:
    """Means under the weights at dual points, (B, H, m, c), without gradient.

    Args:
        call: Checked arguments.
        dual: λ, (B, H, m, d).
        key: The keys, possibly less a vector for each head, which does not change the weights.
        averaged: Values to average, (B, H_kv, n, c), with the dtype of the key, float32 or float64.
    """

    def of_part(box: Box, lam: Tensor, log_u: Tensor | None, key: Tensor, averaged: Tensor) -> Tensor:
        return softmax_under(lam @ key.mT, log_u).to(key.dtype) @ averaged

    lam, of_keys = dual.to(key.dtype) * call.scale, [call.of_query_heads(x) for x in (key, averaged)]
    cut = boxes_of_queries(lam, key.shape[2], part_bytes=CACHE_BYTES)
    return in_parts(of_part, cut, (lam, call.log_preference), of_keys)


# Errors of logits up to a tenth move a mean by at most this multiple of their first-order effect.
_BEYOND_FIRST_ORDER = 1.5

_LARGEST_EXPONENT = 80.0


class AttentionCertificate(NamedTuple):
    r"""Bounds that hold for every query, from one attention pass (facts 1 and 2).

    Attributes:
        gap: Duality gap :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`; at first order half the squared
            shift of the mean, times α. The weights are within total variation √(gap/2) of the exact ones. (B, H, m).
        mean_error: Bound on ‖h - h*‖, the distance of the mean of the templates from the exact one, (B, H, m).
        dual_error: Bound on ‖λ - λ*‖, (B, H, m).

    The bounds are for the distribution at λ and include the rounding of their own evaluation; the output is the mean of
    that distribution up to the rounding of its dtype. They have no gradient, and are 0 for a query with nothing to
    attend to.
    """

    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor


def _centred(call: AttentionArguments) -> tuple[Tensor, Tensor, Tensor]:
    r"""Keys less a vector c for each head, which only reduces rounding errors, but by much (fact 3).

    The vector is their mean under u if queries share u, else their unweighted mean.

    Returns:
        :math:`k - c` and :math:`\lVert k - c\rVert^2`, concatenated, (B, H_kv, n, d + 1) in float32 or float64; their
        mean under u, (B, H, m or 1, d + 1); and the largest :math:`\lVert k - c\rVert` that may get weight, of each
        head, (B, H, 1, 1) in float64.
    """
    shared, preference = call.log_preference_is_shared, call.log_preference
    key = call.key.to(compute_dtype(call.key.dtype))

    def at_rest(templates: Tensor) -> Tensor:
        """Means under u, (B, H, m or 1, c)."""
        if shared:
            each = call.of_query_heads(templates)
            return normalised_log_weights(preference, each).exp() @ each
        # With a dimension of 0 every score is 0.
        return means_at(call, call.query[..., :0], templates[..., :0], templates)

    means = at_rest(key).unflatten(1, (key.shape[1], -1)).mean(2) if shared else key
    key = key - means.mean(-2, keepdim=True)
    squares = torch.linalg.vecdot(key, key).unsqueeze(-1)
    moments = torch.cat([key, squares], -1)
    squares = call.of_query_heads(squares)
    if shared and preference is not None:
        squares = squares.masked_fill(~may_attend(preference).mT, 0)
    return moments, at_rest(moments), squares.amax(-2, keepdim=True).double().sqrt()


@torch.no_grad()
def certificate_at(
    call: AttentionArguments, dual: Tensor, *others: Tensor, first_order: bool
) -> tuple[AttentionCertificate, list[Tensor]]:
    r"""The certificate of dual points, rounding included.

    With templates t = s(k - c) of norm R at most, :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` is at most its
    computed value plus its rounding error, see :func:`lost_to_rounding`. It is also at most
    :math:`\lVert z - \lambda/\alpha\rVert` plus the shift of the mean,

    .. math:: \lVert\mu - \hat h\rVert \le \lVert\lambda\rVert \sup\lVert\nabla^2\varphi\rVert
              \le \lVert\lambda\rVert\,e^{2\lVert\lambda\rVert R}\,\mathbb{E}_u\lVert t\rVert^2

    since weights are at most :math:`e^{2\lVert\lambda\rVert R}u`. The second bound is smaller where λ is so short that
    the difference of means is mostly rounding.

    Args:
        call: Checked arguments.
        dual: λ, (B, H, m, d).
        *others: Averaged in the same pass over the keys, (B, H_kv, n, any) each.
        first_order: Whether λ is αz, rounded.

    Returns:
        The certificate, and the averages.
    """
    moments, rest, largest = _centred(call)
    key, averaged = moments[..., :-1], [moments, *(x.to(moments.dtype) for x in others)]
    together = torch.cat(averaged, -1) if others else moments
    means, *result = means_at(call, dual, key, together).split([x.shape[-1] for x in averaged], -1)
    dtype, scale = means.dtype, abs(call.scale)
    unit, width = torch.finfo(dtype).eps / 2, dual.shape[-1]
    alpha = call.alpha.double() if isinstance(call.alpha, Tensor) else call.alpha
    length = norm_of(dual)
    gradient = (rest[..., :-1] - means[..., :-1]) * call.scale
    if first_order and dual.dtype == dtype:
        # z - λ/α is the rounding error of αz, and 0 if α is 1.
        exact = not isinstance(alpha, Tensor) and alpha == 1
        apart = besides = 0.0 if exact else 2 * unit * length / alpha
    else:
        evidence = call.query.to(dtype)
        unmet = evidence - dual.to(dtype) / (alpha.to(dtype) if isinstance(alpha, Tensor) else alpha)
        gradient = gradient + unmet
        besides = 4 * unit * (norm_of(evidence) + length / alpha)
        apart = norm_of(unmet) + besides
    spread, at_rest = (each[..., -1:].double().sqrt() * scale for each in (means, rest))
    reach = length * (largest * scale)
    has_levels = call.log_preference is not None and call.log_preference.dtype != torch.bool
    lost = lost_to_rounding(call, length, reach, (spread, at_rest), dtype, has_levels=has_levels)
    computed = norm_of(gradient) + besides + lost
    known = length * at_rest.square() * (2 * reach).clamp(max=_LARGEST_EXPONENT).exp()
    known = torch.where(reach <= _LARGEST_EXPONENT / 2, known, 2 * scale * largest)
    norm = torch.minimum(computed, known + apart) * (1 + (summed(width) + 16) * unit)
    return certificate_of(norm, alpha, dtype), result


def certificate_of(norm: Tensor, alpha: float | Tensor, dtype: torch.dtype) -> AttentionCertificate:
    """The certificate from a bound on the norm of the dual's gradient, (B, H, m, 1), with α that broadcasts to it."""
    # A gap that underflows the dtype is not 0.
    gap = alpha / 2 * norm.square() + norm.clamp(max=torch.finfo(dtype).tiny)
    return AttentionCertificate(*(bound.squeeze(-1).to(dtype) for bound in (gap, norm, alpha * norm)))


def norm_of(vectors: Tensor) -> Tensor:
    """Norms, (..., 1) in float64, whose squares do not underflow."""
    if vectors.dtype == torch.float64:
        return norm(vectors)
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)


def lost_to_rounding(
    call: AttentionArguments,
    length: Tensor,
    reach: Tensor,
    spreads: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    *,
    has_levels: bool,
) -> Tensor:
    r"""Bound on the rounding error of μ - ĥ, (B, H, m, 1): infinite where a first-order bound does not hold.

    Errors :math:`\delta` of logits change a mean by at most
    :math:`\sqrt{\mathbb{E}\delta^2\,\mathbb{E}\lVert t\rVert^2}` (Cauchy-Schwarz), errors of weights and sums by their
    size times :math:`\sqrt{\mathbb{E}\lVert t\rVert^2}`. Logits are inner products, off by some roundings of ‖λ‖‖t‖, to
    which log weights are added; a logit that is y below the largest has a weight of :math:`e^{-y}` relative to it,
    which makes :math:`\sqrt{\mathbb{E}y^2}` at most log n + 1.

    Args:
        call: Checked arguments.
        length: ‖λ‖, (B, H, m, 1).
        reach: ‖λ‖ times the largest ‖t‖.
        spreads: Bounds on :math:`\sqrt{\mathbb{E}\lVert t\rVert^2}` at λ and under u.
        dtype: Of the computed means.
        has_levels: Whether log weights are added to the inner products.
    """
    unit, products = torch.finfo(dtype).eps / 2, unit_of_products(dtype, call.query.device.type)
    count, dim = call.key.shape[-2:]
    of_products = 2 * products + (summed(dim) + 10) * unit
    of_sums = 2 * products + (2 * summed(count) + 10) * unit
    rest, added = of_sums, 0.0
    differing = (3 * (math.log(count) + 2) + 8) * unit
    if has_levels:
        added = 2 * unit
        differing += added * largest_level(call.query.dtype)
    if has_levels or call.log_preference is not None:
        rest += _BEYOND_FIRST_ORDER * differing
    spread, at_rest = spreads
    of_logits = length * spread * of_products + differing
    if has_levels:
        of_logits = of_logits + added * reach
    result = (of_logits * _BEYOND_FIRST_ORDER + of_sums) * spread + rest * at_rest
    return torch.where((of_products + added) * reach + differing <= LINEAR, result, torch.inf)


@dataclass(frozen=True, eq=False)
class ProblemRows:
    """Inference problems of some queries, heads and sequences.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: (B, H, n, d).
        log_preference: Bool or floating, (B or 1, H or 1, m or 1, n), something to attend to in every row; or None.
        alpha: α, (B or 1, H or 1, m or 1, 1).
        closeness: D, whose own numbers broadcast to (B, H, m).
        variances: (B, H, n, d or 1), of templates that are means of Gaussians; None where they are points.
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
        """The problem of the core."""
        if self.variances is None:
            preference = Discrete(self.templates, self.log_weights())
        else:
            preference = GaussianMixture(self.templates, self.variances, self.log_weights())
        return Problem(preference, self.evidence, self.alpha.squeeze(-1), self.closeness)

    def dual_point(self, solver: Estimator, remedy: str) -> Tensor:
        """λ of an estimator, (B, H, m, d), never in a half type; see :func:`solved_dual_point`."""
        if isinstance(solver, FirstOrder):
            return self.alpha * self.evidence
        return self._solved(solver, remedy)

    @untraced  # data-dependent iteration
    def _solved(self, solver: Estimator, remedy: str) -> Tensor:
        dual = _solution(self.problem(), solver, remedy)
        if not torch.is_grad_enabled():
            return dual

        def joined(part: ProblemRows, lam: Tensor) -> Tensor:
            return solver.joined(part.problem(), lam)

        # Recomputed in the backward pass: the residual's graph has arrays of all weights. But the expansion contains
        # the curvature, which a custom closeness may compute by torch.func.
        foreign = isinstance(solver, SecondOrder) and not isinstance(self.closeness, KL | Tsallis)
        return self.in_parts(joined, dual, again=not foreign)

    def weights(self, dual: Tensor) -> Tensor:
        """P at dual points (B, H, m, d), (B, H, m, n)."""
        return self.in_parts(_weights, dual)

    def average(self, dual: Tensor, values: Tensor, dropout_p: float) -> Tensor:
        """The mean of values (B, H, n, d_v) at dual points, (B, H, m, d_v)."""

        def of_part(part: ProblemRows, lam: Tensor, value: Tensor) -> Tensor:
            return dropped(_weights(part, lam), dropout_p) @ value

        return self.in_parts(of_part, dual, values)

    def gap_at(self, dual: Tensor) -> Tensor:
        r"""The gap :math:`\tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`, differentiable, (B, H, m)."""
        return self.in_parts(lambda part, lam: part.problem().gap_at(lam), dual)

    @torch.no_grad()
    def certificate(self, dual: Tensor) -> AttentionCertificate:
        """The certificate of dual points, in their dtype, for problems in float64."""
        return certificate_of(self.in_parts(_bound_on_gradient, dual), self.alpha, dual.dtype)

    def in_parts(
        self, function: Callable[..., Tensor], points: Tensor, *of_keys: Tensor, again: bool = True
    ) -> Tensor:
        """Apply a function to the queries part by part, (B, H, m, ...).

        Args:
            function: A function of a part, its points and its parts of ``of_keys``.
            points: (B, H, m, d).
            *of_keys: (B, H, n, any) each.
            again: Whether the backward pass recomputes a part instead of keeping its arrays.
        """
        # Sequences are not split where the closeness has numbers for each.
        shapes = self.closeness.query_shapes().values()
        whole_batch = any(len(shape) > 2 and shape[-3] > 1 for shape in shapes)
        cut = boxes_of_queries(self.evidence, self.templates.shape[2], whole_batch=whole_batch)

        def of_part(box: Box, z: Tensor, log_u: Any, alpha: Tensor, *tensors: Any) -> Tensor:
            lam, templates, variances, *others = tensors
            closeness = self.closeness.queries(box[1])
            return function(ProblemRows(z, templates, log_u, alpha, closeness, variances), lam, *others)

        by_query = self.evidence, self.log_preference, self.alpha, points
        return in_parts(of_part, cut, by_query, (self.templates, self.variances, *of_keys), again=again)


def _weights(rows: ProblemRows, dual: Tensor) -> Tensor:
    """P at dual points (B, H, m, d), (B, H, m, n)."""
    return rows.closeness.weights(dual @ rows.templates.mT, rows.log_weights())


def _bound_on_gradient(rows: ProblemRows, dual: Tensor) -> Tensor:
    """Upper bound on the norm of the dual's gradient at λ, and at λ before it was rounded, (B, H, m, 1) in float64."""
    block, unit = Block(rows.problem().conjugate, rows.evidence, rows.alpha), torch.finfo(dual.dtype).eps / 2
    bound = certify(block, dual, torch.float64).dual_error.unsqueeze(-1)
    return (bound + 4 * unit * norm_of(dual)) / rows.alpha * (1 + 16 * unit)


@untraced  # looks at values
def solved_dual_point(problem: Problem, solver: Estimator, remedy: str) -> Tensor:
    """λ of the second-order or exact estimator, (..., m, d), with gradients to all tensors of the problem.

    Args:
        problem: The problem.
        solver: The estimator.
        remedy: Further advice for queries that do not converge, after "make".

    Raises:
        ConvergenceError: If a query does not converge.
    """
    dual = _solution(problem, solver, remedy)
    return solver.joined(problem, dual) if torch.is_grad_enabled() else dual


@torch.no_grad()
def _solution(problem: Problem, solver: Estimator, remedy: str) -> Tensor:
    """λ without gradient."""
    tol, steps = limits(solver, problem.dtype) if isinstance(solver, Exact) else (0.0, 0)

    def solve(block: Block) -> dict[str, Tensor]:
        if isinstance(solver, Exact):
            result = certify(block, solved_block(block, tol, steps)[0], problem.dtype)
            error = result.dual_error / result.reference
            return {"dual": result.dual, "error": error.masked_fill(result.dual_error == 0, 0)}
        block = block.to(torch.float64) if block.family.selectable else block
        return {"dual": second_order_point(block).to(problem.dtype)}

    result = QueryLayout(problem).solved(solve)
    if isinstance(solver, Exact):
        error = result["error"]
        check_reached(~(error <= tol), error, tol, steps, REMEDY.format(remedy))
    return result["dual"]
