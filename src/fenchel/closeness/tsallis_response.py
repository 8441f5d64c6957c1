"""How weights of a Tsallis closeness respond to potentials, row by row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness.displacement import small_displacement
from fenchel.closeness.offsets import LEAST_LOG_WEIGHT, Offsets, is_native, native_weights
from fenchel.closeness.response import AbstractResponse, covariance
from fenchel.closeness.sparse_weights import curvature_weights
from fenchel.closeness.threshold import threshold_weights
from fenchel.selection import SHARED

__all__ = ["TsallisResponse"]


@dataclass(frozen=True)
class TsallisResponse(AbstractResponse):
    r"""Sparse weights :math:`\nabla D^*(f)` and their curvature, :math:`(\operatorname{diag} q - qq^\top/Q)/\theta`.

    Attributes:
        log_preference: log u, normalised, (g or 1, r or 1, n).
        preference: u.
        temperature: θ, (g or 1, r or 1, 1).
        a: β - 1, likewise; None where it is one number.
        small: Potentials up to this move weights by less than cancellation would leave, (g or 1, r or 1, 1).
        given: What the preference makes of differences of scores; None where a is small.
        fixed: The one number.
        csiszar: Relative to u in Csiszár's sense.
        unit: Whether all temperatures are 1.
    """

    log_preference: Tensor
    preference: Tensor
    temperature: Tensor
    a: Tensor | None
    small: Tensor
    given: Offsets | None
    fixed: float = field(metadata=SHARED)
    csiszar: bool = field(metadata=SHARED)
    unit: bool = field(metadata=SHARED)

    smooth = False

    @property
    def _order(self) -> float | Tensor:
        return self.fixed if self.a is None else self.a

    @property
    @override
    def rest(self) -> Tensor:
        return self.preference

    @override
    def argument(self, factor: Tensor, potential: Tensor) -> Tensor:
        return factor * potential

    @override
    def at(self, argument: Tensor) -> Tensor:
        # Where all temperatures are 1 a pass over memory is saved.
        scaled = argument if self.unit else argument / self.temperature
        if self.given is not None and scaled.is_contiguous() and is_native(scaled):
            return native_weights(scaled, self.given, self._order)
        return threshold_weights(scaled, self.log_preference, self._order, csiszar=self.csiszar)

    def _curved(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The weights q/Q of the covariance that the curvature is, and its mass Q/θ, (g, r, 1)."""
        q = curvature_weights(weights, self.log_preference, self._order, csiszar=self.csiszar)
        mass = q.sum(-1, keepdim=True)
        return q / mass, mass / self.temperature

    @override
    def curvature(self, argument: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        share, mass = self._curved(weights)
        scaled = share * mass

        def product(vector: Tensor) -> Tensor:
            return (vector - torch.linalg.vecdot(share, vector).unsqueeze(-1)).mul_(scaled)

        return product

    @override
    def curvature_matrix(self, argument: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
        share, mass = self._curved(weights)
        return covariance(factors, share).mul_(mass.unsqueeze(-1))

    @override
    def curvature_root(self, argument: Tensor, weights: Tensor, factors: Tensor) -> Tensor:
        share, mass = self._curved(weights)
        offsets = factors.unsqueeze(1) - (share @ factors).unsqueeze(2)
        return (share * mass).sqrt().unsqueeze(-1) * offsets

    @override
    def displacement(self, potential: Tensor, weights: Tensor) -> Tensor:
        apart = weights - self.preference
        allowed = self.log_preference >= LEAST_LOG_WEIGHT
        small = potential.masked_fill(~allowed, 0).abs().amax(-1, keepdim=True) <= self.small
        if not bool(small.any()):
            return apart
        scaled = potential * (small & allowed) / self.temperature
        near = small_displacement(scaled, self.log_preference, self._order, csiszar=self.csiszar)
        return torch.where(small, near, apart)
