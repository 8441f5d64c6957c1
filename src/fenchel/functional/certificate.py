"""How far at most an attention output is from the inference that it approximates."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.blocked import attend
from fenchel.functional.precision import compute_dtype, without_autocast

__all__ = ["AttentionCertificate", "bounded_shift", "certificate_at"]

_SHORT = 4.0
"""In roots of the rounding: ‖λ‖‖t‖ up to which μ - ĥ is bounded instead of computed."""


class AttentionCertificate(NamedTuple):
    r"""Bounds that hold for every query, from one attention pass (facts 1 and 2).

    Attributes:
        gap: Duality gap :math:`\frac\alpha2\lVert\nabla\mathcal{D}(\lambda)\rVert^2`; at first order half the squared
            shift of the mean, times α. The weights are within total variation √(gap/2) of the exact ones. (B, H, m).
        mean_error: Bound on ‖h - h*‖, the distance of the mean of the templates from the exact one, (B, H, m).
        dual_error: Bound on ‖λ - λ*‖, (B, H, m).

    They carry no gradient, and are 0 where a query has nothing to attend to.
    """

    gap: Tensor
    mean_error: Tensor
    dual_error: Tensor


@torch.no_grad()
def certificate_at(given: AttentionArguments, dual: Tensor, mean: Tensor) -> AttentionCertificate:
    """The certificate of dual points (B, H, m, d), given the means ĥ of the templates there in the dtype of bounds."""
    with without_autocast(dual):
        dtype = mean.dtype
        column = given.alpha.to(dtype) if isinstance(given.alpha, Tensor) else given.alpha
        evidence, lam = given.query.to(dtype), dual.to(dtype)
        unmet = evidence - lam / column
        norm = (unmet + (preference_mean(given) - mean)).norm(dim=-1, keepdim=True)
        length, radius = lam.norm(dim=-1, keepdim=True), _radius(given, dtype)
        norm = bounded_shift(norm, length, radius, unmet=unmet.norm(dim=-1, keepdim=True))
        norm = given.without_empty_rows(norm)
        gap = (column / 2 * norm.square()).squeeze(-1)
        return AttentionCertificate(gap, norm.squeeze(-1), (column * norm).squeeze(-1))


def bounded_shift(
    norm: Tensor,
    length: Tensor,
    radius: Tensor,
    *,
    curvature: Tensor | None = None,
    unmet: float | Tensor = 0.0,
) -> Tensor:
    r"""The gradient's norm as it was computed, and a bound on it where what was computed is rounding.

    .. math:: \lVert\nabla\mathcal{D}(\lambda)\rVert \le \lVert z - \lambda/\alpha\rVert + \lVert\lambda\rVert
              \max\lVert\nabla^2\varphi\rVert

    Of a short λ the difference of the means μ and ĥ is rounding.

    Args:
        norm: As computed.
        length: ‖λ‖, of the same shape.
        radius: The largest norm of a template, or the root of the curvature, broadcastable to it.
        curvature: A bound on ∇²φ from 0 to λ; None is the radius squared, which no covariance exceeds.
        unmet: ‖z - λ/α‖; 0 at first order.
    """
    lost = length * radius <= _SHORT * torch.finfo(norm.dtype).eps ** 0.5
    steepest = radius.square() if curvature is None else curvature
    return torch.where(lost, unmet + length * steepest, norm)


def _radius(given: AttentionArguments, dtype: torch.dtype) -> Tensor:
    """The largest norm of a template of each head, (B, H, 1, 1)."""
    longest = given.key.to(dtype).norm(dim=-1).amax(-1) * abs(given.scale)
    return longest.repeat_interleave(given.query.shape[1] // given.key.shape[1], 1)[..., None, None]


def preference_mean(given: AttentionArguments) -> Tensor:
    """μ, the mean of the templates under the preference, (B, H, m or 1, d), in the dtype of bounds."""
    queries = 1 if given.log_preference_is_shared else given.query.shape[2]
    nowhere = torch.zeros_like(given.query[:, :, :queries])
    wide = nowhere.to(compute_dtype(nowhere.dtype))
    empty = given.value[..., :0]
    return attend(wide, given.key, empty, given.log_preference, scale=given.scale, with_mean=True)[1]  # pyright: ignore[reportReturnType]
