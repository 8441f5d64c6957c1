"""Sums of non-negative numbers that are the same bits in whatever order they are added."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fenchel.io.schema import Mismatch, Shown, TensorSchema, check_tensors

__all__ = ["ExactSums"]

_BITS = 38  # of a mantissa; 2²⁵ numbers of one exponent fit 63 bits
_EXPONENTS = 256
_BIAS = 128
_INFINITE = _EXPONENTS - 1

_SCHEMA = {
    "places": TensorSchema((torch.int64,), ("used exponents",), least=0, rising=True),
    "mantissas": TensorSchema((torch.int64,), ("used exponents",), least=1),
}


class ExactSums:
    """One sum a row, as one integer for each binary exponent.

    A number is cut to 38 bits, by at most 2⁻³⁷ of it, when it is added; nothing is rounded after that. Below 2⁻¹²⁸ it
    counts as 0, from 2¹²⁶ on as infinite.

    Args:
        num_rows: Number of sums.

    Example:
        >>> sums = ExactSums(1)
        >>> sums.add(torch.tensor([[0.5, 1.25]], dtype=torch.float64))
        >>> sums.value(0)
        1.75
    """

    def __init__(self, num_rows: int) -> None:
        self._mantissas = torch.zeros(num_rows, _EXPONENTS, dtype=torch.int64)

    def add(self, values: Tensor) -> None:
        """Add numbers (rows, count), float64, non-negative or infinite."""
        infinite = values.isinf()
        mantissas, exponents = torch.frexp(values.masked_fill(infinite, 0))
        places = exponents.long() + _BIAS
        infinite |= places >= _INFINITE
        whole = (mantissas * 2.0**_BITS).long().masked_fill((places < 0) | infinite, 0)
        whole[infinite] = 1
        places = places.clamp(0, _INFINITE).masked_fill(infinite, _INFINITE)
        self._mantissas.scatter_add_(1, places, whole)

    def merge(self, other: ExactSums) -> None:
        """Add everything that ``other`` added."""
        self._mantissas += other._mantissas

    def value(self, row: int) -> float:
        """The sum of a row, correctly rounded; infinite if one of its numbers is."""
        *finite, infinite = self._mantissas[row].tolist()
        if infinite:
            return math.inf
        units = sum(mantissa << exponent for exponent, mantissa in enumerate(finite) if mantissa)
        return units / (1 << (_BIAS + _BITS))

    def to_state(self) -> dict[str, Tensor]:
        """Everything that was added; ``from_state`` inverts it exactly."""
        flat = self._mantissas.flatten()
        places = flat.nonzero().flatten()
        return {"places": places, "mantissas": flat[places]}

    @classmethod
    def from_state(cls, num_rows: int, state: dict[str, Tensor]) -> ExactSums:
        """Rebuild what ``to_state`` gave.

        Raises:
            Mismatch: If the tensors are not those of so many sums.
        """
        check_tensors(state, _SCHEMA)
        if bool((state["places"] >= num_rows * _EXPONENTS).any()):
            raise Mismatch("tensor places", Shown("beyond the last sum"), f"those of {num_rows} sums")
        self = cls(num_rows)
        self._mantissas.view(-1)[state["places"]] = state["mantissas"]
        return self
