r"""Sinkhorn's algorithm in the log domain, for the value of entropic optimal transport."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.errors import ConvergenceError

__all__ = ["transport_value"]


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
    fits f to p, then g to u. Memory is O(m·N·n): for tests and reports, not for layers.

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
    for _ in range(max_steps):
        to_p = _finite(log_p - torch.logsumexp(scaled + to_u, -1, keepdim=True))
        to_u = _finite(log_u - torch.logsumexp(scaled + to_p, -2, keepdim=True))
        reached = torch.logsumexp(scaled + to_p + to_u, -1).exp()
        error = (reached - weights).abs().sum(-1).amax()
        if not bool(error > tol):
            break
    if not bool(error <= tol):
        raise ConvergenceError(
            f"Sinkhorn's algorithm is off by {float(error):.1e} in a margin after {max_steps} steps (tolerance "
            f"{tol:g}): "
            "gamma is small beside the cost, or infinite costs keep the preference's weight from reaching these weights"
        )
    potentials = _pairing(weights, to_p.squeeze(-1)) + _pairing(sources.exp(), to_u.squeeze(-2))
    return gamma.reshape(gamma.shape[:-1]) * potentials


def _finite(potential: Tensor) -> Tensor:
    """-inf, where there is no weight, stays; +inf or NaN, where nothing can arrive, becomes -inf too."""
    return torch.where(potential < torch.inf, potential, torch.full_like(potential, -torch.inf))


def _pairing(weights: Tensor, potential: Tensor) -> Tensor:
    return (weights * potential.masked_fill(weights == 0, 0)).sum(-1)
