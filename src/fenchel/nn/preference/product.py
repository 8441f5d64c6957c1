"""Several beliefs at once."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference, builds
from fenchel.nn.preference.dense import IndexFunction, combined, on_diagonals
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.uniform import Uniform

__all__ = ["Product", "multiplied"]


class Product(AbstractPreference):
    r"""The product of preferences, :math:`\log u = \sum_r \log u^{(r)}`; written ``a * b``.

    Masks alone multiply to a mask. As functions of indices the factors are one function, so that a fused kernel reads
    the small tables of each factor and never a tensor of m·n entries.

    Args:
        factors: At least one; products among them are dissolved and :class:`Uniform` is left out.

    Raises:
        ProblemError: If there is no factor, or one is not a preference.

    Example:
        >>> from fenchel.nn.preference import Causal, KeyPadding
        >>> Causal() * KeyPadding() ** 2.0
        Causal() * KeyPadding() ** 2.0
    """

    is_composite: ClassVar[bool] = True

    def __init__(self, *factors: AbstractPreference) -> None:
        super().__init__()
        if not factors:
            raise ProblemError("Product got no factors; give at least one preference, or use Uniform().")
        for factor in factors:
            if not isinstance(factor, AbstractPreference):
                raise ProblemError(
                    f"Product got a factor of type {type(factor).__name__}; "
                    "expected a preference of fenchel.nn.preference."
                )
        self.factors = nn.ModuleList(_dissolved(factors))

    def forward(self, inputs: AttentionInputs) -> Tensor | None:
        """The sum of the factors' log-weights, with -inf where a mask among them forbids."""
        parts = self._parts
        eager = not torch.compiler.is_compiling()
        if eager and len(parts) > 1 and all(part.depends_on_distance for part in parts):
            return self._on_diagonals(inputs)
        return combined([factor(inputs) for factor in parts])

    def _on_diagonals(self, inputs: AttentionInputs) -> Tensor:
        """The same, put together a distance and not a pair at a time."""
        self.check(inputs)
        functions = [
            (factor.checked_log_weight(inputs), factor.checked_mask(inputs), factor.heads == 1)
            for factor in self._parts
        ]

        def of_distance(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            terms: list[Tensor] = []
            for weight, mask, one_head in functions:
                own = h[:, :1] if one_head else h
                if weight is not None:
                    terms.append(weight(b, own, q, k).to(inputs.dtype))
                if mask is not None:
                    terms.append(mask(b, own, q, k))
            found = combined(terms)
            assert found is not None  # noqa: S101 -- a preference that lowers is a weight, a mask or both
            return found

        return on_diagonals(of_distance, inputs)

    @property
    def lowers(self) -> bool:
        """Whether every factor does."""
        return all(factor.lowers for factor in self._parts)

    def check(self, inputs: AttentionInputs) -> None:
        """Hold the inputs against every factor."""
        for factor in self._parts:
            factor.check(inputs)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The sum of the factors' log-weights."""
        weights = tuple(w for factor in self._parts if (w := factor.checked_log_weight(inputs)) is not None)
        if len(weights) < 2:
            return weights[0] if weights else None

        def summed(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            total = weights[0](b, h, q, k)
            for weight in weights[1:]:
                total = total + weight(b, h, q, k)
            return total

        return summed

    def mask_mod(self, inputs: AttentionInputs) -> IndexFunction | None:
        """True where every factor's mask is."""
        masks = tuple(mask for factor in self._parts if (mask := factor.checked_mask(inputs)) is not None)
        if len(masks) < 2:
            return masks[0] if masks else None

        def all_attend(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            allowed = masks[0](b, h, q, k)
            for mask in masks[1:]:
                allowed = allowed & mask(b, h, q, k)
            return allowed

        return all_attend

    @property
    def _parts(self) -> list[AbstractPreference]:
        return [factor for factor in self.factors if isinstance(factor, AbstractPreference)]

    def __repr__(self) -> str:
        return " * ".join(repr(factor) for factor in self.factors) or "Product()"


def _dissolved(factors: tuple[AbstractPreference, ...]) -> list[AbstractPreference]:
    parts = [part for f in factors for part in (f._parts if isinstance(f, Product) else [f])]
    return [part for part in parts if not isinstance(part, Uniform)]


@builds("*")
def multiplied(*factors: AbstractPreference) -> AbstractPreference:
    """The product as plain as it can be: no :class:`Uniform` in it, and no :class:`Product` around one factor."""
    parts = _dissolved(factors)
    if len(parts) > 1:
        return Product(*parts)
    return parts[0] if parts else Uniform()
