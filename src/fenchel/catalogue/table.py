"""The catalogue as tables: for a terminal, for Markdown, and as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fenchel.catalogue.difference import Difference, difference
from fenchel.catalogue.entry import Entry
from fenchel.closeness import AbstractCloseness
from fenchel.closeness.tsallis import name_of

__all__ = ["described", "differences", "entry_lines", "layer_table", "listed", "record"]


def differences(
    entry: Entry, closeness: AbstractCloseness | str | None = None, seed: int = 0
) -> tuple[Difference, ...]:
    """Every estimator that the entry takes, beside the exact answer; none where it takes no exact one."""
    if "exact" not in entry.estimators:
        return ()
    return tuple(difference(entry, name, closeness=closeness, seed=seed) for name in entry.estimators)


def record(entry: Entry) -> dict[str, Any]:
    """What an entry says, as JSON."""
    return {
        "name": entry.name,
        "title": entry.title,
        "family": entry.family,
        "paper": {
            "authors": entry.paper.authors,
            "year": entry.paper.year,
            "title": entry.paper.title,
            "where": entry.paper.where,
        },
        "formula": entry.formula,
        "templates": entry.templates,
        "preference": entry.preference,
        "evidence": entry.evidence,
        "values": entry.values,
        "closeness": entry.closeness,
        "meaning": entry.meaning,
        "verdict": entry.verdict.value,
        "because": entry.because,
        "exact_differs": entry.exact_differs,
        "exact_because": entry.exact_because,
        "places": not entry.symmetries,
        "estimators": list(entry.estimators),
        "takes_closeness": entry.takes_closeness,
        "layer": dict(entry.layer),
    }


def described(
    entry: Entry, closeness: AbstractCloseness | str | None = None, seed: int = 0
) -> dict[str, Any]:
    """An entry and what was measured on its example, as JSON."""
    name = closeness if isinstance(closeness, str) else name_of(closeness)
    measured = [one.to_json() for one in differences(entry, closeness, seed)]
    return {**record(entry), "measured": {"closeness": name, "seed": seed, "estimators": measured}}


def entry_lines(entry: Entry) -> tuple[tuple[str, str], ...]:
    """What an entry says, a label and a text a line."""
    verdict = entry.verdict.value + (f": {entry.because}" if entry.because else "")
    exact = "another answer than what is published" if entry.exact_differs else "what is published"
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


def listed(entries: Iterable[Entry]) -> tuple[tuple[str, str, str, str, str], ...]:
    """Rows of the list: name, title, preference, evidence, verdict."""
    return tuple((one.name, one.title, one.preference, one.evidence, one.verdict.value) for one in entries)


def layer_table(entries: Iterable[Entry]) -> str:
    """The entries that are layers of this package, as a table in Markdown: what is believed, and what is asked."""
    rows = ["| Mechanism | Preference | Evidence | Closeness |", "|---|---|---|---|"]
    for one in entries:
        if one.layer:
            said = (
                one.layer.get("preference", "Uniform()"),
                one.layer.get("evidence", "ScaledDot()"),
                one.layer.get("closeness", "KL()"),
            )
            paper = f"{one.paper.authors} {one.paper.year}"
            rows.append(f"| {one.title} ({paper}) | `{said[0]}` | `{said[1]}` | `{said[2]}` |")
    return "\n".join(rows)
