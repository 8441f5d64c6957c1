r"""The mean of the values at dual points, by whichever code is fastest for the gradients that are wanted.

That is torch's fused kernels, which have no gradient to a log-preference, or spend (m, n) arrays on it. Where one is
wanted the weights are computed part by part, and again in the backward pass: no (m, n) array outlives its part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from fenchel.blocks import CACHE_BYTES, Box, boxes, joined, keep_freed_memory, part_of, pieces_of
from fenchel.estimators.implicit import once_differentiable
from fenchel.functional.arguments import (
    AttentionArguments,
    compute_dtype,
    dropped,
    mask_dtype,
    without_autocast,
)
from fenchel.tensors import is_transformed, needs_gradient


@torch.no_grad()
def means_at(given: AttentionArguments, dual: Tensor, key: Tensor, *averaged: Tensor) -> list[Tensor]:
    """Means under the weights at dual points, each (B, H, m, c), without gradient, of one pass over the keys.

    Args:
        given: Checked arguments.
        dual: λ, (B, H, m, d).
        key: The keys, or these less a vector that those of a head share, which weights do not see.
        *averaged: (B, H_kv, n, c) each, with the dtype of the key, float32 or float64.
    """
    lam = dual.to(key.dtype) * given.scale
    key, *values = (given.of_query_heads(x) for x in (key, *averaged))
    cut = boxes_of_queries(lam, key.shape[2], part_bytes=CACHE_BYTES)
    result: list[list[Tensor]] = []
    for box in cut:
        logits = part_of(lam, (box[0], slice(None), box[1])) @ part_of(key, box[:1]).mT
        if (preference := given.log_preference) is not None:
            log_u = part_of(preference, (box[0], slice(None), box[1]))
            logits = logits.masked_fill(~log_u, -torch.inf) if log_u.dtype == torch.bool else logits + log_u
        weights = logits.softmax(-1).to(key.dtype)
        result.append([weights @ part_of(value, box[:1]) for value in values])
    return [joined(zip(cut, of_one, strict=True), (0, 2)) for of_one in zip(*result, strict=True)]


def with_one_width(*tensors: Tensor) -> Iterator[Tensor]:
    """Tensors (..., any) with zeros in further columns: kernels of the CPU take query, key and value of one width."""
    width = max(tensor.shape[-1] for tensor in tensors)
    return (pad(tensor, (0, width - tensor.shape[-1])) for tensor in tensors)


def _wants_preference_gradient(given: AttentionArguments) -> bool:
    # A graph that is exported has operations of torch alone, which runtimes other than torch have too.
    if given.log_preference is None or not torch.is_grad_enabled() or torch.compiler.is_exporting():
        return False
    return needs_gradient(given.log_preference)


def output_at(given: AttentionArguments, dual: Tensor, dropout_p: float = 0.0) -> Tensor:
    """The output, (B, H, m, d_v).

    Args:
        given: Checked arguments.
        dual: λ, (B, H, m, d), in the dtype in which the weights are to be computed.
        dropout_p: Probability with which a weight is dropped.
    """
    if given.has_no_evidence:
        return plain_attention(given, dual, dropout_p)
    if _wants_preference_gradient(given):
        return _output_in_parts(given, dual, dropout_p).to(given.query.dtype)
    key, value = given.key.to(dual.dtype), given.value.to(dual.dtype)
    output = fused_attention(dual, key, value, given.log_preference, scale=given.scale, dropout_p=dropout_p)
    return output.to(given.query.dtype)


def _output_in_parts(given: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    lam, key, value = (x.to(compute_dtype(dual.dtype)) for x in (dual, given.key, given.value))
    log_preference = given.log_preference
    assert log_preference is not None  # noqa: S101 -- it wants a gradient
    if torch.compiler.is_compiling():
        # A graph for any size cannot be cut.
        return plain_attention(replace(given, query=lam, key=key, value=value), lam, dropout_p)
    # A second derivative would keep the arrays of all parts.
    log_preference = once_differentiable(log_preference, "attention with a gradient to its preference")
    given = replace(given, query=lam, key=key, value=value)
    cut = boxes_of_queries(lam, key.shape[2])

    def of_part(lam: Tensor, key: Tensor, value: Tensor, log_preference: Tensor) -> Tensor:
        part = replace(given, query=lam, key=key, value=value, log_preference=log_preference)
        return plain_attention(part, lam, dropout_p)

    by_query, by_key = (0, 2), (0, None)
    of_tensors = ((lam, by_query), (key, by_key), (value, by_key), (log_preference, by_query))
    pieces = zip(*(pieces_of(tensor, cut, dims) for tensor, dims in of_tensors), strict=True)
    return joined(zip(cut, (recomputed(of_part, *each) for each in pieces), strict=True), by_query)


def weights_at(given: AttentionArguments, dual: Tensor) -> Tensor:
    """The weights at dual points, (B, H, m, n) in the dtype of the query."""
    with without_autocast(dual):
        dtype, preference = compute_dtype(dual.dtype), given.log_preference
        logits = (dual.to(dtype) * given.scale) @ given.of_query_heads(given.key.to(dtype)).mT
        if preference is not None:
            allowed = preference if preference.dtype == torch.bool else None
            logits = logits + preference if allowed is None else logits.masked_fill(~allowed, -torch.inf)
        return logits.softmax(-1).to(given.query.dtype)


def plain_attention(given: AttentionArguments, dual: Tensor, dropout_p: float) -> Tensor:
    """The output where nothing can tilt u: there is no query, or a query has no dimension.

    It is joined to everything that it depends on. Kernels disagree on empty arrays; plain operations do not.
    """
    weights = dropped(weights_at(given, dual), dropout_p)
    with without_autocast(weights):
        return weights @ given.of_query_heads(given.value)


SLOW_IN_HALF_BELOW = 256
"""Keys up to which the backward pass of torch's kernel on the CPU takes longer in half types than in float32."""


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

    In the dtype given; half types that need a backward pass on the CPU, of up to 256 keys, in float32, which is faster.

    Args:
        dual: λ, (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Bool or floating, broadcastable to (B, H, m, n), with something to attend to in every row.
        scale: Multiplies the scores.
        dropout_p: Probability with which a weight is dropped.
    """
    given = dual.dtype
    if _is_slow_in_half(dual, key, value):
        dual, key, value = dual.float(), key.float(), value.float()
    if log_preference is not None and log_preference.is_floating_point():
        log_preference = log_preference.to(mask_dtype(log_preference, dual.dtype))
    # A flag, and not a comparison, which in a graph with open sizes is a symbol.
    grouped = {"enable_gqa": True} if dual.shape[1] != key.shape[1] else {}
    with without_autocast(dual):
        output = scaled_dot_product_attention(
            dual,
            key,
            value,
            attn_mask=log_preference,
            scale=scale,
            dropout_p=dropout_p,
            **grouped,
        )
    return output.to(given)


def _is_slow_in_half(dual: Tensor, key: Tensor, value: Tensor) -> bool:
    half_on_cpu = dual.device.type == "cpu" and dual.dtype in (torch.float16, torch.bfloat16)
    trained = torch.is_grad_enabled() and any(x.requires_grad for x in (dual, key, value))
    return half_on_cpu and trained and key.shape[2] <= SLOW_IN_HALF_BELOW


PART_BYTES = 2**24
"""Size aimed at for one (b, H, queries, n) array of a part."""

LEAST_QUERIES = 32
"""Queries that a part has at least, since it goes through all keys."""


def boxes_of_queries(
    query: Tensor, keys: int, *, whole_batch: bool = False, part_bytes: int | None = None
) -> list[Box]:
    """Ranges of sequences and of queries in parts of bounded size.

    Args:
        query: (B, H, m, any), with the dtype of the work.
        keys: n.
        whole_batch: Whether sequences go together.
        part_bytes: The size of an array (b, H, queries, n) of a part; None is ``PART_BYTES``.
    """
    keep_freed_memory()
    batch, heads, queries = query.shape[:3]
    together = batch if whole_batch else 1
    most = max(
        LEAST_QUERIES, (part_bytes or PART_BYTES) // max(1, together * heads * keys * query.element_size())
    )
    # A graph for any number of sequences cannot be cut by how many there are.
    if torch.compiler.is_compiling() or batch * queries <= most * together:
        return [(slice(0, batch), slice(0, queries))]
    result = boxes((batch // together, queries), most)
    return [(slice(0, batch) if whole_batch else sequences, span) for sequences, span in result]


def recomputed(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """What a function answers, without keeping what it computes on the way where gradients are recorded.

    ``torch.func`` has no such thing: inside of its transforms everything is kept.
    """
    if not torch.is_grad_enabled() or is_transformed():
        return function(*given)
    result = checkpoint(function, *given, use_reentrant=False)
    assert isinstance(result, Tensor)  # noqa: S101 -- what the function gives
    return result
