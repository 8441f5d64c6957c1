r"""How far to go along a Newton direction: a search on the slope of the dual.

Along :math:`\lambda + \alpha t\,\delta` the dual is concave in t, so its slope

.. math:: \varphi'(t)/\alpha = \langle \nabla\mathcal{D}(\lambda + \alpha t\delta), \delta\rangle
          = \langle u - p(t), L\delta\rangle + \langle o - x - t\delta, \delta\rangle

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

from fenchel.selection import gather_rows, rows_where, select
from fenchel.solver.coordinates import AbstractCoordinates, dot
from fenchel.solver.rows import Rows

__all__ = ["step_length"]

_TRIALS = 40


def step_length(
    coordinates: AbstractCoordinates,
    rows: Rows,
    x: Tensor,
    lifted: Tensor,
    step: Tensor,
    lifted_step: Tensor,
    initial: Tensor,
) -> tuple[Tensor, Tensor]:
    r"""Step lengths t in (0, 1], and the weights at the full step.

    Args:
        coordinates: Lift, pull and inner product.
        rows: Data of the rows.
        x: Where the search starts, (g, r, size).
        lifted: Its lift, (g, r, n).
        step: δ, (g, r, size).
        lifted_step: Its lift, (g, r, n).
        initial: φ'(0)/α, (g, r), positive where a step is wanted.

    Returns:
        t (g, r), 0 where ``initial`` is not positive, and p at t = 1 (g, r, n), which most rows take.
    """
    at_one = coordinates.weights(rows, lifted + lifted_step)
    square = coordinates.inner(step, step, lifted_step)
    along = coordinates.inner(coordinates.from_origin(rows, x), step, lifted_step)
    pull = dot(rows.preference, lifted_step) + along
    slope = pull - square - dot(at_one, lifted_step)
    movement = rows.alpha.squeeze(-1) * _range(rows, lifted_step)
    gains = slope.square() * movement.exp() <= initial.square() / 4
    accepted = (slope >= 0) | gains
    rising = initial > 0
    length = (rising & accepted).to(x.dtype)
    wanting = rising & ~accepted
    if bool(wanting.any()):
        index = rows_where(wanting)
        found = _root(
            coordinates,
            select(rows, index),
            pull.gather(1, index),
            square.gather(1, index),
            initial.gather(1, index),
            slope.gather(1, index),
            gather_rows(lifted, index),
            gather_rows(lifted_step, index),
        )
        still = wanting.gather(1, index)
        length.scatter_(1, index, torch.where(still, found, length.gather(1, index)))
    return length, at_one


def _range(rows: Rows, lifted_step: Tensor) -> Tensor:
    """Range over the support of how the scores move, (g, r)."""
    masked = torch.isneginf(rows.log_preference)
    if not bool(masked.any()):
        return lifted_step.amax(-1) - lifted_step.amin(-1)
    return lifted_step.masked_fill(masked, -torch.inf).amax(-1) - lifted_step.masked_fill(
        masked, torch.inf
    ).amin(-1)


def _root(
    coordinates: AbstractCoordinates,
    rows: Rows,
    pull: Tensor,
    square: Tensor,
    initial: Tensor,
    at_one: Tensor,
    lifted: Tensor,
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
        weights = coordinates.weights(rows, torch.addcmul(lifted, length.unsqueeze(-1), lifted_step))
        slope = pull - length * square - dot(weights, lifted_step)
        rises = slope >= 0
        low, slope_low = torch.where(rises, length, low), torch.where(rises, slope, slope_low)
        high, slope_high = torch.where(rises, high, length), torch.where(rises, slope_high, slope)
        if bool((slope_low <= 0.5 * initial).all()):
            break
    return low
