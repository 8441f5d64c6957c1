"""The pages of the catalogue, made from ``fenchel.catalogue``: a page a family, a section a mechanism."""

from __future__ import annotations

import re
from html import escape

import torch
from torch import Tensor

from fenchel.catalogue import ENTRIES, FAMILIES, NOTES, Entry
from fenchel.catalogue.parts import AbstractFiniteParts
from fenchel.catalogue.registry import differences, entry_lines
from fenchel.drawing import short
from website.marks import between_marks
from website.weights_picture import weights_picture

__all__ = ["catalogue_pages", "family_page", "with_overview"]

_LABELS = {"first_order": "first order", "second_order": "second order", "exact": "exact"}


def catalogue_pages() -> dict[str, str]:
    """A page for each family, by its path on the site."""
    return {
        family_page(family): "\n".join([f"# {family}", "", *_note(family), *map(_section, _entries(family))])
        for family in FAMILIES
    }


def with_overview(markdown: str) -> str:
    """A page with a table of all entries between its marks, where it has some.

    Example:
        >>> with_overview("nothing marked")
        'nothing marked'
    """
    return between_marks(markdown, "catalogue", lambda name: _TABLES[name]() if name in _TABLES else None)


def _overview() -> str:
    lines = []
    for family in FAMILIES:
        lines += [
            f"## {family}",
            "",
            "| Mechanism | Name | Preference | Evidence | Verdict |",
            "|---|---|---|---|---|",
        ]
        lines += [
            f'| [{one.title}]({family_page(family)}#{one.name}) | <code class="name">{one.name}</code> '
            f"| {_cell(one.preference)} | {_cell(one.evidence)} | {one.verdict.value} |"
            for one in _entries(family)
        ]
        lines.append("")
    return "\n".join(lines)


def _entries(family: str) -> list[Entry]:
    return [one for one in ENTRIES.values() if one.family == family]


def family_page(family: str) -> str:
    """The path of a family's page on the site.

    Example:
        >>> family_page("Scores and places")
        'catalogue/scores-and-places.md'
    """
    return f"catalogue/{re.sub(r'[^a-z0-9]+', '-', family.lower()).strip('-')}.md"


def _note(family: str) -> list[str]:
    return [_cell(NOTES[family]), ""] if family in NOTES else []


def _section(entry: Entry) -> str:
    said = dict(entry_lines(entry))
    formula, meaning, _ = (said.pop(label) for label in ("formula", "meaning", "verdict"))
    layer = said.pop("as a layer", None)
    return "\n".join(
        [
            f"## {entry.title} {{#{entry.name}}}",
            "",
            f'<pre class="equation">{_signs(formula)}</pre>',
            "",
            f"{_cell(meaning)} {_verdict(entry)}",
            "",
            *_picture(entry),
            "| Part | Here |",
            "|---|---|",
            *(f"| {label} | {_cell(text)} |" for label, text in said.items()),
            *([f"| as a layer | `{layer}` |"] if layer else []),
            "",
            *_measured(entry),
            "```console",
            f"fenchel catalogue {entry.name}",
            "```",
            "",
        ]
    )


def _verdict(entry: Entry) -> str:
    verdict = f"**{entry.verdict.value.capitalize()}"
    return f"{verdict}**: {_cell(entry.because)}" if entry.because else f"{verdict}.**"


@torch.no_grad()
def _picture(entry: Entry) -> list[str]:
    asked = entry.run(entry.estimators[0]).inferences if entry.estimators else ()
    finite = [number for number, parts in enumerate(asked, start=1) if isinstance(parts, AbstractFiniteParts)]
    if not finite:
        return ["There are no weights on keys to draw.", ""]
    panels = _panels(entry, asked[finite[0] - 1])
    drawn = weights_picture(panels, f"Weights of {entry.title}: {', '.join(panels)}")
    which = "" if len(asked) == 1 else f", inference {finite[0]} of {len(asked)}"
    caption = f"<figcaption>Its example, one head{which}: queries down, keys across.</figcaption>"
    return [f'<figure class="weights">{drawn}{caption}</figure>', ""]


@torch.no_grad()
def _measured(entry: Entry) -> list[str]:
    measured = differences(entry)
    if not measured:
        return []
    return [
        "| Estimator, on its example | Gap, at most | Total variation from exact | Output from exact |",
        "|---|---:|---:|---:|",
        *(
            f"| {_LABELS[one.estimator]} | {short(one.gap)} | {short(one.total_variation)} | {short(one.output)} |"
            for one in measured
        ),
        "",
    ]


def _panels(entry: Entry, parts: AbstractFiniteParts) -> dict[str, Tensor]:
    answers = {
        _LABELS[estimator]: parts.weights(estimator)
        for estimator in entry.estimators
        if estimator in ("first_order", "exact")
    }
    panels = {"preference u": parts.believed(), **answers}
    return {name: weights[0, 0] for name, weights in panels.items()}


def _cell(said: str) -> str:
    """Words of an entry among Markdown: no sign of theirs is one of Markdown's."""
    return re.sub(r"([|*_\\`\[\]$])", r"\\\1", _signs(said))


_BASE = r"(?:(?<![A-Za-z_])(?:argmin|mean|[^\W\d_][\u0303-\u0305]?)|[)\]⁾])"
_BELOW = re.compile(rf"({_BASE})_(\{{[^{{}}]*\}}|[^\W_ᵀ²]{{1,4}})(?![^\Wᵀ²])")
_ABOVE = re.compile(r"(?<=[^\W_]|[)\]>])\^(\{[^{}]*\}|[^\W_]+)")


def _signs(said: str) -> str:
    """HTML in which an index stands below its letter, and an exponent above: one of more than a word is in braces.

    Example:
        >>> _signs("x_i, R_{j−i}, 2^{−h}")
        'x<sub>i</sub>, R<sub>j−i</sub>, 2<sup>−h</sup>'
    """
    return _ABOVE.sub(_above, _BELOW.sub(_below, escape(said, quote=False)))


def _below(found: re.Match[str]) -> str:
    return f"{found[1]}<sub>{found[2].strip('{}')}</sub>"


def _above(found: re.Match[str]) -> str:
    return f"<sup>{found[1].strip('{}')}</sup>"


def _layers() -> str:
    """The entries that are layers of this package, as a table in Markdown: by preference, evidence and closeness."""
    rows = ["| Mechanism | Preference | Evidence | Closeness |", "|---|---|---|---|"]
    for one in ENTRIES.values():
        if one.layer:
            said = (
                one.layer.get("preference", "Uniform()"),
                one.layer.get("evidence", "ScaledDot()"),
                one.layer.get("closeness", "KL()"),
            )
            paper = f"{one.paper.authors} {one.paper.year}"
            rows.append(f"| {one.title} ({paper}) | `{said[0]}` | `{said[1]}` | `{said[2]}` |")
    return "\n".join(rows)


_TABLES = {"overview": _overview, "layers": _layers}
