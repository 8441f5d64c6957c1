"""Attention to keys in the same buckets: a preference that is mostly 0 and never materialised."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any, Unpack

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.blocks import spans
from fenchel.errors import ProblemError
from fenchel.estimators import Estimator, FirstOrder
from fenchel.functional.arguments import compute_dtype
from fenchel.functional.attention import attention
from fenchel.functional.hash_order import HashOrder, hashed_softmax
from fenchel.functional.inference import AttentionInference, Inference, Options, Variant, infer
from fenchel.tensors import (
    BOOL,
    INTEGERS,
    check_device,
    check_flags,
    check_floating,
    check_not_mapped,
    check_tensor,
    checked_argument,
    refuse_onnx,
)


def _of_dense(name: str) -> Any:
    return lambda hashing: getattr(hashing._dense, name)


class HashingInference(Inference):
    """A call of hashing attention; arguments as of :func:`fenchel.functional.infer`."""

    needs_keys = True

    def __init__(
        self,
        variant: Hashing,
        query: Tensor,
        key: Tensor,
        value: Tensor | None,
        **options: Any,
    ) -> None:
        super().__init__(query, key, value, **options)
        self._options = options
        if query.shape[2] != key.shape[2]:
            raise ProblemError(
                f"query has {query.shape[2]} tokens and key has {key.shape[2]}; expected equal numbers: in hashing "
                "attention each token has a query and a key"
            )
        check_not_mapped("hashing attention", query, key, value, variant.buckets)
        refuse_onnx("hashing attention")
        self._order = _order(variant, *query.shape[:3])
        check_device("buckets", variant.buckets, query.device)

    @override
    def _make_output(self) -> Tensor:
        call, order = self._call, self._order
        batch, heads, tokens = call.query.shape[:3]
        if batch * heads == 0:
            return torch.zeros_like(call.value)
        dtype = compute_dtype(call.query.dtype)
        z, templates, _, alpha = call.problem_in(dtype)
        templates, values = templates.flatten(0, 1), call.value.to(dtype).flatten(0, 1)
        if isinstance(self._solver, FirstOrder):
            output = hashed_softmax((z * alpha).flatten(0, 1), templates, values, order)
        else:
            each = alpha.expand(batch, heads, tokens, 1).flatten(0, 1)
            output = solved_output(z.flatten(0, 1), templates, values, each, order, self._solver)
        return output.unflatten(0, (batch, heads)).to(call.query.dtype)

    @property
    def _dense(self) -> AttentionInference:
        """Attention with the preference as an array."""

        def made() -> AttentionInference:
            call = self._call
            log_u = _log_meetings(self._order, compute_dtype(call.query.dtype))
            log_u = log_u.unflatten(0, call.query.shape[:2])
            # The key contains a scale that is a tensor.
            options = {**self._options, "scale": call.scale, "log_preference": log_u}
            return AttentionInference(call.query, call.key, **options)

        return self._once("dense", made)

    _make_point, _make_weights = _of_dense("dual"), _of_dense("weights")
    _make_certificate, _make_gap = _of_dense("certificate"), _of_dense("gap")


@dataclass(frozen=True, eq=False)
class Hashing(Variant):
    """Tokens that meet in the order of their buckets, as of :func:`hashing_attention`.

    The output needs no (n, n) array; dual points, weights, bounds and gap are those of attention with
    :func:`hashing_log_preference`.

    Attributes:
        buckets: Whole numbers (B, H, rounds, n); this and all that follows as there.
        chunk: Tokens of a chunk.
        before: Chunks before its own that a token meets.
        after: Chunks after it.
        causal: Whether a token meets none that comes after it.
        key_padding: Bool (B, n), True where a token is padding.
        same_bucket: Whether a token meets only those of its own bucket.
        count_meetings: Whether a token that is met twice counts twice.
        self_last: Whether a token attends to itself only if it meets no other.

    Example:
        >>> from fenchel.functional import hash_buckets, infer
        >>> x, v = torch.randn(2, 1, 2, 40, 8, dtype=torch.float64)
        >>> buckets = hash_buckets(x, torch.randn(2, 8, 3, 4, dtype=torch.float64))
        >>> result = infer(x, x, v, variant=Hashing(buckets, chunk=10))
        >>> torch.allclose(result.weights @ v, result.output)
        True
    """

    buckets: Tensor
    chunk: int = 64
    before: int = 1
    after: int = 0
    causal: bool = False
    key_padding: Tensor | None = None
    same_bucket: bool = False
    count_meetings: bool = True
    self_last: bool = True

    without = ("closeness", "dropout_p", "enable_gqa", "log_preference")

    made_by = HashingInference


def hashing_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    buckets: Tensor,
    *,
    chunk: int = 64,
    before: int = 1,
    after: int = 0,
    causal: bool = False,
    key_padding: Tensor | None = None,
    same_bucket: bool = False,
    count_meetings: bool = True,
    self_last: bool = True,
    **options: Unpack[Options],
) -> Tensor:
    r"""Infer one distribution for each token over the tokens that it meets when sorted by bucket.

    In every round tokens are sorted by bucket and cut into chunks; a token *meets* (may attend to) the tokens of its
    own chunk and of some before and after it. The chunks of all rounds form one ring: the first chunk of a round
    follows the last of the round before, as in the published code. With :math:`N_{ij}` the number of times that token i
    meets token j,

    .. math:: o_i = \sum_j p_{ij} v_j, \qquad p_{ij} \propto u_{ij}\exp\langle t_j, \lambda_i\rangle, \qquad
              u_{ij} \propto N_{ij}\ \text{ or, with count\_meetings=False, }\ [N_{ij} > 0]

    :func:`hashing_log_preference` is log u, and the result equals :func:`attention` with it, from O(n · rounds · chunk)
    scores instead of n². First order computes one softmax per chunk and combines the rounds by their normalisers; the
    other estimators solve once for each token, with its keys from all rounds.

    Args:
        query: Evidence, (B, H, n, d).
        key: (B, H, n, d); each token has one query and one key, as in self-attention.
        value: (B, H, n, d_v).
        buckets: Whole numbers (B, H, rounds, n), from :func:`hash_buckets` or any other clustering.
        chunk: Tokens of a chunk; about half the size of a bucket in the Reformer.
        before: Number of chunks before its own that a token meets.
        after: Number of chunks after it. In a short ring each chunk counts only once.
        causal: Whether a token meets none that comes after it.
        key_padding: True where a token is padding, bool (B, n): not met by any token and sorted to the end.
        same_bucket: Whether a token meets only those of its own bucket, as in the Reformer's paper; in the published
            code it meets all tokens of the chunks.
        count_meetings: Whether a token that is met twice counts twice, as in the published code; in the paper it counts
            once.
        self_last: Whether a token attends to itself only if it meets no other, as in the Reformer.
        alpha: α > 0: a number, or a tensor that broadcasts to (B, H, n).
        scale: Multiplies keys to give templates; None is 1/√d. The Reformer uses 1, with key = query / ‖query‖.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        tol: Tolerance of the exact estimator; see :func:`attention`.
        max_steps: Maximum number of steps of the exact estimator.

    Returns:
        (B, H, n, d_v) in the dtype of the query. A token that meets no others gets zeros. Buckets have no gradient.

    Raises:
        ProblemError: If the arguments are inconsistent.
        ConvergenceError: If the exact estimator does not reach ``tol`` for some query.

    Reference:
        Kitaev et al. 2020, Reformer: the efficient transformer, section 2 and appendix A.

    Example:
        >>> from fenchel.functional import attention, hash_buckets
        >>> x, v = torch.randn(2, 1, 2, 40, 8, dtype=torch.float64)
        >>> k = torch.nn.functional.normalize(x, dim=-1)
        >>> buckets = hash_buckets(x, torch.randn(2, 8, 3, 4, dtype=torch.float64))     # 3 rounds, 8 buckets
        >>> hashed = hashing_attention(x, k, v, buckets, chunk=10, causal=True, scale=1.0)
        >>> log_u = hashing_log_preference(buckets, chunk=10, causal=True)
        >>> torch.allclose(hashed, attention(x, k, v, log_preference=log_u, scale=1.0))
        True
    """
    variant = Hashing(
        buckets, chunk, before, after, causal, key_padding, same_bucket, count_meetings, self_last
    )
    return infer(query, key, value, variant=variant, **options).output


def hashing_log_preference(
    buckets: Tensor,
    *,
    chunk: int = 64,
    before: int = 1,
    after: int = 0,
    causal: bool = False,
    key_padding: Tensor | None = None,
    same_bucket: bool = False,
    count_meetings: bool = True,
    self_last: bool = True,
    dtype: torch.dtype | None = None,
) -> Tensor:
    r"""The preference of :func:`hashing_attention` as an array: :math:`\log N_{ij}`, -inf where i never meets j.

    For inspection, and for functions that take a preference; :func:`hashing_attention` does not need it.

    Args:
        buckets: Same as in :func:`hashing_attention`, like all arguments: (B, H, rounds, n).
        chunk: Tokens of a chunk.
        before: Chunks before its own that a token meets.
        after: Chunks after it.
        causal: Whether a token meets none that comes after it.
        key_padding: Bool (B, n), True where a token is padding.
        same_bucket: Whether a token meets only those of its own bucket.
        count_meetings: Whether a token that is met twice counts twice.
        self_last: Whether a token attends to itself only if it meets no other.
        dtype: Of the result; None is torch's default.

    Returns:
        (B, H, n, n).

    Raises:
        ProblemError: If the arguments are inconsistent.

    Example:
        >>> two_rounds = torch.tensor([[[[0, 1, 0, 1], [0, 0, 1, 1]]]])
        >>> hashing_log_preference(two_rounds, chunk=2, before=0).exp()[0, 0]       # itself, if nobody else
        tensor([[0., 1., 1., 0.],
                [1., 0., 0., 1.],
                [1., 0., 0., 1.],
                [0., 1., 1., 0.]])
    """
    variant = Hashing(
        buckets, chunk, before, after, causal, key_padding, same_bucket, count_meetings, self_last
    )
    order = _order(variant)
    if dtype is not None:
        check_floating("dtype", dtype)
    return _log_meetings(order, dtype).unflatten(0, buckets.shape[:2])


def _log_meetings(order: HashOrder, dtype: torch.dtype | None) -> Tensor:
    """Log N as an array, (L, n, n); a token that meets no others may meet itself."""
    size = order.tokens + 1
    met = torch.zeros(order.slots.shape[0], size * size, device=order.slots.device, dtype=dtype)
    pairs = order.slots.unsqueeze(-1) * size + order.windows_of(order.slots).unsqueeze(-2)
    allowed = ~order.forbidden()
    met.scatter_add_(1, pairs.flatten(1), allowed.flatten(1).to(met.dtype))
    met = met.unflatten(1, (size, size))[:, :-1, :-1]
    met = met if order.count_meetings else met.sign()
    if order.self_last:
        met = met + torch.diag_embed(order.alone((met == 0).all(-1)).to(met.dtype))
    return met.log()


def _order(
    variant: Hashing, batch: int | None = None, heads: int | None = None, tokens: int | None = None
) -> HashOrder:
    """The order of the tokens of a variant, after checking it against the sizes."""
    buckets, key_padding = variant.buckets, variant.key_padding
    sizes = batch, heads, None, tokens
    check_tensor("buckets", buckets, "(batch, heads, rounds, tokens)", dtypes=INTEGERS, sizes=sizes)
    if 0 in buckets.shape[2:]:
        raise ProblemError(
            f"buckets have shape {tuple(buckets.shape)}; expected at least one round and one token"
        )
    checked_argument("size", variant.chunk, name="chunk")
    for name in ("before", "after"):
        checked_argument("reach", getattr(variant, name), name=name)
    names = "causal", "same_bucket", "count_meetings", "self_last"
    flags = {name: getattr(variant, name) for name in names}
    check_flags(**flags)
    padding = None
    if key_padding is not None:
        form, sizes = "(batch, tokens), True where a token is padding", (buckets.shape[0], buckets.shape[3])
        place: dict[str, Any] = {"device": buckets.device, "other": "buckets"}
        check_tensor("key_padding", key_padding, form, dtypes=BOOL, sizes=sizes, **place)
        padding = key_padding.unsqueeze(1).expand(-1, buckets.shape[1], -1).flatten(0, 1)
    reach = {name: getattr(variant, name) for name in ("chunk", "before", "after")}
    return HashOrder.of(buckets.flatten(0, 1).to(torch.int64), padding, **reach, **flags)


# Number of products in a block, which fits into a cache.
_BLOCK_ENTRIES = 2**17


def hash_buckets(vectors: Tensor, rotations: Tensor) -> Tensor:
    r"""Angular hashing: the index of the nearest of several random axes and their opposites.

    .. math:: h(x) = \arg\max\,[xR;\, -xR]

    The hash does not depend on the length of x and has no gradient.

    Args:
        vectors: (B, H, n, d).
        rotations: R of every head and round, (H or 1, d, rounds, buckets / 2), with independent normal entries.

    Returns:
        The bucket of every vector in every round, int64 (B, H, rounds, n), from 0 to buckets - 1.

    Raises:
        ProblemError: If shapes, dtypes or devices are inconsistent.

    Reference:
        Kitaev et al. 2020, Reformer: the efficient transformer, section 2 (Andoni et al. 2015).

    Example:
        >>> x, rotations = torch.randn(1, 2, 10, 4), torch.randn(2, 4, 3, 8)
        >>> buckets = hash_buckets(x, rotations)
        >>> buckets.shape, bool((buckets == hash_buckets(5 * x, rotations)).all())
        (torch.Size([1, 2, 3, 10]), True)
    """
    check_tensor("vectors", vectors, "(batch, heads, tokens, dim)", dims=4)
    heads, dim = vectors.shape[1], vectors.shape[3]
    form = "(heads or 1, dim, rounds, buckets / 2) for these vectors, drawn with torch.randn"
    sizes = ((1, heads), dim, None, None)
    check_tensor("rotations", rotations, form, sizes=sizes, device=vectors.device, other="vectors")
    if 0 in rotations.shape[2:]:
        raise ProblemError(
            f"rotations have shape {tuple(rotations.shape)}; expected at least one round and two buckets"
        )
    with torch.no_grad():
        dtype = torch.promote_types(vectors.dtype, torch.float32)
        axes = rotations.to(dtype).flatten(2)
        rows = max(1, _BLOCK_ENTRIES // axes.shape[2])
        result = vectors.new_empty(*vectors.shape[:3], rotations.shape[2], dtype=torch.int64)
        for b, h, start in product(range(vectors.shape[0]), range(heads), range(0, vectors.shape[2], rows)):
            some = slice(start, start + rows)
            turned = vectors[b, h, some].to(dtype) @ axes[h % axes.shape[0]]
            result[b, h, some] = _nearest(turned.unflatten(-1, tuple(rotations.shape[2:])))
        return result.transpose(-1, -2)


def _nearest(turned: Tensor) -> Tensor:
    """The index of the largest of [xR; -xR]: that of |xR|, or its opposite."""
    axis = turned.abs().argmax(-1, keepdim=True)
    opposite = turned.gather(-1, axis) < 0
    return (axis + opposite * turned.shape[-1]).squeeze(-1)


# Maximum number of entries of the gathered keys and values of a block.
_BLOCK_NUMBERS = 2**24


def solved_output(
    z: Tensor,
    templates: Tensor,
    value: Tensor,
    alpha: Tensor,
    order: HashOrder,
    solver: Estimator,
) -> Tensor:
    """The output (L, n, d_v), block by block.

    With one round, the queries of a chunk share their keys and form one problem. With more, each query has its own
    keys, which are gathered, and stored if gradients are recorded.

    Args:
        z: (L, n, d).
        templates: (L, n, d).
        value: (L, n, d_v).
        alpha: (L, n, 1).
        order: Which tokens meet.
        solver: Second order or exact.
    """
    log_u = _log_preference(order, z.dtype)
    window = order.windows_of(order.slots).clamp_max(order.tokens - 1)
    if order.rounds == 1:
        problems = [order.of_slots(part).flatten(0, 1) for part in (z, alpha)]
        keys, log_u = window.flatten(0, 1), log_u.flatten(0, 1)
    else:
        problems = [part.unsqueeze(2).flatten(0, 1) for part in (z, alpha)]
        by_slot = window.unsqueeze(2).expand(-1, -1, order.chunk, -1)
        keys, log_u = (
            order.of_tokens(part).transpose(1, 2).flatten(2).flatten(0, 1) for part in (by_slot, log_u)
        )
        log_u = log_u.unsqueeze(1)
    each = keys.shape[0] // z.shape[0]
    first = torch.arange(z.shape[0], device=z.device).mul_(order.tokens).repeat_interleave(each)
    rows = keys + first.unsqueeze(-1)

    def of_problems(some: slice) -> Tensor:
        evidence, reliability, preference = (part[some].unsqueeze(1) for part in (*problems, log_u))
        templates_of_keys, values = (
            part.flatten(0, 1).index_select(0, rows[some].flatten()).unflatten(0, tuple(rows[some].shape))
            for part in (templates, value)
        )
        return attention(
            evidence,
            templates_of_keys.unsqueeze(1),
            values.unsqueeze(1),
            log_preference=preference,
            alpha=reliability.squeeze(-1),
            scale=1.0,
            estimator=solver,
        ).squeeze(1)

    numbers = rows.shape[1] * (templates.shape[-1] + value.shape[-1] + problems[0].shape[1])
    blocks = spans(rows.shape[0], max(1, _BLOCK_NUMBERS // numbers))
    result = torch.cat([of_problems(some) for some in blocks]).unflatten(0, (z.shape[0], each))
    return order.of_tokens(result).squeeze(1) if order.rounds == 1 else result.squeeze(2)


def _log_preference(order: HashOrder, dtype: torch.dtype) -> Tensor:
    """Log u of slots and the slots of their windows, (L, G, c, C); a key that is met twice has two entries."""
    seen = order.windows_of(order.slots).unsqueeze(-2)
    log_u = order.weigh_(torch.zeros(*order.slots.shape, seen.shape[-1], dtype=dtype, device=seen.device))
    if not order.self_last:
        return log_u
    alone = order.alone(order.of_tokens(log_u.isneginf().all(-1)).all(1))
    itself = order.slots.unsqueeze(-1) == seen
    return log_u.masked_fill(itself & order.of_slots(alone).unsqueeze(-1), 0.0)
