"""Closenesses and preferences as somebody outside the library would write them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.closeness import KL, AbstractCloseness
from fenchel.preference import AbstractPreference


class ScaledKL(AbstractCloseness):
    """τK(p, u): Kullback and Leibler's closeness times a temperature."""

    def __init__(self, temperature: Tensor) -> None:
        self.temperature = temperature

    def _temperature(self) -> Tensor:
        return self.temperature

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        return self._temperature() * KL().value(weights, log_preference)

    @override
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return self._temperature() * KL().conjugate(potential / self._temperature(), log_preference)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        return KL().weights(potential / self._temperature(), log_preference)

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        product = KL().curvature(potential / self._temperature(), log_preference)
        return lambda vector: product(vector) / self._temperature()

    @property
    @override
    def modulus(self) -> Tensor:
        return self._temperature()

    @override
    def to(self, dtype: torch.dtype) -> ScaledKL:
        return ScaledKL(self.temperature.to(dtype))


class HiddenScaledKL(ScaledKL):
    """The same, with its temperature where no attribute shows it."""

    def __init__(self, temperature: Tensor) -> None:
        self._read = lambda: temperature

    @override
    def _temperature(self) -> Tensor:
        return self._read()

    @override
    def to(self, dtype: torch.dtype) -> HiddenScaledKL:
        return HiddenScaledKL(self._read().to(dtype))


class Euclidean(AbstractCloseness):
    """½‖p - u‖²: sparse weights, and a dual whose gradient is smooth only piecewise."""

    def __init__(self, n: int) -> None:
        self._n = n

    @override
    def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
        u = log_preference.exp()
        inside = (weights - u).square().sum(-1) / 2
        return inside.masked_fill(((u == 0) & (weights != 0)).any(-1), torch.inf)

    @override
    def conjugate(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        p = self.weights(potential, log_preference)
        return (p * potential.masked_fill(p == 0, 0)).sum(-1) - self.value(p, log_preference)

    @override
    def weights(self, potential: Tensor, log_preference: Tensor) -> Tensor:
        u = log_preference.exp()
        shifted = (potential + u).masked_fill(u == 0, -torch.inf)
        ordered = shifted.sort(-1, descending=True).values
        count = torch.arange(1, ordered.shape[-1] + 1, dtype=ordered.dtype, device=ordered.device)
        sums = ordered.masked_fill(ordered == -torch.inf, 0).cumsum(-1)
        kept = (1 + count * ordered > sums).sum(-1, keepdim=True)
        threshold = (sums.gather(-1, kept - 1) - 1) / kept
        return (shifted - threshold).clamp(min=0)

    @override
    def curvature(self, potential: Tensor, log_preference: Tensor) -> Callable[[Tensor], Tensor]:
        support = (self.weights(potential, log_preference) > 0).to(potential.dtype)
        mass = support.sum(-1, keepdim=True)
        return lambda vector: support * (vector - (support * vector).sum(-1, keepdim=True) / mass)

    @property
    @override
    def modulus(self) -> float:
        return 1 / self._n


class Gaussian(AbstractPreference):
    """N(mean, factor factorᵀ)."""

    def __init__(self, mean: Tensor, factor: Tensor) -> None:
        self.center, self.factor = mean, factor

    @override
    def log_mgf(self, lam: Tensor) -> Tensor:
        return lam @ self.center + (lam @ self.factor).square().sum(-1) / 2

    @override
    def tilted_mean(self, lam: Tensor) -> Tensor:
        return self.center + lam @ self.factor @ self.factor.mT

    @override
    def tilted_covariance(self, lam: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda vector: vector @ self.factor @ self.factor.mT


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
