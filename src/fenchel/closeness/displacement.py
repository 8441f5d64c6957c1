"""What small potentials add to a preference under a Tsallis closeness."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.closeness.offsets import LEAST_LOG_WEIGHT, LEAST_ORDER

__all__ = ["small_displacement"]

MOST = 100
"""Steps at most."""


def small_displacement(f: Tensor, log_u: Tensor, a: float | Tensor, *, csiszar: bool) -> Tensor:
    r"""What a small potential adds to u, to rounding relative to itself, (..., n).

    .. math:: p_i - u_i = u_i\left([1 + a c_i(f_i - \tau)]_+^{1/a} - 1\right), \qquad \sum_i (p_i - u_i) = 0

    with :math:`c = u^{-a}` in Bregman's sense and 1 in Csiszár's; by Newton's method on the sum, which is
    convex and decreasing in τ.

    Args:
        f: (..., n), finite.
        log_u: Broadcasts to (..., n).
        a: β - 1, a number or a tensor that broadcasts to (..., 1).
        csiszar: In Csiszár's sense.
    """
    masked = log_u < LEAST_LOG_WEIGHT
    u = log_u.masked_fill(masked, -torch.inf).exp()
    a = a.clamp(min=LEAST_ORDER) if isinstance(a, Tensor) else max(a, LEAST_ORDER)
    ratio = 1.0 if csiszar else (log_u.clamp(min=LEAST_LOG_WEIGHT) * -a).exp()
    f = f.masked_fill(masked, 0)
    q = (u * ratio).expand_as(f)
    tau = (q * f).sum(-1, keepdim=True) / q.sum(-1, keepdim=True)
    low = f.masked_fill(masked, torch.inf).amin(-1, keepdim=True)
    high = f.masked_fill(masked, -torch.inf).amax(-1, keepdim=True)
    found, enough = f, 4 * torch.finfo(f.dtype).eps * torch.maximum(low.abs(), high.abs())
    for _ in range(MOST):
        rise = (a * ratio * (f - tau)).clamp_(min=-1)
        logarithm = torch.log1p(rise) / a
        found = u * torch.expm1(logarithm)
        slope = (u * ratio * logarithm.exp() / (rise + 1)).masked_fill_((rise == -1) | masked, 0)
        step = found.sum(-1, keepdim=True) / slope.sum(-1, keepdim=True)
        following = torch.minimum(torch.maximum(tau + step, low), high)
        moved = following - tau
        if bool((moved.abs() <= enough).all()):
            # The last step, too small to be added to τ.
            return found - slope * moved
        tau = following
    return found
