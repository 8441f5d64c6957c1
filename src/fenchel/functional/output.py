r"""Outputs, weights and certificates at dual points, with no (m, n) array kept beyond its part of the queries.

Outputs are computed by torch's fused kernels. These have no gradient for a log-preference, or allocate (m, n) arrays
for it; if that gradient is required, weights are computed part by part and recomputed in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.nn.functional import pad, scaled_dot_product_attention

from fenchel.blocks import CACHE_BYTES, Box, boxes, joined, keep_freed_memory, pieces_of, recomputed
from fenchel.estimators.implicit import once_differentiable
from fenchel.functional.arguments import (
    AttentionArguments,
    compute_dtype,
    dropped,
    largest_level,
    mask_dtype,
    normalised_log_weights,
    unit_of_products,
)
from fenchel.tensors import (
    HALF,
    LINEAR,
    is_transformed,
    log_weights,
    may_attend,
    needs_gradient,
    norm,
    summed,
    values_are_known,
)


def _softmax(logits: Tensor, preference: Tensor | None) -> Tensor:
    """Weights of logits (..., m, n), which are overwritten, under a preference that broadcasts to them."""
    if preference is not None and preference.dtype == torch.bool:
        preference = log_weights(preference, logits.dtype)
    if torch.compiler.is_compiling() or is_transformed():
        return (logits if preference is None else logits + preference).softmax(-1)
    # In place: at 2,048 tokens page faults of new arrays take a quarter of the time.
    if preference is not None:
        logits = logits.add_(preference) if preference.dtype == logits.dtype else logits + preference
    return logits.softmax(-1) if torch.is_grad_enabled() else torch.softmax(logits, -1, out=logits)


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
        return _softmax(lam @ key.mT, log_u).to(key.dtype) @ averaged

    lam, of_keys = dual.to(key.dtype) * call.scale, [call.of_query_heads(x) for x in (key, averaged)]
    cut = boxes_of_queries(lam, key.shape[2], part_bytes=CACHE_BYTES)
    return in_parts(of_part, cut, (lam, call.log_preference), of_keys)


def with_one_width(*tensors: Tensor) -> Iterator[Tensor]:
    """Tensors (..., any) padded with zeros to the equal widths that CPU kernels require of query, key and value."""
    width = max(tensor.shape[-1] for tensor in tensors)
    return (pad(tensor, (0, width - tensor.shape[-1])) for tensor in tensors)


def _wants_preference_gradient(call: AttentionArguments) -> bool:
    # Exported graphs use only operations that other runtimes also have.
    if call.log_preference is None or not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return needs_gradient(call.log_preference)


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


def _output_in_parts(call: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    lam, key, value = (x.to(compute_dtype(dual.dtype)) for x in (dual, call.key, call.value))
    log_preference, call = call.log_preference, replace(call, query=lam, key=key, value=value)
    assert log_preference is not None  # noqa: S101 -- it wants a gradient
    if torch.compiler.is_compiling():
        # A graph for any size cannot be cut.
        return plain_attention(call, lam, dropout_p)
    # A second derivative would require storing the arrays of all parts.
    log_preference = once_differentiable(log_preference, "attention with a gradient to its preference")

    def of_part(box: Box, lam: Tensor, log_u: Tensor, key: Tensor, value: Tensor) -> Tensor:
        part = replace(call, query=lam, key=key, value=value, log_preference=log_u)
        return plain_attention(part, lam, dropout_p)

    cut = boxes_of_queries(lam, key.shape[2])
    return in_parts(of_part, cut, (lam, log_preference), (key, value))


def weights_at(call: AttentionArguments, dual: Tensor) -> Tensor:
    """The weights at dual points, (B, H, m, n) in the dtype of the query."""
    dtype = compute_dtype(dual.dtype)
    logits = (dual.to(dtype) * call.scale) @ call.of_query_heads(call.key.to(dtype)).mT
    return _softmax(logits, call.log_preference).to(call.query.dtype)


def plain_attention(call: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    """The output in plain operations, which support empty arrays and all derivatives, unlike kernels."""
    return dropped(weights_at(call, dual), dropout_p) @ call.of_query_heads(call.value)


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


def _is_slow_in_half(dual: Tensor, key: Tensor, value: Tensor) -> bool:
    half_on_cpu = dual.device.type == "cpu" and dual.dtype in HALF
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (dual, key, value))
    return half_on_cpu and trained and key.shape[2] <= SLOW_IN_HALF_BELOW


# Target size of one (b, H, queries, n) array of a part.
PART_BYTES = 2**24

# Minimum number of queries of a part, since each part passes over all keys.
LEAST_QUERIES = 32


def boxes_of_queries(
    query: Tensor, keys: int, *, whole_batch: bool = False, part_bytes: int | None = None
) -> list[Box]:
    """Ranges of sequences and of queries in parts of bounded size.

    Args:
        query: (B, H, m, any), with the dtype of the work.
        keys: n.
        whole_batch: Whether all sequences are in every part.
        part_bytes: The size of an array (b, H, queries, n) of a part; None is ``PART_BYTES``.
    """
    keep_freed_memory()
    batch, heads, queries = query.shape[:3]
    together = batch if whole_batch else 1
    query_bytes = together * heads * keys * query.element_size()
    each = max(LEAST_QUERIES, (part_bytes or PART_BYTES) // max(1, query_bytes))
    # A graph for any number of sequences cannot be cut by how many there are.
    if torch.compiler.is_compiling() or batch * queries <= each * together:
        return [(slice(0, batch), slice(0, queries))]
    result = boxes((batch // together, queries), each)
    return [(slice(0, batch) if whole_batch else sequences, span) for sequences, span in result]


def in_parts(
    function: Callable[..., Tensor],
    cut: Sequence[Box],
    by_query: Sequence[Tensor | None],
    by_key: Sequence[Tensor | None],
    *,
    again: bool = True,
) -> Tensor:
    """Apply a function to the parts of tensors in boxes of sequences and queries, (B, H, m, ...).

    Args:
        function: A function of a box and of the parts of all tensors in it.
        cut: The boxes.
        by_query: Tensors (B or 1, H or 1, m or 1, any), or None.
        by_key: Tensors (B or 1, H or 1, n, any), or None.
        again: Whether the backward pass recomputes a part instead of keeping its arrays.
    """
    pieces = [
        pieces_of(x, cut, dims) for dims, some in (((0, 2), by_query), ((0, None), by_key)) for x in some
    ]
    parts = (
        recomputed(function, *each, random=True) if again else function(*each)
        for each in zip(cut, *pieces, strict=True)
    )
    return joined(zip(cut, parts, strict=True), (0, 2))


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
