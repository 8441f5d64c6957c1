"""What a preference makes of the thresholds of sparse weights, and the rows of them that native kernels serve."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.native import kernels

__all__ = ["DIRECT_FROM", "LEAST_LOG_WEIGHT", "LEAST_ORDER", "Offsets", "is_native", "native_weights"]

LEAST_LOG_WEIGHT = -87.0
"""Log weights below this are masks in every dtype: float32 holds no such weight (e⁻⁸⁷ is about 10⁻³⁸)."""

DIRECT_FROM = 0.1
"""From this a on powers of differences lose nothing; below it differences of logarithms do not."""

LEAST_ORDER = 1e-30
"""The a that stands for 0: what differs is below rounding in both dtypes."""


@dataclass(frozen=True)
class Offsets:
    """What a log preference makes of differences and weights, each (g or 1, r or 1, n).

    Attributes:
        base: What is added to af, -inf where masked.
        weight: w; 1 where None.
        whole: :math:`w^{-a}`, the difference at which a weight is 1; 1 where None.
    """

    base: Tensor
    weight: Tensor | None
    whole: Tensor | None

    @classmethod
    def of(cls, log_u: Tensor, a: float | Tensor, *, csiszar: bool) -> Offsets:
        """Those of log u (g or 1, r or 1, n)."""
        masked = log_u < LEAST_LOG_WEIGHT
        held = log_u.clamp(min=LEAST_LOG_WEIGHT)
        if csiszar:
            base = torch.zeros_like(held).masked_fill_(masked, -torch.inf)
            return cls(base, held.exp(), (held * -a).exp_())
        powers = (held * a).exp_()
        return cls(powers.masked_fill_(masked.expand_as(powers), -torch.inf), None, None)


def native_weights(f: Tensor, given: Offsets | None, a: float | Tensor) -> Tensor:
    """Weights of potentials (g, r, n), contiguous, that native kernels serve."""
    own = a.double() if isinstance(a, Tensor) else a
    if given is None:
        return kernels.thresholds(f, own, None, None, None)
    return kernels.thresholds(f, own, given.base, given.weight, given.whole)


def is_native(potential: Tensor) -> bool:
    """Whether native kernels take potentials, once they are contiguous."""
    dtype = potential.dtype
    return dtype in (torch.float32, torch.float64) and kernels.serves(shared=(potential,), dtype=dtype)
