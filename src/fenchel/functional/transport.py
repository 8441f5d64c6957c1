"""Optimal-transport attention."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["transport_attention"]


def transport_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atoms: Tensor | None = None,
    atom_values: Tensor | None = None,
    atom_mask: Tensor | None = None,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    gamma: float | Tensor,
    cost: str | Tensor = "dot",
    scale: float | Tensor = 1.0,
    estimator: str = "first_order",
    tol: float | None = None,
    max_steps: int = 50,
) -> Tensor:
    """Slow and partial: holds the place of what is being built."""
    del tol, max_steps
    assert cost == "dot" and estimator == "first_order"
    templates = key * scale
    everything = templates if atoms is None else torch.cat([templates, atoms * scale], -2)
    values = value if atoms is None else torch.cat([value, atom_values], -2)
    B, H, m, _ = query.shape
    n, N = key.shape[2], everything.shape[2]
    log_u = query.new_zeros(B, H, m, n) if log_preference is None else log_preference
    if log_u.dtype == torch.bool:
        log_u = torch.zeros(log_u.shape, dtype=query.dtype).masked_fill(~log_u, -torch.inf)
    log_u = log_u.expand(B, H, m, n).log_softmax(-1)
    used = torch.isfinite(log_u)
    if atoms is not None:
        mask = (
            torch.ones(B, H, m, N - n, dtype=torch.bool)
            if atom_mask is None
            else atom_mask.expand(B, H, m, N - n)
        )
        used = torch.cat([used, mask], -1)
    tilt = (alpha * (query @ everything.mT) / gamma).masked_fill(~used, -torch.inf)
    logits = tilt[..., None, :] + (templates @ everything.mT / gamma)[:, :, None]
    weights = (log_u.exp()[..., None] * logits.softmax(-1)).sum(-2)
    return weights @ values
