"""Attention to keys in the same buckets: a preference that is 0 almost everywhere, never written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.tensor import (
    BOOL,
    FLOATING,
    INTEGERS,
    check_device,
    check_flags,
    check_tensor,
    checked_argument,
)
from fenchel.errors import ProblemError
from fenchel.functional.arguments import check_some_keys, checked
from fenchel.functional.hash_order import HashOrder
from fenchel.functional.hashed_problems import solved_output
from fenchel.functional.hashed_softmax import MeetingRule, hashed_softmax
from fenchel.functional.precision import compute_dtype, without_autocast

__all__ = ["hashing_attention", "hashing_log_preference"]


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
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    tol: float | None = None,
    max_steps: int = 50,
) -> Tensor:
    r"""Infer one distribution a token over the tokens that it meets in the order of their buckets.

    In every round tokens are sorted by bucket and cut into chunks; a token meets those of its own chunk, and of some
    before and after it. The rounds' chunks stand in one ring: the first of a round comes after the last of the round
    before, as in the published code. With :math:`N_{ij}` the number of times that token i meets token j,

    .. math:: o_i = \sum_j p_{ij} v_j, \qquad p_{ij} \propto u_{ij}\exp\langle t_j, \lambda_i\rangle, \qquad
              u_{ij} \propto N_{ij}\ \text{ or, with count\_meetings=False, }\ [N_{ij} > 0]

    :func:`hashing_log_preference` is log u, and this is :func:`attention` with it, with O(n · rounds · chunk) scores in
    the place of n². First order computes a softmax a chunk and joins the rounds by their normalisers; the other
    estimators solve for every token's keys of all rounds together, which with one round are those of its chunk.

    Args:
        query: Evidence, (B, H, n, d).
        key: (B, H, n, d); a token's query and key belong together, as in self-attention.
        value: (B, H, n, d_v).
        buckets: Whole numbers (B, H, rounds, n), such as :func:`hash_buckets` gives; or of any other clustering.
        chunk: Tokens of a chunk; about half of what a bucket holds in the Reformer.
        before: How many chunks before its own a token looks at.
        after: How many after it. A ring of few chunks is looked at once.
        causal: Whether a token meets none that comes after it.
        key_padding: True where a token is padding, bool (B, n): met by nobody, and sorted to the end.
        same_bucket: Whether a token meets those of its own bucket only, as in the Reformer's paper; in published code
            it meets all of the chunks.
        count_meetings: Whether a token that is met twice counts twice, as in published code; in the paper it counts
            once.
        self_last: Whether a token attends to itself only if it meets no other, as the Reformer's do.
        alpha: α > 0: a number, or a tensor that broadcasts to (B, H, n).
        scale: Makes templates of keys; None is 1/√d. The Reformer's is 1, with key = query / ‖query‖.
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        tol: Of the exact estimator; see :func:`attention`.
        max_steps: Of the exact estimator.

    Returns:
        (B, H, n, d_v) in the dtype of the query. A token that meets nothing gets zeros. Buckets pass no gradient on.

    Raises:
        ProblemError: If the arguments do not fit together.
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
    given = checked(
        query,
        key,
        value,
        log_preference=None,
        alpha=alpha,
        scale=scale,
        estimator=estimator,
        dropout_p=0.0,
        enable_gqa=False,
        tol=tol,
        max_steps=max_steps,
    )
    check_some_keys(query, key, value)
    if query.shape[2] != key.shape[2]:
        raise ProblemError(
            f"query has {query.shape[2]} tokens and key {key.shape[2]}; expected as many: in hashing attention each "
            "token has a query and a key"
        )
    batch, heads, tokens = query.shape[:3]
    lead = batch, heads, tokens
    order = _order(buckets, lead, key_padding, chunk, before, after, causal, same_bucket)
    check_device("buckets", buckets, query.device)
    check_flags(count_meetings=count_meetings, self_last=self_last)
    if batch * heads == 0:
        return torch.zeros_like(given.value)
    rule = MeetingRule(count_meetings, self_last)
    with without_autocast(query):
        dtype = compute_dtype(given.query.dtype)
        z, templates, _, reliability = given.problem_in(dtype)
        templates, values = templates.flatten(0, 1), given.value.to(dtype).flatten(0, 1)
        if estimator == "first_order":
            output = hashed_softmax((z * reliability).flatten(0, 1), templates, values, order, rule)
        else:
            each = reliability.expand(*lead, 1).flatten(0, 1)
            options = {"estimator": estimator, "tol": tol, "max_steps": max_steps}
            output = solved_output(z.flatten(0, 1), templates, values, each, order, rule, **options)
    return output.unflatten(0, (batch, heads)).to(given.query.dtype)


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

    For looking at, and for what takes a preference; :func:`hashing_attention` does without it.

    Args:
        buckets: As all arguments here, what it is in :func:`hashing_attention`: (B, H, rounds, n).
        chunk: Tokens of a chunk.
        before: Chunks before its own that a token looks at.
        after: Chunks after it.
        causal: Whether a token meets none that comes after it.
        key_padding: Bool (B, n), True where a token is padding.
        same_bucket: Whether a token meets those of its own bucket only.
        count_meetings: Whether a token that is met twice counts twice.
        self_last: Whether a token attends to itself only if it meets no other.
        dtype: Of the result; None is torch's default.

    Returns:
        (B, H, n, n).

    Raises:
        ProblemError: If the arguments do not fit together.

    Example:
        >>> two_rounds = torch.tensor([[[[0, 1, 0, 1], [0, 0, 1, 1]]]])
        >>> hashing_log_preference(two_rounds, chunk=2, before=0).exp()[0, 0]       # itself, if nobody else
        tensor([[0., 1., 1., 0.],
                [1., 0., 0., 1.],
                [1., 0., 0., 1.],
                [0., 1., 1., 0.]])
    """
    lead = tuple(buckets.shape) if isinstance(buckets, Tensor) and buckets.dim() == 4 else (0, 0, 0, 0)
    order = _order(
        buckets, (lead[0], lead[1], lead[3]), key_padding, chunk, before, after, causal, same_bucket
    )
    check_flags(count_meetings=count_meetings, self_last=self_last)
    size = order.tokens + 1
    if dtype is not None and dtype not in FLOATING:
        given = dtype if isinstance(dtype, torch.dtype) else shown(dtype)
        raise ProblemError(f"dtype is {given}; expected one of {', '.join(map(str, FLOATING))}, or None")
    met = torch.zeros(order.slots.shape[0], size * size, device=buckets.device, dtype=dtype)
    pairs = order.slots.unsqueeze(-1) * size + order.looked_at(order.slots).unsqueeze(-2)
    allowed = ~order.forbidden(self_too=self_last)
    met.scatter_add_(1, pairs.flatten(1), allowed.flatten(1).to(met.dtype))
    met = met.unflatten(1, (size, size))[:, :-1, :-1]
    met = met if count_meetings else met.sign()
    if self_last:
        alone = (met == 0).all(-1)
        if order.padding is not None:
            alone = alone & ~order.padding
        met = met + torch.diag_embed(alone.to(met.dtype))
    return met.log().unflatten(0, lead[:2])


def _order(
    buckets: Any,
    lead: tuple[int, int, int],
    key_padding: Any,
    chunk: int,
    before: int,
    after: int,
    causal: bool,
    same_bucket: bool,
) -> HashOrder:
    form = "(batch, heads, rounds, tokens)"
    check_tensor("buckets", buckets, form, dtypes=INTEGERS, dims=4)
    batch, heads, tokens = lead
    if tuple(buckets.shape[:2]) != (batch, heads) or buckets.shape[3] != tokens or 0 in buckets.shape[2:]:
        raise ProblemError(
            f"buckets have shape {tuple(buckets.shape)}; expected {form} with batch {batch}, {heads} heads, at least "
            f"one round and {tokens} tokens"
        )
    checked_argument("size", chunk, name="chunk")
    for name, reach in (("before", before), ("after", after)):
        checked_argument("reach", reach, name=name)
    check_flags(causal=causal, same_bucket=same_bucket)
    padding = None
    if key_padding is not None:
        words = "(batch, tokens), True where a token is padding"
        check_tensor("key_padding", key_padding, words, dtypes=BOOL)
        check_device("key_padding", key_padding, buckets.device, "buckets")
        if tuple(key_padding.shape) != (batch, tokens):
            raise ProblemError(
                f"key_padding has shape {tuple(key_padding.shape)}; expected {words} = ({batch}, {tokens})"
            )
        padding = key_padding.unsqueeze(1).expand(-1, heads, -1).flatten(0, 1)
    return HashOrder.of(
        buckets.flatten(0, 1).to(torch.int64),
        padding,
        chunk=chunk,
        before=before,
        after=after,
        causal=causal,
        same_bucket=same_bucket,
    )
