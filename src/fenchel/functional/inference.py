r"""The result of every attention op: an inference, whose output, weights and bounds are computed on first access.

The base class solves problems of the core (:mod:`fenchel.functional.certificate`); ops override the methods for which
they have faster code. Outputs of softmax attention are computed by torch's fused kernels. These have no gradient for a
log-preference, or allocate (m, n) arrays for it; if that gradient is required, weights are computed part by part and
recomputed in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from fenchel.blocks import LEAST_QUERIES, Box, boxes_of_queries, in_parts, recomputed
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.custom import check_at_first_use
from fenchel.errors import ProblemError
from fenchel.estimators import Estimator, Exact, FirstOrder
from fenchel.estimators.implicit import once_differentiable
from fenchel.functional.arguments import (
    AttentionArguments,
    broadcast_leading,
    check_finite,
    checked,
    checked_closeness,
    compute_dtype,
    dropped,
    mask_dtype,
    softmax_under,
    without_autocast,
)
from fenchel.functional.certificate import AttentionCertificate, ProblemRows, certificate_at
from fenchel.functional.exact import DEFAULT_STEPS, dual_point, estimator_object
from fenchel.preference import Discrete
from fenchel.tensors import (
    HALF,
    check_type,
    checked_argument,
    is_transformed,
    log_weights,
    may_attend,
    needs_gradient,
    refuse_onnx,
    values_are_known,
)

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


def weights_at(call: AttentionArguments, dual: Tensor) -> Tensor:
    """The weights at dual points, (B, H, m, n) in the dtype of the query."""
    dtype = compute_dtype(dual.dtype)
    logits = (dual.to(dtype) * call.scale) @ call.of_query_heads(call.key.to(dtype)).mT
    return softmax_under(logits, call.log_preference).to(call.query.dtype)


def plain_attention(call: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    """The output in plain operations, which support empty arrays and all derivatives, unlike kernels."""
    return dropped(weights_at(call, dual), dropout_p) @ call.of_query_heads(call.value)


def output_at(call: AttentionArguments, dual: Tensor, dropout_p: float = 0.0) -> Tensor:
    """The output, (B, H, m, d_v).

    Args:
        call: Checked arguments.
        dual: λ, (B, H, m, d), in the dtype in which weights are computed.
        dropout_p: Probability with which a weight is dropped.
    """
    if call.has_no_evidence:
        return plain_attention(call, dual, dropout_p)
    if _wants_preference_gradient(call):
        return _output_in_parts(call, dual, dropout_p).to(call.query.dtype)
    key, value = call.key.to(dual.dtype), call.value.to(dual.dtype)
    output = fused_attention(dual, key, value, call.log_preference, scale=call.scale, dropout_p=dropout_p)
    return output.to(call.query.dtype)


def _wants_preference_gradient(call: AttentionArguments) -> bool:
    # Exported graphs use only operations that other runtimes also have.
    if call.log_preference is None or not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return needs_gradient(call.log_preference)


def _output_in_parts(call: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    lam, key, value = (x.to(compute_dtype(dual.dtype)) for x in (dual, call.key, call.value))
    log_preference, call = call.log_preference, replace(call, query=lam, key=key, value=value)
    assert log_preference is not None  # noqa: S101 -- it wants a gradient
    if torch.compiler.is_compiling():
        # A graph for any size cannot be cut into parts.
        return recomputed(plain_attention, call, lam, dropout_p, random=True)
    # A second derivative would require storing the arrays of all parts.
    log_preference = once_differentiable(log_preference, "attention with a gradient to its preference")

    def of_part(box: Box, lam: Tensor, log_u: Tensor, key: Tensor, value: Tensor) -> Tensor:
        part = replace(call, query=lam, key=key, value=value, log_preference=log_u)
        return plain_attention(part, lam, dropout_p)

    cut = boxes_of_queries(lam, key.shape[2])
    return in_parts(of_part, cut, (lam, log_preference), (key, value))


# Keys up to which the backward pass of torch's kernel on the CPU takes longer in half types than in float32.
SLOW_IN_HALF_BELOW = 256


def fused_attention(
    dual: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    *,
    scale: float,
    dropout_p: float = 0.0,
) -> Tensor:
    """softmax(log u + λ(scale·K)ᵀ) V by ``scaled_dot_product_attention``.

    Computed in the given dtype, except for half types on the CPU with up to 256 keys and a backward pass: these use
    float32, which is faster.

    Args:
        dual: λ, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Bool or floating, broadcastable to (B, H, m, n), with something to attend to in every row.
        scale: Multiplies the scores.
        dropout_p: Probability with which a weight is dropped.
    """
    dtype = dual.dtype
    if _is_slow_in_half(dual, key, value):
        dual, key, value = dual.float(), key.float(), value.float()
    causal = log_preference is not None and _is_causal(log_preference, dual.shape[2], key.shape[2])
    if causal:
        log_preference = None
    elif log_preference is not None and log_preference.is_floating_point():
        log_preference = log_preference.to(mask_dtype(log_preference, dual.dtype))
    # A flag rather than a comparison, which is symbolic in a graph with dynamic sizes.
    grouped = {"enable_gqa": True} if dual.shape[1] != key.shape[1] else {}
    options: dict[str, Any] = {"scale": scale, "dropout_p": dropout_p, **grouped}
    return scaled_dot_product_attention(
        dual, key, value, attn_mask=log_preference, is_causal=causal, **options
    ).to(dtype)


def _is_slow_in_half(dual: Tensor, key: Tensor, value: Tensor) -> bool:
    half_on_cpu = dual.device.type == "cpu" and dual.dtype in HALF
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (dual, key, value))
    return half_on_cpu and trained and key.shape[2] <= SLOW_IN_HALF_BELOW


# Queries from which half of the scores costs more than finding that the others are masked.
LEAST_CAUSAL = 512


def _is_causal(log_preference: Tensor, queries: int, keys: int) -> bool:
    """Whether a log preference is known to be one causal mask of as many queries as keys, without derivatives."""
    if not values_are_known(log_preference) or not LEAST_CAUSAL <= queries == keys:
        return False
    if log_preference.shape[-2:].numel() < queries * keys or log_preference.numel() > queries * keys:
        return False
    if is_transformed() or needs_gradient(log_preference) or unpack_dual(log_preference).tangent is not None:
        return False
    mask = log_preference.view(queries, keys)
    if may_attend(mask[0, -1]) or not may_attend(mask[-1, 0]):  # decides most others without reading all
        return False

    def has_causal_rows(start: int) -> bool:
        rows = mask[start : start + LEAST_CAUSAL]
        causal = torch.ones_like(rows, dtype=torch.bool).tril_(start)
        return torch.equal(rows, causal if rows.dtype == torch.bool else log_weights(causal, rows.dtype))

    return all(has_causal_rows(start) for start in range(0, queries, LEAST_CAUSAL))
