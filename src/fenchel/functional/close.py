r"""Attention under any closeness: weights :math:`p = \nabla D^*(T\lambda)` in the place of a softmax."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.closeness import KL, AbstractCloseness, Divergence, OptimalTransport, Tsallis
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import ProblemError
from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.inference import AttentionCertificate, certificate_of, norm_of
from fenchel.functional.operator import compute_dtype, unit_of_products, without_autocast
from fenchel.functional.problems import ProblemRows, in_parts
from fenchel.preference import Discrete
from fenchel.rounding import summed
from fenchel.solver import Estimator, FirstOrder
from fenchel.tensors import broadcasts_to, check_device, check_finite, check_not_mapped

__all__ = [
    "CloseAttention",
    "check_kind",
    "checked_closeness",
    "closeness_of_heads",
    "closeness_on",
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
            evidence, templates, log_u, alpha = given.problem_in(compute_dtype(given.query.dtype))
            self._rows = ProblemRows(evidence, given.of_query_heads(templates), log_u, alpha, closeness)
            if isinstance(closeness, Divergence):
                # Which is tried when it first meets a preference.
                closeness.bind(Discrete(self._rows.templates, next(self._rows.parts())[1].log_weights()))

    def dual_point(self, solver: Estimator) -> Tensor:
        """λ of an estimator, (B, H, m, d), in the dtype of the computation; never in a half type."""
        rows = self._rows
        with without_autocast(rows.evidence):
            if isinstance(solver, FirstOrder):
                return rows.alpha * rows.evidence
            check_finite(always=True, query=rows.evidence, key=rows.templates)
            remedy = "alpha, the query or the norms of the keys smaller"
            return torch.cat([one.dual_point(solver, remedy) for one in _with_one_number(rows)], 1)

    def output(self, dual: Tensor, dropout_p: float) -> Tensor:
        """The mean of the values at dual points, (B, H, m, d_v), in the dtype of the query."""

        def average(part: ProblemRows, lam: Tensor, value: Tensor) -> Tensor:
            return torch.dropout(_weights(part, lam), dropout_p, train=dropout_p > 0) @ value

        with without_autocast(dual):
            values = self._given.of_query_heads(self._given.value.to(dual.dtype))
            return in_parts(self._rows, average, dual, values).to(self._given.query.dtype)

    def weights(self, dual: Tensor) -> Tensor:
        """The weights, (B, H, m, n), in the dtype of the query."""
        with without_autocast(dual):
            return in_parts(self._rows, _weights, dual).to(self._given.query.dtype)

    def gap(self, dual: Tensor) -> Tensor:
        r"""The gap :math:`\tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`, differentiable, (B, H, m)."""
        with without_autocast(dual):
            return self._rows.gap(dual)

    @torch.no_grad()
    def certificate(self, dual: Tensor) -> AttentionCertificate:
        """What dual points certify, with what rounding can hide."""
        with without_autocast(dual):
            templates = self._rows.templates
            rows = replace(self._rows, templates=templates - templates.mean(-2, keepdim=True))
            return certificate_of(in_parts(rows, _bound_on_gradient, dual), rows.alpha.double(), dual.dtype)


def _weights(rows: ProblemRows, dual: Tensor) -> Tensor:
    """P at dual points (B, H, m, d), (B, H, m, n)."""
    return rows.closeness.weights(dual @ rows.templates.mT, rows.log_weights())


def _with_one_number(rows: ProblemRows) -> Iterator[ProblemRows]:
    """Heads by themselves where the closeness has numbers of theirs alone: the core is faster with one for all rows."""
    shapes = [shape for shape in rows.closeness.query_shapes().values() if len(shape) > 1 and shape[-2] > 1]
    if not shapes or any(shape[-1] > 1 or (len(shape) > 2 and shape[-3] > 1) for shape in shapes):
        yield rows
        return
    for head in range(rows.evidence.shape[1]):
        index = torch.tensor([head], device=rows.evidence.device)
        yield rows.narrowed(1, slice(head, head + 1), closeness_of_heads(rows.closeness, index))


def _bound_on_gradient(rows: ProblemRows, dual: Tensor) -> Tensor:
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


def is_softmax(closeness: AbstractCloseness | str | None) -> bool:
    """Whether weights are a softmax, which is what attention is when nothing else is said."""
    return closeness is None or isinstance(closeness_of(closeness), KL)


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
    closeness: AbstractCloseness | str | None, estimator: str, query: Tensor
) -> AbstractCloseness | None:
    """The closeness in the dtype that a call computes in, or None where that is softmax attention.

    Args:
        closeness: What was given.
        estimator: Of the call.
        query: (B, H, m, d).

    Raises:
        ProblemError: If it is none, has no such estimator, or has numbers of other heads or queries.
    """
    own: AbstractCloseness | None = closeness_of(closeness)
    check_kind(own, estimator)
    if own is None or is_softmax(own):
        return None
    if estimator != "first_order":
        check_not_mapped(f"{estimator} attention under {type(own).__name__}", query)
    lead, name = tuple(query.shape[:3]), type(own).__name__
    for argument, shape in own.query_shapes().items():
        if not broadcasts_to(shape, lead):
            raise ProblemError(
                f"{argument} of {name} has shape {tuple(shape)}; expected one that broadcasts to (batch, heads, "
                f"queries) = {lead}: one a head has shape ({lead[1]}, 1)"
            )
        number = getattr(own, argument, None)
        if isinstance(number, Tensor):
            check_device(f"{argument} of {name}", number, query.device)
    return own.to(torch.float64 if query.dtype == torch.float64 else torch.float32)


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
