"""Templates beside those of an input, in the form in which heads read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Atoms", "together"]


@dataclass(frozen=True)
class Atoms:
    """Keys and values of further templates, and who may use them.

    Attributes:
        keys: (N or 1, H, A, d).
        values: (N or 1, H, A, d).
        mask: Bool, (N or 1, A), True = may be used; None where all may be.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor | None

    def usable(self) -> Tensor:
        """The mask, written out."""
        if self.mask is not None:
            return self.mask
        return torch.ones(1, self.keys.shape[2], dtype=torch.bool, device=self.keys.device)

    def after(self, log_u: Tensor | None, keys: int) -> Tensor | None:
        """One preference over keys, then atoms, in which atoms that may be used have weight 1.

        Args:
            log_u: Log weights of the keys, or bool, broadcastable to (N, H, m, keys); None is uniform.
            keys: How many.

        Returns:
            Broadcastable to (N, H, m, keys + A); None for uniform.
        """
        if log_u is None and self.mask is None:
            return None
        extra = self.usable()[:, None, None]
        own = extra.new_ones(1, 1, 1, keys) if log_u is None else log_u[(None,) * (4 - log_u.dim())]
        if own.dtype != torch.bool:
            extra = own.new_zeros(extra.shape).masked_fill(~extra, -torch.inf)
        lead = torch.broadcast_shapes(own.shape[:3], extra.shape[:3])
        return torch.cat([own.expand(*lead, keys), extra.expand(*lead, -1)], -1)


def together(parts: Sequence[Atoms]) -> Atoms | None:
    """Several sets of atoms as one, in their order; None without any.

    Example:
        >>> one = Atoms(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4), None)
        >>> each = Atoms(torch.zeros(5, 2, 1, 4), torch.zeros(5, 2, 1, 4), torch.zeros(5, 1, dtype=torch.bool))
        >>> both = together([one, each])
        >>> both.keys.shape, both.mask.shape
        (torch.Size([5, 2, 4, 4]), torch.Size([5, 4]))
    """
    if len(parts) < 2:
        return parts[0] if parts else None
    masked = any(part.mask is not None for part in parts)
    return Atoms(
        _joined([part.keys for part in parts], 2),
        _joined([part.values for part in parts], 2),
        _joined([part.usable() for part in parts], 1) if masked else None,
    )


def _joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    batch = max(part.shape[0] for part in parts)
    return torch.cat([part.expand(batch, *part.shape[1:]) for part in parts], dim)
