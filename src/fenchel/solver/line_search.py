r"""How far to go along a Newton direction: a search on the slope of the dual.

Along :math:`\lambda + \alpha t\,\delta` the dual is concave in t, so its slope

.. math:: \varphi'(t)/\alpha = \langle \nabla\mathcal{D}(\lambda + \alpha t\delta), \delta\rangle
          = \varphi'(0)/\alpha - \langle p(t) - p(0), L\delta\rangle - t\,\langle\delta, \delta\rangle

falls from φ'(0) > 0. It needs no product with the operator, only a softmax, and unlike a difference of dual
values it does not cancel near the solution. A full step is taken when the dual is certainly higher there:
because the slope is still ≥ 0, or because it is so little below that what was lost since the top is less
than what was gained before it. Log-sum-exp is self-concordant in the sense that along the step the
logarithm of its curvature changes at most as fast as the logits spread: where they spread by R, curvatures
differ by at most a factor :math:`e^R`, so that a slope b > 0 downhill at the end lost at most :math:`e^R
(b/a)^2` of what the slope a at the start gained. Otherwise the root of the slope is bracketed and
approached from the rising side.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.selection import gather_rows, rows_where
from fenchel.solver.coordinates import dot
from fenchel.solver.rows import Rows

__all__ = ["step_length"]

_TRIALS = 40


def step_length(
    rows: Rows, logits: Tensor, weights: Tensor, lifted_step: Tensor, initial: Tensor, square: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    r"""Step lengths t in (0, 1], and what the full step gives.

    Args:
        rows: Data of the rows.
        logits: Where the search starts, (g, r, n).
        weights: p there, (g, r, n).
        lifted_step: Lδ, the step's inner products with the templates, (g, r, n).
        initial: φ'(0)/α, (g, r), positive where a step is wanted.
        square: :math:`\langle\delta, \delta\rangle`, (g, r).

    Returns:
        t (g, r), 0 where ``initial`` is not positive; and logits and p at t = 1 (g, r, n), which most rows take.
    """
    full = torch.addcmul(logits, rows.alpha, lifted_step)
    at_one = torch.softmax(full, -1)
    slope = initial - square - dot(at_one - weights, lifted_step)
    movement = rows.alpha.squeeze(-1) * _range(rows, lifted_step)
    gains = slope.square() * movement.exp() <= initial.square() / 4
    accepted = (slope >= 0) | gains
    rising = initial > 0
    length = (rising & accepted).to(logits.dtype)
    wanting = rising & ~accepted
    if bool(wanting.any()):
        index = rows_where(wanting)
        scalars = (initial, slope, square, dot(weights, lifted_step))
        tensors = (logits, rows.alpha * lifted_step, lifted_step)
        found = _root(
            *(value.gather(1, index) for value in scalars), *(gather_rows(value, index) for value in tensors)
        )
        still = wanting.gather(1, index)
        length.scatter_(1, index, torch.where(still, found, length.gather(1, index)))
    return length, (full, at_one)


def _range(rows: Rows, lifted_step: Tensor) -> Tensor:
    """Range over the support of how the scores move, (g, r)."""
    masked = torch.isneginf(rows.log_preference)
    if not bool(masked.any()):
        return lifted_step.amax(-1) - lifted_step.amin(-1)
    return lifted_step.masked_fill(masked, -torch.inf).amax(-1) - lifted_step.masked_fill(
        masked, torch.inf
    ).amin(-1)


def _root(
    initial: Tensor,
    at_one: Tensor,
    square: Tensor,
    pairing: Tensor,
    logits: Tensor,
    logits_step: Tensor,
    lifted_step: Tensor,
) -> Tensor:
    """Lengths at which the slope is between 0 and half of its initial value, by false position and bisection."""
    low, high = torch.zeros_like(initial), torch.ones_like(initial)
    slope_low, slope_high = initial, at_one
    for trial in range(_TRIALS):
        secant = low + (high - low) * slope_low / (slope_low - slope_high)
        # Every second trial bisects on a logarithmic scale, since where the weights are saturated the slope
        # may turn after a tiny part of the step; the secant lands close once the slope is nearly linear.
        middle = torch.where(low > 0, (low * high).sqrt(), 1e-3 * high)
        inside = (secant > low) & (secant < high)
        length = torch.where(inside, secant, middle) if trial % 2 == 0 else middle
        weights = torch.softmax(torch.addcmul(logits, length.unsqueeze(-1), logits_step), -1)
        slope = initial + pairing - length * square - dot(weights, lifted_step)
        rises = slope >= 0
        low, slope_low = torch.where(rises, length, low), torch.where(rises, slope, slope_low)
        high, slope_high = torch.where(rises, high, length), torch.where(rises, slope_high, slope)
        if bool((slope_low <= 0.5 * initial).all()):
            break
    return low
