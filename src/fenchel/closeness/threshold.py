r"""The threshold of sparse weights: one increasing function of τ whose root makes weights sum to one.

For a log preference log u and :math:`a = \beta - 1 \in [0, 1]` the weights that a potential f gets are

.. math:: p_i = w_i\,[x_i - \tau]_+^{1/a}, \qquad \sum_i p_i = 1,

with :math:`x = af + u^a,\ w = 1` (relative in Bregman's sense) or :math:`x = af,\ w = u` (in Csiszár's). Then
:math:`N(\tau) = (\sum_i p_i)^a` is a weighted norm of :math:`[x - \tau]_+`, convex and decreasing, and piecewise linear
at a = 1. Newton's method on N = 1 from where the largest p is one rises to the root without passing it:

.. math:: \tau \leftarrow \tau + \frac{S - S^{1-a}}{Q}, \qquad S = \sum_i p_i, \qquad
          Q = \sum_i w_i\,[x_i - \tau]_+^{1/a - 1}.

At a = 1 this is Michelot's algorithm, which ends after finitely many steps at the support that a sort would find; at
any a it takes three to six as a rule. A bracket catches what rounding may do, the last step is added to the differences
:math:`x_i - \tau` and not to τ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

__all__ = ["DIRECT_FROM", "LEAST_LOG_WEIGHT", "small_displacement", "threshold_weights"]

LEAST_LOG_WEIGHT = -87.0
"""Log weights below this are masks in every dtype: float32 holds no such weight (e⁻⁸⁷ is about 10⁻³⁸)."""

DIRECT_FROM = 0.1
"""From this a on powers of differences lose nothing; below it differences of logarithms do not."""

LEAST_ORDER = 1e-30
"""The a that stands for 0: what differs is below rounding in both dtypes."""

MOST = 100
"""Steps at most; 15 are the most that is known, and at small a and scores of 10⁹, which rounding blurs, 55."""

CHUNK_BYTES = 2**19
"""Size of a working array: steps go through it many times."""


def threshold_weights(
    potential: Tensor, log_preference: Tensor | None, a: float | Tensor, *, csiszar: bool
) -> Tensor:
    r"""Weights that sum to one along the last dimension, without gradient.

    Args:
        potential: f, (..., n), float32 or float64; -inf where nothing may go.
        log_preference: log u, broadcasting to (..., n), normalised, below ``LEAST_LOG_WEIGHT`` where masked; uniform
            where None.
        a: β - 1 in [0, 1], a number or a tensor that broadcasts to (..., 1).
        csiszar: Relative in Csiszár's sense; else in Bregman's.

    Returns:
        p, of the shape that they broadcast to.
    """
    parts = [potential] if log_preference is None else [potential, log_preference]
    shape = torch.broadcast_shapes(*(part.shape for part in parts))
    if isinstance(a, Tensor):
        shape = torch.broadcast_shapes(shape, (*a.shape[:-1], shape[-1]))
        if a.numel() == 1:
            a = float(a)
    n = shape[-1]
    if 0 in shape:
        return potential.new_zeros(shape)
    f = potential.expand(shape).reshape(-1, n)
    log_u = None if log_preference is None else _rows(log_preference, shape)
    rows_of_a = _rows(a.to(potential.dtype), (*shape[:-1], 1)) if isinstance(a, Tensor) else a
    # In Csiszár's sense a template may be liked for a score that is many times what the others differ by.
    wide = csiszar and f.dtype == torch.float32
    found = torch.empty_like(f, memory_format=torch.contiguous_format)
    each = max(1, CHUNK_BYTES // (n * f.element_size())) if f.device.type == "cpu" else len(f)
    for start in range(0, len(f), each):
        part = slice(start, start + each)
        here = rows_of_a[part] if isinstance(rows_of_a, Tensor) and len(rows_of_a) > 1 else rows_of_a
        preferred = log_u[part] if log_u is not None and len(log_u) > 1 else log_u
        if wide:
            found[part] = _solved(f[part].double(), _double(preferred), _double(here), csiszar)
        else:
            found[part] = _solved(f[part], preferred, here, csiszar)
    return found.reshape(shape)


def _rows(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """As rows (all or 1, n)."""
    if tensor[..., 0].numel() == 1:
        return tensor.reshape(1, -1).expand(1, shape[-1])
    return tensor.expand(shape).reshape(-1, shape[-1])


def _double(part: Any) -> Any:
    return part.double() if isinstance(part, Tensor) else part


def _solved(f: Tensor, log_u: Tensor | None, a: float | Tensor, csiszar: bool) -> Tensor:
    least = float(a.min()) if isinstance(a, Tensor) else a
    if log_u is None and csiszar:
        log_u = torch.zeros_like(f[:1]).log_softmax(-1)
    if least == 1:
        return _Simplex(f, log_u, 1.0, csiszar).solve()
    if a == 0.5 if isinstance(a, float) else False:
        return _Squares(f, log_u, 0.5, csiszar).solve()
    if least >= DIRECT_FROM:
        return _Powers(f, log_u, a, csiszar).solve()
    clamped = a.clamp(min=LEAST_ORDER) if isinstance(a, Tensor) else max(a, LEAST_ORDER)
    return _Logarithms(f, log_u, clamped, csiszar).solve()


def _from_whole(x: Tensor, whole: Tensor) -> Tensor:
    """Differences from the largest τ at which some p is 1, given differences (r or 1, n) at which each is.

    What others have can only add to that 1. Two differences, the first of which is exact where it matters.
    """
    first = (x - whole).argmax(-1, keepdim=True)
    return x - x.gather(-1, first) + whole.expand_as(x).gather(-1, first)


class _Powers:
    """Weights by powers of differences, for a that is not small.

    Args:
        f: (r, n).
        log_u: (r or 1, n), or None.
        a: A number, or (r, 1).
        csiszar: In whose sense.
    """

    _noise = 8.0
    """Roundings that a sum of weights may be off."""

    def __init__(self, f: Tensor, log_u: Tensor | None, a: float | Tensor, csiszar: bool) -> None:
        self._a, self._weight = a, None
        if log_u is None:
            # What all scores share is subtracted before they are multiplied and added to, which would round it.
            x = (f - f.amax(-1, keepdim=True)).mul_(a)
            self._x = x.add_(1)
        elif csiszar:
            masked = log_u < LEAST_LOG_WEIGHT
            self._weight = log_u.masked_fill(masked, -torch.inf).exp()
            x = (f * a).masked_fill_(masked, -torch.inf)
            self._x = _from_whole(x, (log_u.clamp(min=LEAST_LOG_WEIGHT) * -a).exp_())
        else:
            x = f.masked_fill(log_u < LEAST_LOG_WEIGHT, -torch.inf)
            x = x.sub_(x.amax(-1, keepdim=True)).mul_(a).add_((log_u * a).exp_())
            self._x = x.sub_(x.amax(-1, keepdim=True).sub_(1))
        self._t, self._q = torch.empty_like(x), torch.empty_like(x)

    def solve(self) -> Tensor:
        """The weights, (r, n)."""
        x, eps = self._x, torch.finfo(self._x.dtype).eps
        # From where the method starts, at which S is 1 or more to rounding; at the largest x it is 0.
        high = x.amax(-1, keepdim=True)
        low, tau = -high, torch.zeros_like(high)
        step = tau
        for _ in range(MOST):
            total, slope = self._sums(tau)
            step = self._step(total, slope)
            noise = self._noise * eps * total / slope
            done = (step.abs() <= noise) | (step.abs() <= eps * tau) | total.isnan()
            done |= high - low <= eps * high
            if bool(done.all()):
                break
            low, high = torch.where(total >= 1, tau, low), torch.where(total < 1, tau, high)
            following = tau + step
            inside = (following >= low) & (following <= high)
            tau = torch.where(inside, following, (low + high) / 2)
        return self._weights(tau, step)

    def _step(self, total: Tensor, slope: Tensor) -> Tensor:
        return (total - total.pow(1 - self._a)) / slope

    def _differences(self, tau: Tensor) -> Tensor:
        return torch.sub(self._x, tau, out=self._t).clamp_(min=0)

    def _sums(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """S and Q, (r, 1)."""
        t = self._differences(tau)
        q = torch.pow(t, 1 / self._a - 1, out=self._q)
        if self._weight is not None:
            q.mul_(self._weight)
        # At a = 1 a difference of 0 has the power 1, but outside of the support there is no weight.
        q.mul_(t > 0)
        return torch.linalg.vecdot(q, t).unsqueeze(-1), q.sum(-1, keepdim=True)

    def _last(self, tau: Tensor, step: Tensor) -> Tensor:
        """Differences after a last step, which is too small to be added to τ; those that were 0 stay 0."""
        t = self._differences(tau)
        return t.sub_(torch.where(t > 0, step, 0)).clamp_(min=0)

    def _weights(self, tau: Tensor, step: Tensor) -> Tensor:
        p = self._last(tau, step).pow_(1 / self._a)
        return p if self._weight is None else p.mul_(self._weight)


class _Simplex(_Powers):
    """Order 2: a projection onto the simplex."""

    def _step(self, total: Tensor, slope: Tensor) -> Tensor:
        return (total - 1) / slope

    def _sums(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        t = self._differences(tau)
        q = torch.sign(t, out=self._q)
        if self._weight is None:
            return t.sum(-1, keepdim=True), q.sum(-1, keepdim=True)
        q.mul_(self._weight)
        return torch.linalg.vecdot(q, t).unsqueeze(-1), q.sum(-1, keepdim=True)

    def _weights(self, tau: Tensor, step: Tensor) -> Tensor:
        p = self._last(tau, step)
        return p if self._weight is None else p.mul_(self._weight)


class _Squares(_Powers):
    """Order 1.5."""

    def _step(self, total: Tensor, slope: Tensor) -> Tensor:
        return (total - total.sqrt()) / slope

    def _sums(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        t = self._differences(tau)
        q = t if self._weight is None else torch.mul(t, self._weight, out=self._q)
        return torch.linalg.vecdot(q, t).unsqueeze(-1), q.sum(-1, keepdim=True)

    def _weights(self, tau: Tensor, step: Tensor) -> Tensor:
        p = self._last(tau, step)
        p.mul_(p)
        return p if self._weight is None else p.mul_(self._weight)


class _Logarithms(_Powers):
    r"""Weights by logarithms of ratios, :math:`p_i = u_i\exp(\log(1 + a c_i(f_i - \tau))/a)`, for small a.

    c is :math:`u^{-a}` in Bregman's sense and 1 in Csiszár's. Exponentials of large logarithms are off by a factor that
    all share nearly, which is divided out.
    """

    _noise = -4 * LEAST_LOG_WEIGHT

    def __init__(self, f: Tensor, log_u: Tensor | None, a: float | Tensor, csiszar: bool) -> None:
        if log_u is None:
            log_u = torch.zeros_like(f[:1]).log_softmax(-1)
        masked = log_u < LEAST_LOG_WEIGHT
        self._a, self._log_u, self._ratio = a, log_u.masked_fill(masked, -torch.inf), None
        rise = torch.expm1(log_u.clamp(min=LEAST_LOG_WEIGHT) * -a)
        # Differences at which the weight of a template is 1.
        whole = rise / a
        if not csiszar:
            self._ratio = rise + 1
            whole = whole / self._ratio
        self._x = _from_whole(f.masked_fill(masked, -torch.inf), whole)

    def _step(self, total: Tensor, slope: Tensor) -> Tensor:
        return total * (torch.expm1(-self._a * total.log()) / -self._a) / slope

    def _sums(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        p, rise = self._at(self._x - tau)
        q = p / (rise + 1) if self._ratio is None else p * self._ratio / (rise + 1)
        return p.sum(-1, keepdim=True), q.masked_fill_(p == 0, 0).sum(-1, keepdim=True)

    def _weights(self, tau: Tensor, step: Tensor) -> Tensor:
        p = self._at(self._x - tau - step)[0]
        return p.div_(p.sum(-1, keepdim=True))

    def _at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        rise = (s * self._a if self._ratio is None else s * self._a * self._ratio).clamp_(min=-1)
        return (torch.log1p(rise) / self._a + self._log_u).exp_(), rise


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
