r"""Sinkhorn's algorithm in the log domain, for the value of entropic optimal transport."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.errors import ConvergenceError

__all__ = ["transport_value"]

NEWTON_EVERY = 5
"""Steps of Sinkhorn's algorithm between two of Newton's, without which a γ that is small beside the cost takes
forever."""

HALVINGS = 8


def transport_value(
    weights: Tensor,
    sources: Tensor,
    cost: Tensor,
    gamma: Tensor,
    *,
    tol: float | None = None,
    max_steps: int = 20_000,
) -> Tensor:
    r"""Entropic transport from u to p.

    .. math:: W_\gamma(p, u; M) = \min_{X \ge 0,\ X\mathbf{1} = p,\ X^\top\mathbf{1} = u}
              \langle M, X\rangle + \gamma \sum_{t,i} X_{ti}\log X_{ti}

    With :math:`X = e^{(f + g - M)/\gamma}` the value is :math:`\langle p, f\rangle + \langle u, g\rangle`; each step
    fits f to p, then g to u, and now and then a step of Newton's method fits both. Memory is O(m·N·n): for tests and
    reports, not for layers.

    Args:
        weights: p, (..., m, N), summing to 1.
        sources: log u, (..., m or 1, n), normalised.
        cost: M, (..., N, n).
        gamma: γ > 0, (..., 1, 1).
        tol: Largest total error of a margin; 1e-11 in float64 and 1e-5 in float32 where None.
        max_steps: Steps at most.

    Returns:
        The value, (..., m).

    Raises:
        ConvergenceError: If the margins do not fit after that many steps: γ is small beside the cost, or infinite costs
            keep the weight of u from reaching p.

    Reference:
        Section 9, eq. (20); Cuturi, Sinkhorn Distances (2013).

    Example:
        >>> p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
        >>> M = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
        >>> transport_value(p, p.log(), M, torch.ones(1, 1, dtype=torch.float64))     # -log(2 (1 + e))+...
        tensor([-1.0064], dtype=torch.float64)
    """
    if tol is None:
        tol = 1e-11 if weights.dtype == torch.float64 else 1e-5
    log_p, log_u = weights.log().unsqueeze(-1), sources.unsqueeze(-2)
    scaled = -cost.unsqueeze(-3) / gamma.unsqueeze(-1)
    to_p, to_u = torch.zeros_like(log_p), torch.zeros_like(log_u)
    error = torch.tensor(torch.inf)
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
            f"Sinkhorn's algorithm is off by {float(error):.1e} in a margin after {max_steps} steps (tolerance "
            f"{tol:g}): gamma is small beside the cost, or infinite costs keep the preference's weight from reaching "
            "these weights"
        )
    potentials = _pairing(weights, to_p.squeeze(-1)) + _pairing(sources.exp(), to_u.squeeze(-2))
    return gamma.reshape(gamma.shape[:-1]) * potentials


def _newton_step(
    scaled: Tensor, p: Tensor, u: Tensor, to_p: Tensor, to_u: Tensor, plan: Tensor, errors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Newton's step on both potentials, where it makes the margins' errors smaller."""
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
        found = (reached.sum(-1) - p).abs().sum(-1) + (reached.sum(-2) - u).abs().sum(-1)
        better = (found < best)[..., None, None]
        best_p, best_u = torch.where(better, next_p, best_p), torch.where(better, next_u, best_u)
        best = torch.minimum(found.nan_to_num(torch.inf), best)
    return best_p, best_u, best


def _finite(potential: Tensor) -> Tensor:
    """-inf, where there is no weight, stays; +inf or NaN, where nothing can arrive, becomes -inf too."""
    return torch.where(potential < torch.inf, potential, torch.full_like(potential, -torch.inf))


def _pairing(weights: Tensor, potential: Tensor) -> Tensor:
    return (weights * potential.masked_fill(weights == 0, 0)).sum(-1)
