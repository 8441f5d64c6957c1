"""What saved statistics have to be: each part by itself, and every part with the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor

from fenchel.auditing.bins import (
    EXPONENTS,
    FIRST_EXPONENT,
    INFINITE,
    LARGEST_COUNT,
    MANTISSA_BITS,
    NUM_BINS,
    SUB_BIN_MANTISSAS,
    SUB_BINS,
    bins_of,
)
from fenchel.auditing.heads import METRICS, Kind
from fenchel.io.schema import Field, Mismatch, Place, Record, Shown, TensorSchema, Whole, check_tensors

__all__ = ["HISTOGRAM_SCHEMA", "SavedStatistics", "check_histograms", "check_layer", "tensors_by_layer"]

_MOST_LAYERS, _MOST_HEADS = 10_000, 1_024


class _SavedLayer(Record):
    kind: Kind
    layer: Annotated[int, Field(ge=1, le=_MOST_LAYERS)]
    heads: Annotated[list[Place], Field(min_length=1, max_length=_MOST_HEADS)]


class SavedStatistics(Record):
    """What describes saved statistics; a word is a token's id and its text."""

    grid: list[Annotated[int, Field(ge=-1_000, le=1_000)]]
    metrics: list[str]
    types: list[str]
    classes: list[str]
    layers: Annotated[list[_SavedLayer], Field(max_length=_MOST_LAYERS)]
    words: list[tuple[Whole, str]]


HISTOGRAM_SCHEMA: dict[str, TensorSchema] = {
    "totals": TensorSchema((torch.int64,), ("rows",), least=0),
    "maxima": TensorSchema((torch.float32,), ("rows",), least=0),
    "bins": TensorSchema((torch.int64,), ("filled bins",), least=0, rising=True),
    "counts": TensorSchema((torch.int64,), ("filled bins",), least=1),
    "exponents": TensorSchema((torch.int64,), ("used exponents",), least=0, rising=True),
    "mantissas": TensorSchema((torch.int64,), ("used exponents",), least=1),
}
"""The tensors that ``FloatHistograms.to_state`` gives."""

_COUNTERS = {
    name: TensorSchema((torch.int64,), ("heads",), least=0)
    for name in ("queries", "newton_steps", "not_converged")
}
_OCTAVES = (NUM_BINS - 2) // SUB_BINS
_IMPLICIT_BIT = 1 << MANTISSA_BITS


def tensors_by_layer(
    tensors: Mapping[str, Tensor], sites: Sequence[Mapping[str, Any]]
) -> dict[tuple[Kind, int], dict[str, Tensor]]:
    """The tensors of each layer, by the last part of their names.

    Args:
        tensors: All that were saved.
        sites: The layers, as ``SavedStatistics`` has them.

    Returns:
        By kind and number of the layer.

    Raises:
        Mismatch: If a layer or a head is there twice, or a tensor is of no layer.
    """
    parts: dict[tuple[Kind, int], dict[str, Tensor]] = {}
    for site in sites:
        key = site["kind"], site["layer"]
        if key in parts:
            raise Mismatch(f"{key[0]} layer {key[1]}", Shown("there twice"), "it once")
        if len(set(site["heads"])) < len(site["heads"]):
            raise Mismatch(f"heads of {key[0]} layer {key[1]}", site["heads"], "each of them once")
        parts[key] = {}
    for name, tensor in tensors.items():
        kind, _, rest = name.partition(".")
        layer, _, part = rest.partition(".")
        found = parts.get((kind, int(layer))) if layer.isdecimal() and len(layer) < 9 else None  # pyright: ignore[reportArgumentType]
        if found is None:
            raise Mismatch(f"tensor {name[:60]}", Shown("there"), "tensors of the layers that were counted")
        found[part] = tensor
    return parts


def check_layer(heads: int, parts: Mapping[str, Tensor]) -> list[Tensor]:
    """See that the tensors of a layer, its histograms among them, are some that an audit can have given.

    Args:
        heads: How many heads it has.
        parts: By name.

    Returns:
        ``queries``, ``newton_steps`` and ``not_converged``.

    Raises:
        Mismatch: If they are not.
    """
    counters = {name: parts[name] for name in _COUNTERS if name in parts}
    check_tensors(counters, _COUNTERS, {"heads": heads})
    histograms = {name: tensor for name, tensor in parts.items() if name not in _COUNTERS}
    check_histograms(len(METRICS) * heads, histograms)
    if not torch.equal(histograms["totals"], counters["queries"].repeat(len(METRICS))):
        raise Mismatch("tensor totals", Shown("not the number of queries"), "as many of every metric")
    if not bool((counters["not_converged"] <= counters["queries"]).all()):
        raise Mismatch("tensor not_converged", Shown("above the number of queries"), "at most as many")
    return [counters[name] for name in _COUNTERS]


def check_histograms(num_rows: int, state: Mapping[str, Tensor]) -> None:
    """See that saved histograms are some that numbers can have given, before memory is taken for them.

    Counts add up to the totals; the sums of mantissas lie between those of the lowest and of the highest numbers of the
    bins that were counted; and the maxima lie in the highest of these bins.

    Args:
        num_rows: How many there are to be.
        state: What ``FloatHistograms.to_state`` gave.

    Raises:
        Mismatch: If they are not.
    """
    check_tensors(state, HISTOGRAM_SCHEMA, {"rows": num_rows})
    totals, counts, mantissas = state["totals"], state["counts"], state["mantissas"]
    _require((totals <= LARGEST_COUNT).all(), "totals", f"at most {LARGEST_COUNT}")
    _require((state["bins"] < num_rows * NUM_BINS).all(), "bins", f"those of {num_rows} rows")
    _require((state["exponents"] < num_rows * EXPONENTS).all(), "exponents", f"those of {num_rows} rows")
    rows, bins = state["bins"] // NUM_BINS, state["bins"] % NUM_BINS
    _require((counts <= totals[rows]).all(), "counts", "no more than the totals")
    added = torch.zeros_like(totals).index_add_(0, rows, counts)
    _require(torch.equal(added, totals), "counts", "counts that add up to the totals")

    of_rows, exponents = state["exponents"] // EXPONENTS, state["exponents"] % EXPONENTS
    _require((mantissas < (totals[of_rows] + 1) << (MANTISSA_BITS + 1)).all(), "mantissas", "sums of so many")
    summed = torch.zeros(num_rows, EXPONENTS, dtype=torch.int64)
    summed[of_rows, exponents] = mantissas
    lowest, highest = _bounds(num_rows, rows, bins, counts)
    inside = summed[:, FIRST_EXPONENT : FIRST_EXPONENT + _OCTAVES]
    _require(((lowest <= inside) & (inside <= highest)).all(), "mantissas", "sums of what the bins hold")

    unbounded = summed[:, INFINITE] >> MANTISSA_BITS
    above = _counted(num_rows, rows, counts, bins == NUM_BINS - 1) - unbounded
    whole = summed[:, INFINITE] == unbounded << MANTISSA_BITS
    _require(
        (whole & (above >= 0)).all(), "mantissas", "as many infinite numbers as the highest bin has room for"
    )
    below = _counted(num_rows, rows, counts, bins == 0)
    for name, outside, number in (
        ("lowest", summed[:, :FIRST_EXPONENT], below),
        ("highest", summed[:, FIRST_EXPONENT + _OCTAVES : INFINITE], above),
    ):
        # Sums of many of them may pass 63 bits.
        within = outside.double().sum(1) <= number.double() * (2 * _IMPLICIT_BIT)
        _require(within.all(), "mantissas", f"sums of what the {name} bin holds")
    _check_maxima(state["maxima"], rows, bins, torch.where(bins == NUM_BINS - 1, above[rows], counts))


def _bounds(num_rows: int, rows: Tensor, bins: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, octaves), least and greatest sum of mantissas of the numbers that the bins count."""
    cut = (bins > 0) & (bins < NUM_BINS - 1)
    rows, counts, inner = rows[cut], counts[cut], bins[cut] - 1
    place = rows * _OCTAVES + inner // SUB_BINS
    least = _IMPLICIT_BIT + inner % SUB_BINS * SUB_BIN_MANTISSAS

    def summed(mantissas: Tensor) -> Tensor:
        sums = torch.zeros(num_rows * _OCTAVES, dtype=torch.int64)
        return sums.index_add_(0, place, counts * mantissas).view(num_rows, _OCTAVES)

    return summed(least), summed(least + SUB_BIN_MANTISSAS - 1)


def _counted(num_rows: int, rows: Tensor, counts: Tensor, chosen: Tensor) -> Tensor:
    return torch.zeros(num_rows, dtype=torch.int64).index_add_(0, rows[chosen], counts[chosen])


def _check_maxima(maxima: Tensor, rows: Tensor, bins: Tensor, finite: Tensor) -> None:
    # Rows without a finite number have the maximum 0, whose bin is the lowest.
    held = finite > 0
    highest = torch.zeros(len(maxima), dtype=torch.int64)
    highest.scatter_reduce_(0, rows[held], bins[held], "amax")
    _require(
        torch.equal(bins_of(maxima.view(torch.int32)).long(), highest), "maxima", "numbers of the highest bin"
    )


def _require(holds: Tensor | bool, name: str, expected: str) -> None:
    if not bool(holds):
        raise Mismatch(f"tensor {name}", Shown("not in keeping with the rest"), expected)
