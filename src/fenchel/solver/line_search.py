r"""How far to go along a Newton direction: a search on the slope of the dual.

Along :math:`\lambda + \alpha t\,\delta` the dual is concave in t, so its slope

.. math:: \varphi'(t)/\alpha = \langle \nabla\mathcal{D}(\lambda + \alpha t\delta), \delta\rangle
          = \varphi'(0)/\alpha - \langle p(t) - p(0), L\delta\rangle - t\,\langle\delta, \delta\rangle

falls from φ'(0) > 0. It needs no product with the operator, only a response, and unlike a difference of dual
values it does not cancel near the solution. A full step is taken when the dual is certainly higher there:
because the slope is still ≥ 0, or, where the response bounds how much curvatures along a step differ, because
it is so little below that what was lost since the top is less than what was gained before it: where they differ
by a factor :math:`e^R` at most, a slope b > 0 downhill at the end lost at most :math:`e^R (b/a)^2` of what the
slope a at the start gained. Log-sum-exp has such a bound: the logarithm of its curvature changes at most as fast as
the logits spread. Without one the slope at the middle decides: what was gained up to there is at least half of it,
what was lost after it at most half of the slope at the end. Otherwise the root of the slope is bracketed and
approached from the rising side, which asks nothing of the gradient but that it is continuous: it may be smooth only
piecewise.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.closeness.response import AbstractResponse
from fenchel.selection import gather_rows, rows_where, select
from fenchel.solver.coordinates import dot
from fenchel.solver.rows import Rows

__all__ = ["step_length"]

_TRIALS = 40

_SUFFICIENT = 0.1
"""Slopes at the middle and at the end that sum to this part of the first one show a rise of half as much at least."""


def step_length(
    rows: Rows, argument: Tensor, weights: Tensor, lifted_step: Tensor, initial: Tensor, square: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    r"""Step lengths t in (0, 1], and what the full step gives.

    Args:
        rows: Data of the rows.
        argument: Where the search starts, (g, r, n).
        weights: p there, (g, r, n).
        lifted_step: Lδ, the step's inner products with the templates, (g, r, n).
        initial: φ'(0)/α, (g, r), positive where a step is wanted.
        square: :math:`\langle\delta, \delta\rangle`, (g, r).

    Returns:
        t (g, r), 0 where ``initial`` is not positive; and argument and p at t = 1 (g, r, n), which most rows take.
    """
    response = rows.response
    full = torch.addcmul(argument, rows.alpha, lifted_step)
    at_one = response.at(full)
    slope = initial - square - dot(at_one - weights, lifted_step)
    accepted = slope >= 0
    log_range = response.log_curvature_range(lifted_step)
    if log_range is not None:
        accepted |= slope.square() * (rows.alpha.squeeze(-1) * log_range).exp() <= initial.square() / 4
    elif bool((~accepted & (initial > 0)).any()):
        middle = response.at(torch.addcmul(argument, rows.alpha / 2, lifted_step))
        halfway = initial - square / 2 - dot(middle - weights, lifted_step)
        accepted |= halfway + slope >= _SUFFICIENT * initial
    rising = initial > 0
    length = (rising & accepted).to(argument.dtype)
    wanting = rising & ~accepted
    if bool(wanting.any()):
        pairing, step = dot(weights, lifted_step), rows.alpha * lifted_step
        search = (response, initial, slope, square, pairing, argument, step, lifted_step)
        if response.selectable:
            index = rows_where(wanting)
            found = _root(*(_rows_at(part, index) for part in search))
            still = wanting.gather(1, index)
            length.scatter_(1, index, torch.where(still, found, length.gather(1, index)))
        else:
            length = torch.where(wanting, _root(*search), length)
    return length, (full, at_one)


def _rows_at(part: Any, index: Tensor) -> Any:
    return gather_rows(part, index) if isinstance(part, Tensor) else select(part, index)


def _root(
    response: AbstractResponse,
    initial: Tensor,
    at_one: Tensor,
    square: Tensor,
    pairing: Tensor,
    argument: Tensor,
    step: Tensor,
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
        weights = response.at(torch.addcmul(argument, length.unsqueeze(-1), step))
        slope = initial + pairing - length * square - dot(weights, lifted_step)
        rises = slope >= 0
        low, slope_low = torch.where(rises, length, low), torch.where(rises, slope, slope_low)
        high, slope_high = torch.where(rises, high, length), torch.where(rises, slope_high, slope)
        if bool((slope_low <= 0.5 * initial).all()):
            break
    return low
