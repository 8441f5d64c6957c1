r"""The result of every attention op: an inference, whose output, weights and bounds are computed on first access.

The base class solves problems of the core, for any closeness and for memories that are distributions. Queries are split
into parts, each of them a problem; anything that defines weights and a curvature, or a cumulant, gets every estimator,
bound and gradient. The backward pass recomputes each part, and (m, n) arrays are freed after their part. Ops override
the methods for which they have faster code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.blocks import Box
from fenchel.closeness import KL, AbstractCloseness, Tsallis
from fenchel.closeness.custom import check_at_first_use
from fenchel.errors import ProblemError
from fenchel.estimate import certify
from fenchel.estimators import Estimator, Exact, FirstOrder, SecondOrder
from fenchel.estimators.closed_form import second_order_point
from fenchel.estimators.exact_solver import check_reached, solved_block
from fenchel.family import Block
from fenchel.functional.arguments import (
    broadcast_leading,
    check_finite,
    checked,
    checked_closeness,
    compute_dtype,
    dropped,
    normalised_log_weights,
    without_autocast,
)
from fenchel.functional.exact import DEFAULT_STEPS, REMEDY, dual_point, estimator_object, limits, untraced
from fenchel.functional.output import (
    LEAST_QUERIES,
    AttentionCertificate,
    boxes_of_queries,
    certificate_at,
    certificate_of,
    in_parts,
    norm_of,
    output_at,
    weights_at,
)
from fenchel.preference import Discrete, GaussianMixture
from fenchel.problem import Problem, QueryLayout
from fenchel.tensors import check_type, checked_argument, is_transformed, refuse_onnx

T = TypeVar("T")


class Options(TypedDict, total=False):
    """Options of :func:`fenchel.functional.infer`, with its defaults."""

    log_preference: Tensor | None
    alpha: float | Tensor
    scale: float | Tensor | None
    closeness: AbstractCloseness | str | None
    estimator: str | Estimator
    dropout_p: float
    enable_gqa: bool
    tol: float | None
    max_steps: int


class Inference:
    r"""One distribution for each query, the result of :func:`fenchel.functional.infer`.

    Arguments are checked immediately; attributes are computed on first access and cached. All tensors of the call get
    gradients, except from the certificate. Attributes share the graph of λ: combine them in one loss, or retain the
    graph in all backward passes but the last.
    """

    names: ClassVar[tuple[str, str, str]] = ("query", "key", "value")
    """Names of the three tensors in messages."""

    needs_keys: ClassVar[bool] = False
    """Whether a call without keys raises."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        *,
        estimator: str | Estimator = "first_order",
        tol: float | None = None,
        max_steps: int = DEFAULT_STEPS,
        **options: Any,
    ) -> None:
        self._has_output, self._dropout_p = value is not None, options.get("dropout_p", 0.0)
        self._kept: dict[str, Any] = {}
        checked_argument("max_steps", max_steps)
        self._solver = estimator_object(estimator, tol, max_steps)
        if not isinstance(self._solver, FirstOrder):
            refuse_onnx(f"the estimator {self._solver.name!r}")
        self._call = checked(
            query,
            key,
            key if value is None else value,  # keys replace missing values
            exact=isinstance(self._solver, Exact),
            names=self.names,
            needs_keys=self.needs_keys,
            **options,
        )

    @property
    def dual(self) -> Tensor:
        """λ of the estimator, (B, H, m, d): zero for queries with nothing to attend to."""
        return self._once("dual", lambda: self._returned(self._point))

    @property
    def _point(self) -> Tensor:
        """λ before rows with nothing to attend to are set to zero."""
        return self._once("point", self._make_point)

    @property
    def output(self) -> Tensor:
        """The mean of the values, (B, H, m, d_v), after dropout.

        Raises:
            ProblemError: If no value was given.
        """
        if not self._has_output:
            raise ProblemError("value is None; expected value=, (B, H_kv, n, d_v), for an output")
        return self._once("output", lambda: self._returned(self._make_output()))

    @property
    def weights(self) -> Tensor:
        """The weights p, before dropout, (B, H, m, n): zero in rows with nothing to attend to."""
        return self._once("weights", lambda: self._returned(self._make_weights()))

    @property
    def certificate(self) -> AttentionCertificate:
        """Bounds on the distance from the exact inference, rounding included."""

        def made() -> AttentionCertificate:
            if self._call.has_no_evidence:
                query = self._call.query
                zeros = query.new_zeros(query.shape[:3], dtype=compute_dtype(query.dtype))
                bounds = AttentionCertificate(zeros, zeros.clone(), zeros.clone())
            else:
                bounds = self._make_certificate()
            return AttentionCertificate(*map(self._returned, bounds))

        return self._once("certificate", made)

    @property
    def gap(self) -> Tensor:
        """The duality gap of a closed-form estimate, differentiable, (B, H, m).

        Raises:
            ProblemError: If the estimator is exact, whose gap is 0 to its tolerance.
        """
        if isinstance(self._solver, Exact):
            raise ProblemError(
                "estimator is 'exact', whose gap is 0 up to its tolerance and has no useful gradient; expected "
                "'first_order' or 'second_order'; the certificate has the value"
            )

        def made() -> Tensor:
            if self._call.has_no_evidence:
                return 0.0 * self.weights.sum(-1).to(compute_dtype(self._call.query.dtype))
            return self._returned(self._make_gap())

        return self._once("gap", made)

    def certified(self) -> tuple[Tensor, AttentionCertificate]:
        """Output and certificate, computed in one pass over the keys if no gradient is required."""
        certificate = self.certificate
        return self.output, certificate

    # functools.cached_property has a lock in Python 3.11, which cannot be traced.
    def _once(self, name: str, make: Callable[[], T]) -> T:
        """A cached value, computed without autocast, since :func:`checked` has cast the tensors."""
        if name not in self._kept:
            with without_autocast(self._call.query):
                self._kept[name] = make()
        return self._kept[name]

    def _returned(self, result: Tensor) -> Tensor:
        """A result for every query, (B, H, m, ...), as it is returned."""
        return self._call.without_empty_rows(result)

    # Computed by the core; ops override the methods for which they have faster code.

    remedy: ClassVar[str] = "alpha, the query or the norms of the keys smaller"
    """Advice for queries that the exact estimator does not solve, after "make"."""

    def _rows(self, dtype: torch.dtype) -> ProblemRows:
        """The call as problems in a dtype."""
        raise NotImplementedError(f"{type(self).__name__} overrides everything")

    @property
    def _problems(self) -> Any:
        """:class:`ProblemRows`, or all queries as one :class:`~fenchel.problem.Problem`."""
        return self._once("rows", lambda: self._rows(compute_dtype(self._call.query.dtype)))

    def _make_point(self) -> Tensor:
        return self._problems.dual_point(self._solver, self.remedy)

    def _make_output(self) -> Tensor:
        call, dual = self._call, self._point
        values = call.of_query_heads(call.value.to(dual.dtype))
        return self._problems.average(dual, values, self._dropout_p).to(call.query.dtype)

    def _make_weights(self) -> Tensor:
        return self._problems.weights(self._point).to(self._call.query.dtype)

    def _make_certificate(self) -> AttentionCertificate:
        return self._rows(torch.float64).certificate(self._point.detach())

    def _make_gap(self) -> Tensor:
        return self._problems.gap_at(self._point)


class Variant:
    """Another kind of attention, with its own tensors."""

    # Create the inference from the variant, query, key, value and options of ``infer``.
    made_by: ClassVar[Callable[..., Inference]]

    # Options that are not supported.
    without: ClassVar[tuple[str, ...]] = ()


# Arguments of other libraries for what is a log-preference here.
MASKS = ("attn_mask", "is_causal", "key_padding_mask", "mask")


def infer(
    query: Tensor,
    key: Tensor,
    value: Tensor | None = None,
    *,
    variant: Variant | None = None,
    **options: Unpack[Options],
) -> Inference:
    r"""Infer one distribution over the keys for each query; output, weights, bounds and gap are computed lazily.

    The functions of this module are shorthands: :func:`attention` is ``infer(...).output``.

    Args:
        query: Same as in :func:`attention`, like all arguments.
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v); None if no output is needed, or if the output is the mean of the memories of a
            :class:`Mixture`.
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"``, ``"second_order"``, ``"exact"``, or an object with options, such as
            ``fenchel.Exact(tol=1e-6)``.
        dropout_p: Probability with which a weight of the output is dropped.
        enable_gqa: Allow H_kv < H.
        tol: Tolerance of the exact estimator.
        max_steps: Maximum number of steps of the exact estimator.
        variant: A :class:`Relative`, :class:`Mixture`, :class:`Transport` or :class:`Hashing` with its own tensors;
            None if keys are points that all queries share.

    Returns:
        The :class:`Inference`.

    Raises:
        ProblemError: If the arguments are inconsistent, or the variant has no such option.
        ConvergenceError: When a result of the exact estimator is accessed and its tolerance was not reached.

    Example:
        >>> import torch
        >>> from fenchel import Exact
        >>> q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
        >>> result = infer(q, k, v, estimator=Exact(tol=1e-9))
        >>> bool((result.certificate.dual_error <= 1e-8 * result.dual.norm(dim=-1)).all())
        True
        >>> torch.allclose(result.weights @ v, result.output)
        True
    """
    for name in options:
        if name not in Options.__annotations__:
            without = getattr(variant, "without", ())
            known = ", ".join(known for known in Options.__annotations__ if known not in without)
            mask = ". A mask is a log_preference, such as bool with True = attend" if name in MASKS else ""
            raise ProblemError(f"{name} is not an option of attention; expected some of {known}{mask}")
    if variant is None:
        return AttentionInference(query, key, value, **options)
    expected = "a Relative, Mixture, Transport or Hashing of fenchel.functional, or None"
    check_type("variant", variant, Variant, expected)
    accepted: dict[str, Any] = {**options}
    for name in variant.without:
        option = accepted.pop(name, None)
        if isinstance(option, Tensor) or option not in (None, False, 0.0):
            raise ProblemError(f"{name} is given, but {type(variant).__name__} does not support it; omit it")
    return type(variant).made_by(variant, query, key, value, **accepted)


class AttentionInference(Inference):
    """Attention to points that all queries share, under any closeness; arguments as of :func:`infer`."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        *,
        closeness: AbstractCloseness | str | None = None,
        enable_gqa: bool = False,
        **options: Any,
    ) -> None:
        broadcast = broadcast_leading(query, key, key if value is None else value, enable_gqa)
        query, key, own_value, enable_gqa, self._added = broadcast
        super().__init__(query, key, None if value is None else own_value, enable_gqa=enable_gqa, **options)
        other = None if closeness is None else checked_closeness(closeness, self._solver.name, self._call)
        self._closeness = None if self._call.has_no_evidence else other
        if self._closeness is not None:
            check_at_first_use(self._closeness, self._some_queries)

    def _some_queries(self) -> Discrete:
        rows = self._problems
        return Discrete(rows.templates[:1], rows.log_weights()[:1, :, :LEAST_QUERIES])

    @override
    def _returned(self, result: Tensor) -> Tensor:
        result = super()._returned(result)
        return result[(0,) * self._added] if self._added else result

    @override
    def _rows(self, dtype: torch.dtype) -> ProblemRows:
        evidence, templates, log_u, alpha = self._call.problem_in(dtype)
        assert self._closeness is not None  # noqa: S101 -- softmax has its own code
        return ProblemRows(evidence, self._call.of_query_heads(templates), log_u, alpha, self._closeness)

    @override
    def _make_point(self) -> Tensor:
        if self._closeness is None:
            return dual_point(self._call, self._solver)
        if not isinstance(self._solver, FirstOrder):
            check_finite(always=True, query=self._call.query, key=self._call.key)
        return super()._make_point()

    @override
    def _make_output(self) -> Tensor:
        if self._closeness is None:
            return output_at(self._call, self._point, self._dropout_p)
        return super()._make_output()

    @override
    def _make_weights(self) -> Tensor:
        return weights_at(self._call, self._point) if self._closeness is None else super()._make_weights()

    @override
    def _make_certificate(self) -> AttentionCertificate:
        if self._closeness is not None:
            return super()._make_certificate()
        call, first_order = self._call, isinstance(self._solver, FirstOrder)
        tensors = self._point, call.key, call.value, call.log_preference
        # One pass over the keys, unless a gradient is required, for which the fused kernels are faster.
        wanted = self._has_output and "output" not in self._kept and self._dropout_p == 0
        recorded = is_transformed() or (
            torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
        )
        others = (call.value,) if wanted and not recorded else ()
        result, outputs = certificate_at(call, self._point, *others, first_order=first_order)
        for output in outputs:
            self._kept["output"] = self._returned(output.to(call.query.dtype))
        return result

    @override
    def _make_gap(self) -> Tensor:
        if self._closeness is not None:
            return super()._make_gap()
        # A difference of means, squared: in half types it would be mostly rounding.
        dtype = compute_dtype(self._call.query.dtype)
        call = self._call.to(dtype)
        # Subtracting a vector from all keys changes only rounding.
        key = call.key - call.key.detach().mean(-2, keepdim=True)
        call = replace(call, key=key, value=key)
        same = self._call.query.dtype == dtype
        dual = self._point if same else dual_point(call, self._solver)
        queries = 1 if call.log_preference_is_shared else dual.shape[2]
        mean = output_at(call, call.query.new_zeros(call.query[:, :, :queries].shape))
        gradient = (mean - output_at(call, dual)) * call.scale
        if not isinstance(self._solver, FirstOrder):
            gradient = gradient + (call.query - dual / call.alpha)
        return (call.alpha / 2 * gradient.square().sum(-1, keepdim=True)).squeeze(-1)


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
