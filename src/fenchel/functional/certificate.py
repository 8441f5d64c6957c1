"""How far an answer of attention is from exact inference at most, with what rounding can hide."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fenchel.functional.arguments import (
    AttentionArguments,
    compute_dtype,
    largest_level,
    unit_of_products,
    without_autocast,
)
from fenchel.functional.exact import preference_weights
from fenchel.functional.output import means_at
from fenchel.tensors import LINEAR, may_attend, norm, summed

_BEYOND_FIRST_ORDER = 1.5
"""What errors of logits up to a tenth do to a mean is at most this multiple of their first order."""

_LARGEST_EXPONENT = 80.0


class AttentionCertificate(NamedTuple):
    r"""Bounds that hold for every query, from one attention pass (facts 1 and 2).

    Attributes:
        gap: Duality gap :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`; at first order half the squared
            shift of the mean, times α. The weights are within total variation √(gap/2) of the exact ones. (B, H, m).
        mean_error: Bound on ‖h - h*‖, the distance of the mean of the templates from the exact one, (B, H, m).
        dual_error: Bound on ‖λ - λ*‖, (B, H, m).

    They hold for the answer at λ whatever rounding does to their evaluation; the output is that answer to the rounding
    of its own dtype. They carry no gradient, and are 0 where a query has nothing to attend to.
    """

    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor


def _centred(given: AttentionArguments) -> tuple[Tensor, Tensor, Tensor]:
    r"""Keys less a vector that those of a head share: nothing changes but rounding, and that a lot (fact 3).

    The vector is their mean under u where queries share it, and else where u is uniform.

    Returns:
        :math:`k - c` and :math:`\lVert k - c\rVert^2`, side by side, (B, H_kv, n, d + 1) in float32 or float64; their
        mean under u, (B, H, m or 1, d + 1); and the largest :math:`\lVert k - c\rVert` that may get weight, of each
        head, (B, H, 1, 1) in float64.
    """
    shared, own = given.log_preference_is_shared, given.log_preference
    wide = given.key.to(compute_dtype(given.key.dtype))

    def at_rest(templates: Tensor) -> Tensor:
        """Means under u, (B, H, m or 1, c)."""
        if shared:
            each = given.of_query_heads(templates)
            return preference_weights(own, each) @ each
        # Without coordinates every score is 0.
        return means_at(given, given.query[..., :0], wide[..., :0], templates)[0]

    means = at_rest(wide).unflatten(1, (given.key.shape[1], -1)).mean(2) if shared else wide
    key = wide - means.mean(-2, keepdim=True)
    squares = torch.linalg.vecdot(key, key).unsqueeze(-1)
    moments = torch.cat([key, squares], -1)
    squares = given.of_query_heads(squares)
    if shared and own is not None:
        squares = squares.masked_fill(~may_attend(own).mT, 0)
    return moments, at_rest(moments), squares.amax(-2, keepdim=True).double().sqrt()


@torch.no_grad()
def certificate_at(
    given: AttentionArguments, dual: Tensor, *others: Tensor, first_order: bool
) -> tuple[AttentionCertificate, list[Tensor]]:
    r"""The certificate of dual points, with what rounding can hide.

    With templates t = s(k - c) of norm R at most, :math:`\lVert\nabla\mathcal{D}(\lambda)\rVert` is at most what is
    computed and what that has lost, see :func:`lost_to_rounding`. It is also at most
    :math:`\lVert z - \lambda/\alpha\rVert` and how far the mean moves,

    .. math:: \lVert\mu - \hat h\rVert \le \lVert\lambda\rVert \sup\lVert\nabla^2\varphi\rVert
              \le \lVert\lambda\rVert\,e^{2\lVert\lambda\rVert R}\,\mathbb{E}_u\lVert t\rVert^2

    since weights are at most :math:`e^{2\lVert\lambda\rVert R}u`. That is the smaller one where λ is short and the
    difference of means is rounding.

    Args:
        given: Checked arguments.
        dual: λ, (B, H, m, d).
        *others: What is averaged in the same pass over the keys, (B, H_kv, n, any) each.
        first_order: Whether λ stands for αz.

    Returns:
        The certificate, and the averages.
    """
    with without_autocast(dual):
        moments, rest, largest = _centred(given)
        means, *result = means_at(
            given, dual, moments[..., :-1], moments, *(x.to(moments.dtype) for x in others)
        )
        dtype, scale = means.dtype, abs(given.scale)
        unit, width = torch.finfo(dtype).eps / 2, dual.shape[-1]
        alpha = given.alpha.double() if isinstance(given.alpha, Tensor) else given.alpha
        length = norm_of(dual)
        gradient = (rest[..., :-1] - means[..., :-1]) * given.scale
        if first_order and dual.dtype == dtype:
            # z - λ/α is what rounding αz leaves, and nothing where α is 1.
            exact = not isinstance(alpha, Tensor) and alpha == 1
            apart = besides = 0.0 if exact else 2 * unit * length / alpha
        else:
            evidence = given.query.to(dtype)
            unmet = evidence - dual.to(dtype) / (alpha.to(dtype) if isinstance(alpha, Tensor) else alpha)
            gradient = gradient + unmet
            besides = 4 * unit * (norm_of(evidence) + length / alpha)
            apart = norm_of(unmet) + besides
        spread, at_rest = (each[..., -1:].double().sqrt() * scale for each in (means, rest))
        reach = length * (largest * scale)
        has_levels = given.log_preference is not None and given.log_preference.dtype != torch.bool
        lost = lost_to_rounding(given, length, reach, (spread, at_rest), dtype, has_levels=has_levels)
        computed = norm_of(gradient) + besides + lost
        known = length * at_rest.square() * (2 * reach).clamp(max=_LARGEST_EXPONENT).exp()
        known = torch.where(reach <= _LARGEST_EXPONENT / 2, known, 2 * scale * largest)
        norm = torch.minimum(computed, known + apart) * (1 + (summed(width) + 16) * unit)
        return certificate_of(norm, alpha, dtype), result


def certificate_of(norm: Tensor, alpha: float | Tensor, dtype: torch.dtype) -> AttentionCertificate:
    """What a bound on the norm of the dual's gradient certifies, (B, H, m, 1), with α that broadcasts to it."""
    # A gap that the dtype does not hold is not 0.
    gap = alpha / 2 * norm.square() + norm.clamp(max=torch.finfo(dtype).tiny)
    return AttentionCertificate(*(bound.squeeze(-1).to(dtype) for bound in (gap, norm, alpha * norm)))


def norm_of(vectors: Tensor) -> Tensor:
    """(..., 1) in float64, whose squares do not underflow."""
    if vectors.dtype == torch.float64:
        return norm(vectors)
    return torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)


def lost_to_rounding(
    given: AttentionArguments,
    length: Tensor,
    reach: Tensor,
    spreads: tuple[Tensor, Tensor],
    dtype: torch.dtype,
    *,
    has_levels: bool,
) -> Tensor:
    r"""How far rounding may have moved μ - ĥ, (B, H, m, 1): infinite where that is more than a first order.

    Errors :math:`\delta` of logits move a mean by at most :math:`\sqrt{\mathbb{E}\delta^2\,\mathbb{E}\lVert t\rVert^2}`
    (Cauchy-Schwarz), errors of weights and sums by their size times :math:`\sqrt{\mathbb{E}\lVert t\rVert^2}`. Logits
    are inner products, off by some roundings of ‖λ‖‖t‖, to which log weights are added; those that are y below the
    largest are subtracted from it and weigh :math:`e^{-y}`, so that :math:`\sqrt{\mathbb{E}y^2}` is log n + 1 at most.

    Args:
        given: Checked arguments.
        length: ‖λ‖, (B, H, m, 1).
        reach: ‖λ‖ times the largest ‖t‖.
        spreads: Bounds on :math:`\sqrt{\mathbb{E}\lVert t\rVert^2}` at λ and under u.
        dtype: In which means were computed.
        has_levels: Whether log weights are added to the inner products.
    """
    unit, products = torch.finfo(dtype).eps / 2, unit_of_products(dtype, given.query.device.type)
    count, dim = given.key.shape[-2:]
    of_products = 2 * products + (summed(dim) + 10) * unit
    of_sums = 2 * products + (2 * summed(count) + 10) * unit
    rest, added = of_sums, 0.0
    differing = (3 * (math.log(count) + 2) + 8) * unit
    if has_levels:
        added = 2 * unit
        differing += added * largest_level(given.query.dtype)
    if has_levels or given.log_preference is not None:
        rest += _BEYOND_FIRST_ORDER * differing
    spread, at_rest = spreads
    of_logits = length * spread * of_products + differing
    if has_levels:
        of_logits = of_logits + added * reach
    result = (of_logits * _BEYOND_FIRST_ORDER + of_sums) * spread + rest * at_rest
    return torch.where((of_products + added) * reach + differing <= LINEAR, result, torch.inf)
