"""The bins of a histogram of float32 numbers: the top bits of a number's own pattern, 256 an octave."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

__all__ = [
    "EXPONENTS",
    "EXPONENT_BIAS",
    "FIRST_EXPONENT",
    "GRID",
    "INFINITE",
    "LARGEST_COUNT",
    "MANTISSA_BITS",
    "NUM_BINS",
    "SUB_BINS",
    "SUB_BIN_MANTISSAS",
    "bin_edges",
    "bin_midpoints",
    "bins_of",
]

MANTISSA_BITS = 23
EXPONENT_BIAS = 127
_SUB_BIN_BITS = 8
_LOWEST_OCTAVE = -60
_HIGHEST_OCTAVE = 24
_SHIFT = MANTISSA_BITS - _SUB_BIN_BITS

SUB_BINS = 1 << _SUB_BIN_BITS
"""Bins of an octave."""

SUB_BIN_MANTISSAS = 1 << _SHIFT
"""Mantissas of a bin."""

FIRST_EXPONENT = _LOWEST_OCTAVE + EXPONENT_BIAS
"""The exponent, as the pattern holds it, of the lowest octave that is cut into bins."""

_FIRST_PATTERN = FIRST_EXPONENT << _SUB_BIN_BITS

NUM_BINS = ((_HIGHEST_OCTAVE - _LOWEST_OCTAVE) << _SUB_BIN_BITS) + 2
"""Bins of one row: 256 an octave, one below and one above."""

EXPONENTS = 256
INFINITE = EXPONENTS - 1

LARGEST_COUNT = 2**38
"""A sum of mantissas below 2²⁴ stays inside 63 bits up to this many of them."""

GRID = [_SUB_BIN_BITS, _LOWEST_OCTAVE, _HIGHEST_OCTAVE]
"""What fixes the bins: saved counts can be read only where it is the same."""


def bins_of(patterns: Tensor) -> Tensor:
    """The bin of each number, from its pattern as int32 with a sign of 0."""
    return ((patterns >> _SHIFT) - (_FIRST_PATTERN - 1)).clamp_(0, NUM_BINS - 1)


@cache
def bin_edges() -> Tensor:
    """Where the bins begin and end, float64: bin i holds [edges[i], edges[i + 1]), the last one infinity too."""
    patterns = torch.arange(NUM_BINS - 1, dtype=torch.int32) + _FIRST_PATTERN
    inner = (patterns << _SHIFT).view(torch.float32).double()
    ends = torch.tensor([0.0, math.inf], dtype=torch.float64)
    return torch.cat([ends[:1], inner, ends[1:]])


@cache
def bin_midpoints() -> Tensor:
    """The number that stands for each bin, float64: 0 for the lowest bin, infinity for the highest."""
    edges = bin_edges()
    middles = (edges[:-1] + edges[1:]) / 2
    middles[0] = 0.0
    return middles
