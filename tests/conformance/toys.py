"""Closenesses and preferences as somebody outside the library would write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness import KL, AbstractCloseness
from fenchel.preference import AbstractPreference


class Few(AbstractCloseness):
    """temperature * K(p, u) by its value and its weights alone."""

    numbers = ("temperature",)

    def __init__(self, temperature: Tensor) -> None:
        self.temperature = temperature

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        return self.temperature * KL().value(weights, log_preference)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return KL().weights(potential / self.temperature[..., None], log_preference)

    @property
    @override
    def modulus(self) -> Tensor:
        return self.temperature


class Cumulant(AbstractPreference):
    """N(mean, diag(variance)), by its cumulant alone."""

    def __init__(self, mean: Tensor, variance: Tensor) -> None:
        self.center, self.variance = mean, variance

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        return lam @ self.center + (self.variance * lam.square()).sum(-1) / 2


class Exponential(AbstractPreference):
    """Independent exponential coordinates of given means: log M is finite where λ < 1/mean only."""

    def __init__(self, means: Tensor) -> None:
        self.means = means

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        return -torch.log1p(-lam * self.means).sum(-1)

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return self.means / (1 - lam * self.means)

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        scale = (self.means / (1 - lam * self.means)).square()
        return lambda vector: scale * vector

    @override
    def reach(self, lam: Tensor, direction: Tensor) -> Tensor:
        room = (1 / self.means - lam) / direction.clamp(min=torch.finfo(lam.dtype).tiny)
        return room.masked_fill(direction <= 0, torch.inf).amin(-1)
