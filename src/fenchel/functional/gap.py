"""The certificate's gap with gradient: how far attention is from exact inference, as a term of a loss."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from fenchel.closeness import AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.functional.arguments import checked
from fenchel.functional.close import CloseAttention
from fenchel.functional.close_arguments import checked_closeness
from fenchel.functional.dual_point import dual_point
from fenchel.functional.leading import broadcast_leading, restored
from fenchel.functional.output import output_at
from fenchel.functional.plain import plain_weights
from fenchel.functional.precision import compute_dtype, without_autocast

__all__ = ["gap", "refuse_exact"]


def refuse_exact(estimator: str, instead: str) -> None:
    """Refuse the gap of the exact estimator, naming what gives the number.

    Raises:
        ProblemError: If the estimator is ``"exact"``.
    """
    if estimator == "exact":
        raise ProblemError(
            "estimator is 'exact', whose gap is 0 up to its tolerance, with nothing to train; expected 'first_order' "
            f"or 'second_order'; {instead} gives the number"
        )


def gap(
    query: Tensor,
    key: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    closeness: AbstractCloseness | None = None,
    estimator: str = "first_order",
    enable_gqa: bool = False,
) -> Tensor:
    r"""The duality gap of :func:`attention`'s answer, differentiable.

    .. math:: \mathrm{gap} = \tfrac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2, \qquad
              \nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - \hat h

    The same numbers as :func:`attention_with_certificate` gives, which are a record and carry no gradient. Added to a
    loss this trains queries, keys, preference and α so that the closed form stays near the inference that it stands
    for. At first order it is :math:`\frac\alpha2\lVert\mu - \hat h\rVert^2`, attention with keys for values.

    Args:
        query: As all arguments here, what it is in :func:`attention`.
        key: (B, H_kv, n, d).
        log_preference: Broadcastable to (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        scale: None is 1/√d.
        closeness: None is softmax.
        estimator: ``"first_order"`` or ``"second_order"``. The exact answer has a gap of 0 up to its tolerance, with
            nothing to train.
        enable_gqa: Allow H_kv < H.

    Returns:
        (B, H, m) in float32, float64 for float64; 0 for a query with nothing to attend to.

    Raises:
        ProblemError: If the arguments do not fit together, or ``estimator`` is ``"exact"``.

    Reference:
        Fact 1 of the documentation's mathematics.

    Example:
        >>> import torch
        >>> q, k = torch.randn(2, 1, 2, 5, 4, dtype=torch.float64).requires_grad_()
        >>> loss = gap(q, k).mean()
        >>> to_query, to_key = torch.autograd.grad(loss, (q, k))
        >>> to_key.shape
        torch.Size([1, 2, 5, 4])
    """
    refuse_exact(estimator, "attention_with_certificate")
    lead = broadcast_leading(query, key, key, enable_gqa)
    if lead is not None:
        query, key, key, enable_gqa, _ = lead
    given = checked(
        query,
        key,
        key,
        log_preference=log_preference,
        alpha=alpha,
        scale=scale,
        estimator=estimator,
        dropout_p=0.0,
        enable_gqa=enable_gqa,
    )
    close = checked_closeness(closeness, estimator, given.query)
    if close is not None and not given.has_no_evidence:
        call = CloseAttention(given, close)
        return restored(lead, call.gap(call.dual_point(estimator, None, 1)))
    if given.has_no_evidence:
        return restored(lead, 0.0 * plain_weights(given).sum(-1).to(compute_dtype(query.dtype)))
    with without_autocast(query):
        # A difference of means, squared: in half types it would be rounding and little else.
        dtype = compute_dtype(given.query.dtype)
        # A vector that keys share changes nothing but rounding.
        wide = given.key.to(dtype)
        wide = wide - wide.detach().mean(-2, keepdim=True)
        given = replace(given, query=given.query.to(dtype), key=wide, value=wide)
        column = given.alpha.to(dtype) if isinstance(given.alpha, Tensor) else given.alpha
        dual = dual_point(given, estimator, None, 1)
        queries = 1 if given.log_preference_is_shared else dual.shape[2]
        believed = output_at(given, given.query.new_zeros(given.query[:, :, :queries].shape))
        gradient = (believed - output_at(given, dual)) * given.scale
        if estimator != "first_order":
            gradient = gradient + (given.query - dual / column)
        found = column / 2 * gradient.square().sum(-1, keepdim=True)
        return restored(lead, given.without_empty_rows(found).squeeze(-1))
