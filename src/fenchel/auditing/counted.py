"""How much an audit read, in words: tokens of documents, or positions of images."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["READS", "counted_in_words"]

READS: dict[str, tuple[str, str]] = {
    "text": ("document", "documents"),
    "images": ("image", "images"),
    "inputs": ("input", "inputs"),
    "examples": ("example", "examples"),
}
"""What an audit reads, one and several, by the manifest's ``reads``."""


def counted_in_words(manifest: Mapping[str, Any], heads: Iterable[Mapping[str, Any]]) -> str:
    """How much was read.

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
    one, several = READS.get(reads, READS["text"])
    source = f"{documents:,} {one if documents == 1 else several}"
    if reads == "text":
        return f"{source}, {tokens:,} token{'' if tokens == 1 else 's'}"
    # Inputs without ids do not say how many positions they have; the layers that were measured do.
    what, count = "token", tokens
    if reads == "images" or tokens == documents:
        what, count = "position", max((int(head.get("queries", 0)) for head in heads), default=0)
    return f"{count:,} {what}{'' if count == 1 else 's'} of {source}"
