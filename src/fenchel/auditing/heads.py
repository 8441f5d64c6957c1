"""Names of heads and metrics, and the amount of text that an audit read in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fenchel.arguments import KIND_NAMES, Kind, number_of
from fenchel.io.storage import STRICT, NonNegativeInt, PositiveInt

# Short names of the kinds of attention in tables.
SHORT_KIND_NAMES: dict[Kind, str] = {
    kind: name.removesuffix("-attention") for kind, name in KIND_NAMES.items()
}

# Names of the metrics that are summarised for every head; formulas are in ``fenchel.auditing.measure``.
METRIC_NAMES: dict[str, str] = {
    "relative_deviation": "Relative deviation",
    "second_order_deviation": "Second-order deviation",
    "total_variation": "Total variation",
    "mean_error": "Error of the mean",
    "certificate": "Certificate",
    "gap": "Duality gap, at most",
    "predicted_deviation": "Predicted deviation",
}

METRICS: tuple[str, ...] = tuple(METRIC_NAMES)

"""The metrics in the order of the records."""

# The suffixes of a record's keys, with the words for them.
STATISTIC_NAMES: dict[str, str] = {
    "mean": "mean",
    "p50": "median",
    "p95": "95th percentile",
    "max": "maximum",
}

# Measures of every query.
MEASURES: tuple[str, ...] = (*METRICS, "entropy", "evidence_norm", "dual_error", "output_error")

# Measures relative to a length that is zero where the evidence is zero; they are then zero, too.
SCALED: tuple[str, ...] = (
    "relative_deviation",
    "second_order_deviation",
    "certificate",
    "predicted_deviation",
    "dual_error",
)


class HeadKey(NamedTuple):
    """One attention head: kind of attention, layer within that kind and number of the head, both from 1."""

    kind: Kind
    layer: PositiveInt
    head: PositiveInt


@dataclass(frozen=True)
class OfHead:
    """A result of one head.

    Attributes:
        kind: Kind of attention.
        layer: Number of the layer within that kind, from 1.
        head: Number of the head, from 1.
    """

    __pydantic_config__ = STRICT

    kind: Kind
    layer: PositiveInt
    head: PositiveInt

    @property
    def key(self) -> HeadKey:
        """The head."""
        return HeadKey(self.kind, self.layer, self.head)


def head_name(key: HeadKey, *, several_kinds: bool) -> str:
    """Name of a head in reports.

    Example:
        >>> head_name(HeadKey("cross", 2, 5), several_kinds=True)
        'Cross-attention, layer 2, head 5'
    """
    return f"{layer_name(key.kind, key.layer, several_kinds=several_kinds)}, head {key.head}"


def layer_name(kind: Kind, layer: int, *, several_kinds: bool) -> str:
    """Name of a layer in reports.

    Example:
        >>> layer_name("cross", 2, several_kinds=True), layer_name("cross", 2, several_kinds=False)
        ('Cross-attention, layer 2', 'Layer 2')
    """
    return f"{KIND_NAMES[kind]}, layer {layer}" if several_kinds else f"Layer {layer}"


class AttentionModule(NamedTuple):
    """The module of a layer, given by kind and number: its qualified name, and its number among those of the model.

    ``fenchel swap`` counts layers by this number, which is the layer's own where all layers of a model are of one kind.
    It is 0 where a swap does not come: of a translation model without a language-model head it reads the encoder alone.
    """

    kind: Kind
    layer: PositiveInt
    name: str
    number: NonNegativeInt


# The attention module of every layer.
Modules = Mapping[tuple[Kind, int], AttentionModule]

# What an input is called, by the manifest's ``reads``.
READS = {"text": "document", "images": "image", "inputs": "input", "examples": "example"}


def unit_of(manifest: Mapping[str, Any]) -> str:
    """The name of a position of the inputs: ``position`` for images and other inputs without ids, else ``token``."""
    reads = manifest.get("reads") or "text"
    # Inputs without ids, and images, do not say how many positions they have, and count as one token each.
    return "position" if reads != "text" and manifest.get("tokens") == manifest.get("documents") else "token"


_OF_POSITIONS = {
    "the first token and special tokens": "the first position",
    ", special, punctuation or": " or",
    ", punctuation or": " or",
    "token": "position",
}


def in_units(text: str, manifest: Mapping[str, Any]) -> str:
    """A text about tokens, in which they are called as by :func:`unit_of`.

    Example:
        >>> in_units("tokens that are not sinks, punctuation or next to the query", {"reads": "images"})
        'positions that are not sinks or next to the query'
    """
    for words, other in () if unit_of(manifest) == "token" else _OF_POSITIONS.items():
        text = text.replace(words, other)
    return text


def counted_in_words(manifest: Mapping[str, Any], heads: Iterable[Mapping[str, Any]]) -> str:
    """The amount of text or images that was read.

    Args:
        manifest: The audit's.
        heads: Its records.

    Example:
        >>> counted_in_words({"documents": 2, "tokens": 1200}, [])
        '2 documents, 1,200 tokens'
        >>> counted_in_words({"reads": "images", "documents": 12, "tokens": 12}, [{"queries": 2364}])
        '2,364 positions of 12 images'
    """
    documents, tokens = int(manifest.get("documents") or 0), int(manifest.get("tokens") or 0)
    reads = str(manifest.get("reads") or "text")
    source = number_of(documents, READS.get(reads, "document"))
    if reads == "text":
        return f"{source}, {number_of(tokens, 'token')}"
    if (unit := unit_of(manifest)) == "position":
        tokens = max((int(head.get("queries", 0)) for head in heads), default=0)
    return f"{number_of(tokens, unit)} of {source}"
