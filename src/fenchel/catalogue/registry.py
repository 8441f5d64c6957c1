"""All entries, by name, as rows of a table and as JSON."""

from __future__ import annotations

from dataclasses import asdict, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final

from fenchel.arguments import shown
from fenchel.catalogue import (
    closeness_and_memory,
    importance,
    positions,
    psychology,
    scores,
    textbook,
    vision_and_gates,
)
from fenchel.catalogue.entry import Difference, Entry, difference
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import name_of
from fenchel.errors import InputError

_MODULES = (textbook, scores, positions, vision_and_gates, psychology, closeness_and_memory, importance)

ENTRIES: Final = MappingProxyType({one.name: one for module in _MODULES for one in module.FAMILY.entries})

"""Every mechanism by name, in the order of the catalogue."""

FAMILIES: Final = tuple(dict.fromkeys(one.family for one in ENTRIES.values()))

"""The headings, in order."""

NOTES: Final = MappingProxyType({"Psychology": psychology.NOTE})

"""Notes on whole families, by heading."""


def entry(name: str) -> Entry:
    """The entry of a mechanism.

    Args:
        name: A name of ``ENTRIES``, such as ``"alibi"``.

    Raises:
        InputError: If there is no entry with this name; the message has the nearest ones.

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


def differences(
    entry: Entry, closeness: AbstractCloseness | str | None = None, seed: int = 0
) -> tuple[Difference, ...]:
    """Differences of all supported estimators from exact inference; empty if exact inference is not supported."""
    if "exact" not in entry.estimators:
        return ()
    return tuple(difference(entry, name, closeness=closeness, seed=seed) for name in entry.estimators)


def record(entry: Entry) -> dict[str, Any]:
    """An entry as JSON."""
    left_out = ("written", "example", "symmetries")
    result = {field.name: getattr(entry, field.name) for field in fields(entry) if field.name not in left_out}
    own = {"paper": asdict(entry.paper), "verdict": entry.verdict.value, "places": not entry.symmetries}
    return {**result, **own, "estimators": list(entry.estimators), "layer": dict(entry.layer)}


def described(
    entry: Entry, closeness: AbstractCloseness | str | None = None, seed: int = 0
) -> dict[str, Any]:
    """An entry and the differences measured on its example, as JSON."""
    name = closeness if isinstance(closeness, str) else name_of(closeness)
    measured = [one._asdict() for one in differences(entry, closeness, seed)]
    return {**record(entry), "measured": {"closeness": name, "seed": seed, "estimators": measured}}


def entry_lines(entry: Entry) -> tuple[tuple[str, str], ...]:
    """An entry as pairs of a label and a text."""
    verdict = entry.verdict.value + (f": {entry.because}" if entry.because else "")
    exact = (
        "differs from the published mechanism" if entry.exact_differs else "equals the published mechanism"
    )
    if "exact" not in entry.estimators:
        exact = "does not apply"
    rows = [
        ("paper", str(entry.paper)),
        ("formula", entry.formula),
        ("templates t", entry.templates),
        ("preference u", entry.preference),
        ("evidence z", entry.evidence),
        ("closeness D", entry.closeness),
        ("values v", entry.values),
        ("meaning", entry.meaning),
        ("verdict", verdict),
        ("exact gives", exact + (f". {entry.exact_because}" if entry.exact_because else "")),
    ]
    if entry.layer:
        arguments = ", ".join(f"{name}={code}" for name, code in entry.layer.items())
        rows.append(("as a layer", f"MultiheadAttention(width, heads, {arguments})"))
    return tuple(rows)
