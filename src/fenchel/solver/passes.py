r"""Rows solved by passes over the templates, as fused attention makes them, without (rows, templates) arrays (fact 13).

In template coordinates a row's state is λ, d numbers. Its mean :math:`h(\lambda) = \sum_i p_i t_i` is attention with λ
for the query and the templates for keys and values, which torch computes in one fused pass in any dtype. So mixing and
the float64 certificate take one such call each, and rows that need Newton's method, few as a rule, make their weights
anew for every product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from typing_extensions import override

from fenchel.closeness.response import AbstractResponse
from fenchel.selection import SHARED
from fenchel.solver.coordinates import IdentityCoordinates

__all__ = ["PassCoordinates", "PassResponse"]


@dataclass(frozen=True)
class PassResponse(AbstractResponse):
    r"""h(λ) under Kullback and Leibler's closeness, by one pass of fused attention.

    Attributes:
        templates: Centred, (g, n, d).
        log_preference: log u, (g or 1, r or 1, n), or None where it is uniform.
        rest_mean: h(0), (g or 1, r or 1, d).
    """

    templates: Tensor = field(metadata=SHARED)
    log_preference: Tensor | None
    rest_mean: Tensor

    @classmethod
    def to_preference(cls, templates: Tensor, log_preference: Tensor) -> PassResponse:
        """Around log u (g or 1, r or 1, n), given in the dtype of the templates."""
        if log_preference.shape[1] == 1:
            rest = log_preference.softmax(-1) @ templates
        else:
            zeros = templates.new_zeros(len(templates), log_preference.shape[1], templates.shape[-1])
            rest = _attend(zeros, templates, log_preference)
        return cls.around(templates, log_preference, rest)

    @classmethod
    def around(cls, templates: Tensor, log_preference: Tensor, rest: Tensor) -> PassResponse:
        """The same, of which the mean at rest is known."""
        uniform = log_preference.shape[1] == 1 and bool((log_preference == log_preference[..., :1]).all())
        return cls(templates, None if uniform else log_preference, rest)

    def to(self, dtype: torch.dtype) -> PassResponse:
        """The same in another dtype; what is at rest is rounded, not computed anew."""
        preference = None if self.log_preference is None else self.log_preference.to(dtype)
        return PassResponse(self.templates.to(dtype), preference, self.rest_mean.to(dtype))

    @property
    @override
    def rest(self) -> Tensor:
        return self.rest_mean

    @override
    def argument(self, factor: Tensor, potential: Tensor) -> Tensor:
        return factor * potential

    @override
    def at(self, argument: Tensor) -> Tensor:
        return _attend(argument, self.templates, self.log_preference)

    def weights(self, argument: Tensor) -> Tensor:
        """P at λ (g, r, d), as an array (g, r, n)."""
        logits = argument @ self.templates.mT
        if self.log_preference is not None:
            logits += self.log_preference
        return torch.softmax(logits, -1, out=logits)

    @override
    def curvature(self, argument: Tensor, weights: Tensor) -> Callable[[Tensor], Tensor]:
        def product(vector: Tensor) -> Tensor:
            # The weights are not kept from product to product: whoever has that much memory solves with weights.
            inner = (vector @ self.templates.mT).mul_(self.weights(argument))
            return inner @ self.templates - weights * torch.linalg.vecdot(weights, vector).unsqueeze(-1)

        return product

    @override
    def log_curvature_range(self, step: Tensor) -> Tensor:
        """Twice the longest template times the step: no potential rises or falls by more than half of that."""
        longest = self.templates.norm(dim=-1).amax(-1, keepdim=True)
        return 2 * longest * step.norm(dim=-1)


def _attend(dual: Tensor, templates: Tensor, log_preference: Tensor | None) -> Tensor:
    """H at λ (g, r, d), (g, r, d)."""
    keys, mask = templates.unsqueeze(1), None
    if log_preference is not None:
        mask = log_preference.unsqueeze(1).expand(len(dual), 1, dual.shape[1], templates.shape[1])
    found = scaled_dot_product_attention(dual.unsqueeze(1), keys, keys, attn_mask=mask, scale=1.0)
    return found.squeeze(1)


class PassCoordinates(IdentityCoordinates):
    """λ's own coordinates, for a response that makes passes over templates.

    Args:
        templates: Centred, (g, n, d).
    """

    def __init__(self, templates: Tensor) -> None:
        super().__init__(templates)
        self._longest = templates.norm(dim=-1).amax(-1, keepdim=True)
        self._terms = templates.shape[1]

    @property
    @override
    def longest(self) -> Tensor:
        return self._longest

    @property
    @override
    def terms(self) -> int:
        return self._terms

    @override
    def spread(self, weights: Tensor) -> Tensor:
        """No template is farther from a mean than twice the longest is long, nor its root mean square than once."""
        return self._longest.expand(weights.shape[:2])
