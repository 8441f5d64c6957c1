"""A belief held more or less firmly."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_flags, checked_argument
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference, builds
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.uniform import Uniform

__all__ = ["Tempered", "tempered"]


class Tempered(AbstractPreference):
    r"""A preference to a power, :math:`\log u' = w \log u`; written ``a ** w``.

    w < 1 trusts it less and w > 1 more. Masks are masks at any w.

    Args:
        preference: u.
        weight: w > 0.
        learned: Whether w is learned, as exp of a parameter, so that it stays positive.

    Raises:
        ProblemError: If w is not a positive number.

    Example:
        >>> from fenchel.nn.preference import KeyPadding
        >>> Tempered(KeyPadding(), 0.5, learned=True)
        Tempered(KeyPadding(), 0.5, learned=True)
    """

    is_composite: ClassVar[bool] = True

    def __init__(self, preference: AbstractPreference, weight: float, learned: bool = False) -> None:
        super().__init__()
        if not isinstance(preference, AbstractPreference):
            raise ProblemError(
                f"Tempered got a preference of type {type(preference).__name__}; expected one of fenchel.nn.preference."
            )
        if isinstance(weight, Tensor):
            raise ProblemError(
                "weight is a tensor; expected a number above 0. For a power that is learned use Tempered(preference, "
                "start, learned=True)"
            )
        checked_argument("positive", weight, name="weight")
        check_flags(learned=learned)
        self.preference = preference
        self.heads = preference.heads
        self.fixed_weight = float(weight)
        self.log_power = nn.Parameter(torch.tensor(math.log(weight))) if learned else None

    @property
    def weight(self) -> float | Tensor:
        """w: a number, or a 0-dimensional tensor if it is learned."""
        return self.fixed_weight if self.log_power is None else self.log_power.exp()

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """w·log u, with what is forbidden as it is."""
        self.check(inputs)
        log_u = self.preference(inputs)
        if log_u is None or log_u.dtype == torch.bool:
            return log_u
        if self.log_power is None:
            return self.fixed_weight * log_u
        # The gradient to w of w·(-inf) would be 0·(-inf).
        allowed = log_u > -torch.inf
        return torch.where(allowed, self.weight * torch.where(allowed, log_u, 0.0), -torch.inf).to(
            log_u.dtype
        )

    @property
    def lowers(self) -> bool:
        """Whether the preference does."""
        return self.preference.lowers

    def check(self, inputs: AttentionInputs) -> None:
        """Hold the inputs against the preference and the learned weight."""
        self.preference.check(inputs)
        super().check(inputs)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """w·log u."""
        inner = self.preference.checked_log_weight(inputs)
        if inner is None:
            return None
        if self.log_power is None:
            factor = self.fixed_weight

            def scaled(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                return factor * inner(b, h, q, k)

            return scaled
        # A fused kernel gives gradients to tables that it indexes, not to scalars.
        factors = self.log_power.exp().expand(inputs.heads).contiguous()

        def scaled_by_table(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return factors[h] * inner(b, h, q, k)

        return scaled_by_table

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The preference's own."""
        return self.preference.mask_mod(inputs)

    def __repr__(self) -> str:
        if self.log_power is not None:
            return f"Tempered({self.preference!r}, {self.log_power.detach().exp().item():.4g}, learned=True)"
        inner = f"({self.preference!r})" if self.preference.is_composite else repr(self.preference)
        return f"{inner} ** {self.fixed_weight}"


@builds("**")
def tempered(preference: AbstractPreference, weight: float) -> AbstractPreference:
    """The power, as plain as it can be: :class:`Uniform` to any power is itself."""
    power = Tempered(preference, weight)
    return Uniform() if isinstance(preference, Uniform) else power
