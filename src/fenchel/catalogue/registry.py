"""All entries, and looking one up."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from fenchel.arguments import shown
from fenchel.catalogue import (
    convolution,
    gates,
    hashing,
    images,
    importance,
    linear,
    memory,
    pairs_of_places,
    places,
    priority,
    reading,
    scores,
    selection,
    shifted_windows,
    sparse,
    textbook,
)
from fenchel.catalogue.entry import Entry
from fenchel.errors import InputError

__all__ = ["ENTRIES", "FAMILIES", "NOTES", "entry"]


def _by_name(*groups: Iterable[Entry]) -> MappingProxyType[str, Entry]:
    found: dict[str, Entry] = {}
    for group in groups:
        for one in group:
            if one.name in found:
                raise AssertionError(f"two entries are called {one.name}")
            found[one.name] = one
    return MappingProxyType(found)


ENTRIES: Final = _by_name(
    textbook.ENTRIES,
    reading.ENTRIES,
    scores.ENTRIES,
    places.ENTRIES,
    pairs_of_places.ENTRIES,
    shifted_windows.ENTRIES,
    images.ENTRIES,
    convolution.ENTRIES,
    hashing.ENTRIES,
    gates.ENTRIES,
    selection.ENTRIES,
    priority.ENTRIES,
    sparse.ENTRIES,
    memory.ENTRIES,
    linear.ENTRIES,
    importance.ENTRIES,
)
"""Every mechanism by name, in the order of the catalogue."""

FAMILIES: Final = tuple(dict.fromkeys(one.family for one in ENTRIES.values()))
"""The headings, in order."""

NOTES: Final = MappingProxyType({"Mind": selection.NOTE})
"""What is to be known of a whole family, by heading."""


def entry(name: str) -> Entry:
    """The entry of a mechanism.

    Args:
        name: Such as ``"alibi"``; ``ENTRIES`` has all.

    Raises:
        InputError: If there is none of this name; the nearest are named.

    Example:
        >>> entry("scaled-dot").evidence
        'q_i'
        >>> entry("scaled-dott")
        Traceback (most recent call last):
        fenchel.errors.InputError: the catalogue has no entry 'scaled-dott'; nearest: scaled-dot...
    """
    if isinstance(name, str) and name in ENTRIES:
        return ENTRIES[name]
    near = get_close_matches(str(name).lower().replace("_", "-"), ENTRIES, n=3, cutoff=0.5)
    nearest = f"; nearest: {', '.join(near)}" if near else ""
    raise InputError(
        f"the catalogue has no entry {shown(name)}{nearest}. 'fenchel catalogue' lists all {len(ENTRIES)}."
    )
