r"""The coupling of optimal transport, by two matrix products.

The conditional distribution of templates given source i, which has weight u_i, is

.. math:: p_i(t) = \frac{a(t)\,K(t, i)}{Z_i}, \qquad a(t) = e^{f(t)/\gamma}, \quad K(t, i) = e^{-M(t, t_i)/\gamma},
          \quad Z_i = \sum_t a(t) K(t, i),

which gives Z = AK and P = A ⊙ ((u/Z)Kᵀ) for all queries at once (fact 6), without an array of shape (m, N, n).

Each factor is divided by its largest entry. Underflow then removes at most N times the smallest number from Z: if Z
exceeds that by the precision of the dtype, weights are accurate to rounding. The other (query, source) pairs, in which
the maxima of a and K are far apart, are called stray, and normalised one by one from logarithms.

The value of the transport between two distributions is computed by Sinkhorn's algorithm in the log domain.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.blocks import recomputed
from fenchel.errors import ConvergenceError

LOG2_E = math.log2(math.e)

# Target size of the logarithms of stray pairs processed at once.
STRAY_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Part:
    """A range of the templates.

    Attributes:
        span: The templates.
        logarithms: Returns log a, (..., m, b), and log K, (..., b, n), of these templates; -inf where masked.
    """

    span: slice
    logarithms: Callable[[], tuple[Tensor, Tensor]]


class Coupling:
    r"""The conditional distributions :math:`p_i` for all queries.

    The logarithms and factors of a single part are stored. Those of several parts are recomputed when needed, also in
    the backward pass, to keep memory independent of the number of templates.

    Args:
        parts: The templates, part by part. Every source with weight must be able to reach a template, for every query.
        log_weights: log u, (..., m or 1, n).
    """

    def __init__(self, parts: Sequence[Part], log_weights: Tensor) -> None:
        if len(parts) == 1:
            (whole,) = parts
            logarithms = whole.logarithms()
            parts = [Part(whole.span, lambda: logarithms)]
        self._parts = parts
        self._weights = log_weights.exp()
        self._tilt_top, self._kernel_top = self._tops()
        self._kept = self._factors(parts[0]) if len(parts) == 1 else None
        mass = self._sum(lambda a, kernel, _: a @ kernel)
        self._shape = mass.shape
        lost = may_underflow(mass.detach(), self._count)
        self._lost = lost if bool(lost.any()) else None
        self._stray = None
        if self._lost is not None:
            mass = mass.masked_fill(self._lost, 1)
            self._stray = torch.nonzero(self._lost & (self._weights.detach() > 0), as_tuple=True)
        self._log_mass = mass.log()

    @property
    def _count(self) -> int:
        return self._parts[-1].span.stop

    def _tops(self) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            tops = [
                (a.amax(-1, keepdim=True), k.amax(-2, keepdim=True))
                for a, k in (p.logarithms() for p in self._parts)
            ]
            return torch.stack([a for a, _ in tops]).amax(0), torch.stack([k for _, k in tops]).amax(0)

    def _factors(self, part: Part) -> tuple[Tensor, Tensor]:
        log_tilt, log_kernel = part.logarithms()
        return _exponential(log_tilt - self._tilt_top), _exponential(log_kernel - self._kernel_top)

    def _each(self, function: Callable[..., Tensor], *arguments: Tensor) -> Iterator[Tensor]:
        """The values of a function of a, K and the span for each part."""
        for part in self._parts:
            if self._kept is not None:
                yield function(*self._kept, part.span, *arguments)
            else:
                yield recomputed(
                    lambda *inputs, p=part: function(*self._factors(p), p.span, *inputs), *arguments
                )

    def _sum(self, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        first, *rest = self._each(function, *arguments)
        return functools.reduce(torch.add, rest, first)

    def log_partition(self) -> Tensor:
        r""":math:`\log Z_i`, shape (..., m, n); an arbitrary finite number for sources without weight."""
        total = self._log_mass + self._tilt_top + self._kernel_top
        for pairs in self._stray_pairs():
            result = recomputed(lambda pairs=pairs: self._stray_logarithms(pairs).logsumexp(-1))
            total = total.index_put(pairs, result)
        return total

    def weights(self) -> Tensor:
        r"""The weights :math:`p = \sum_i u_i p_i`, shape (..., m, N)."""
        return self.spread(self._weights)

    def spread(self, amounts: Tensor) -> Tensor:
        r""":math:`\sum_i s_i\, p_i(t)` for amounts s (..., m, n), shape (..., m, N)."""
        result = torch.cat(list(self._each(lambda a, k, _, r: a * (r @ k.mT), self._shares(amounts))), -1)
        return result if self._stray is None else result + self._stray_spread(amounts)

    def average(self, values: Tensor) -> Tensor:
        r""":math:`\sum_t p(t)\, v_t` for values (..., N, d_v), shape (..., m, d_v), without storing p."""

        def term(a: Tensor, kernel: Tensor, span: slice, share: Tensor, v: Tensor) -> Tensor:
            return (a * (share @ kernel.mT)) @ v[..., span, :]

        result = self._sum(term, self._shares(self._weights), values)
        return result if self._stray is None else result + self._stray_spread(self._weights) @ values

    def expectation(self, vector: Tensor) -> Tensor:
        r""":math:`\sum_t p_i(t)\, w(t)` for vectors w (..., m, N), shape (..., m, n)."""
        result = self._shares(self._sum(lambda a, k, span, w: (a * w[..., span]) @ k, vector))
        for pairs in self._stray_pairs():
            along = vector.expand(*self._shape[:-1], self._count)[pairs[:-1]]
            share = recomputed(
                lambda w, pairs=pairs: (self._stray_logarithms(pairs).softmax(-1) * w).sum(-1), along
            )
            result = result.index_put(pairs, share)
        return result

    def _shares(self, amounts: Tensor) -> Tensor:
        """Amounts s divided by Z, or 0 where Z underflows."""
        shares = amounts * (-self._log_mass).exp()
        return shares if self._lost is None else shares.masked_fill(self._lost, 0)

    def _stray_pairs(self) -> Iterator[tuple[Tensor, ...]]:
        """Indices (..., query, source) of stray pairs, as many at a time as memory allows."""
        if self._stray is not None:
            each = max(1, STRAY_BYTES // (self._count * self._log_mass.element_size()))
            yield from zip(*(index.split(each) for index in self._stray), strict=True)

    def _stray_logarithms(self, pairs: tuple[Tensor, ...]) -> Tensor:
        """The sums log a + log K of stray pairs, (pairs, N)."""
        *lead, query, source = pairs
        rows: list[Tensor] = []
        for part in self._parts:
            log_tilt, log_kernel = part.logarithms()
            log_tilt = log_tilt.expand(*self._shape[:-1], -1)
            log_kernel = log_kernel.mT.expand(*self._shape[:-2], -1, -1)
            rows.append(log_tilt[(*lead, query)] + log_kernel[(*lead, source)])
        return torch.cat(rows, -1)

    def _stray_spread(self, amounts: Tensor) -> Tensor:
        amounts = amounts.expand(self._shape)
        total = amounts.new_zeros(*self._shape[:-1], self._count)
        for pairs in self._stray_pairs():
            rows = recomputed(
                lambda s, pairs=pairs: s.unsqueeze(-1) * self._stray_logarithms(pairs).softmax(-1),
                amounts[pairs],
            )
            total = total.index_put(pairs[:-1], rows, accumulate=True)
        return total


def may_underflow(mass: Tensor, count: int) -> Tensor:
    """Where underflow may exceed rounding in Z, a sum over ``count`` templates, bool."""
    numbers = torch.finfo(mass.dtype)
    return mass < count * numbers.tiny / numbers.eps


def _exponential(x: Tensor) -> Tensor:
    # torch.exp2 is five times faster than torch.exp on CPUs (measured).
    return (x * LOG2_E).exp2()


# Sinkhorn steps per Newton step; without Newton steps convergence is slow where γ is small relative to the cost.
NEWTON_EVERY = 5

HALVINGS = 8


def transport_value(
    weights: Tensor, sources: Tensor, cost: Tensor, gamma: Tensor, *, max_steps: int = 20_000
) -> Tensor:
    r"""Entropic transport from u to p.

    .. math:: W_\gamma(p, u; M) = \min_{X \ge 0,\ X\mathbf{1} = p,\ X^\top\mathbf{1} = u}
              \langle M, X\rangle + \gamma \sum_{t,i} X_{ti}\log X_{ti}

    With :math:`X = e^{(f + g - M)/\gamma}` the value is :math:`\langle p, f\rangle + \langle u, g\rangle`; each step
    fits f to p, then g to u, and some Newton steps fit both. Memory is O(m·N·n): meant for tests and reports, not for
    layers.

    Args:
        weights: p, (..., m, N), summing to 1.
        sources: log u, (..., m or 1, n), normalised.
        cost: M, (..., N, n).
        gamma: γ > 0, (..., 1, 1).
        max_steps: Maximum number of steps.

    Returns:
        The value, (..., m).

    Raises:
        ConvergenceError: If the marginals do not match after that many steps: γ is small relative to the cost, or
            infinite costs prevent the weight of u from reaching p.

    Reference:
        Section 9, eq. (20); Cuturi, Sinkhorn Distances (2013).

    Example:
        >>> p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
        >>> M = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> transport_value(p, p.log(), M, torch.ones(1, 1, dtype=torch.float64))     # -log(2 (1 + e))+...
        tensor([-1.0064], dtype=torch.float64)
    """
    tol = 1e-11 if weights.dtype == torch.float64 else 1e-5
    log_p, log_u = weights.log().unsqueeze(-1), sources.unsqueeze(-2)
    scaled = -cost.unsqueeze(-3) / gamma.unsqueeze(-1)
    to_p, to_u = torch.zeros_like(log_p), torch.zeros_like(log_u)
    error = weights.new_tensor(torch.inf)
    for step in range(max_steps):
        to_p = _finite(log_p - torch.logsumexp(scaled + to_u, -1, keepdim=True))
        to_u = _finite(log_u - torch.logsumexp(scaled + to_p, -2, keepdim=True))
        plan = (scaled + to_p + to_u).exp()
        errors = (plan.sum(-1) - weights).abs().sum(-1)
        if step % NEWTON_EVERY == NEWTON_EVERY - 1:
            to_p, to_u, errors = _newton_step(scaled, weights, sources.exp(), to_p, to_u, plan, errors)
        error = errors.amax()
        if not bool(error > tol):
            break
    if not bool(error <= tol):
        raise ConvergenceError(
            f"Sinkhorn's algorithm has an error of {float(error):.1e} in a marginal after {max_steps} steps (tolerance "
            f"{tol:g}): gamma is small relative to the cost, or infinite costs prevent the preference's weight from "
            "reaching these weights"
        )
    potentials = _pairing(weights, to_p.squeeze(-1)) + _pairing(sources.exp(), to_u.squeeze(-2))
    return gamma.reshape(gamma.shape[:-1]) * potentials


def _newton_step(
    scaled: Tensor, p: Tensor, u: Tensor, to_p: Tensor, to_u: Tensor, plan: Tensor, errors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """A Newton step on both potentials where it reduces the error of the marginals."""
    N, n = plan.shape[-2:]
    rows, columns = plan.sum(-1), plan.sum(-2)
    jacobian = plan.new_zeros(*plan.shape[:-2], N + n, N + n)
    jacobian[..., :N, N:], jacobian[..., N:, :N] = plan, plan.mT
    jacobian.diagonal(dim1=-2, dim2=-1).copy_(torch.cat([rows, columns], -1))
    off = torch.cat([p - rows, u - columns], -1).unsqueeze(-1)
    step = (torch.linalg.pinv(jacobian, hermitian=True) @ off).squeeze(-1)
    step_p, step_u = step[..., :N].unsqueeze(-1), step[..., N:].unsqueeze(-2)
    best_p, best_u, best = to_p, to_u, errors
    for halvings in range(HALVINGS):
        next_p, next_u = to_p + step_p / 2**halvings, to_u + step_u / 2**halvings
        reached = (scaled + next_p + next_u).exp()
        result = (reached.sum(-1) - p).abs().sum(-1) + (reached.sum(-2) - u).abs().sum(-1)
        better = (result < best)[..., None, None]
        best_p, best_u = torch.where(better, next_p, best_p), torch.where(better, next_u, best_u)
        best = torch.minimum(result.nan_to_num(torch.inf), best)
    return best_p, best_u, best


def _finite(potential: Tensor) -> Tensor:
    """Replace +inf and NaN, which mark templates that no weight can reach, by -inf, as for templates without weight."""
    return torch.where(potential < torch.inf, potential, torch.full_like(potential, -torch.inf))


def _pairing(weights: Tensor, potential: Tensor) -> Tensor:
    return (weights * potential.masked_fill(weights == 0, 0)).sum(-1)
