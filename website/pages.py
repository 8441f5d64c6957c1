"""Pages and tables that are made of the catalogue, the docstrings, the options, the notebooks and the repository."""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import typer
from jinja2 import Environment, FileSystemLoader

from fenchel.catalogue import ENTRIES, Entry
from fenchel.catalogue.parts import AbstractFiniteParts
from fenchel.catalogue.registry import FAMILIES, NOTES, differences, entry_lines
from fenchel.cli.commands import application
from fenchel.drawing import short
from website.docstrings import as_markdown

ROOT = Path(__file__).resolve().parents[1]
ROOT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "RELEASING.md")
# In the order of the navigation. A name is documented on the page of the package that defines it, where that is here.
PACKAGES = tuple(re.findall(r"- api/([\w.]+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))

_BASE = r"(?:(?<![A-Za-z_])(?:argmin|mean|[^\W\d_][\u0303-\u0305]?)|[)\]⁾])"
_BELOW = re.compile(rf"({_BASE})_(?:\{{([^{{}}]*)\}}|([^\W_ᵀ²]{{1,4}}))(?![^\Wᵀ²])")
_ABOVE = re.compile(r"(?<=[^\W_]|[)\]>])\^(?:\{([^{}]*)\}|([^\W_]+))")


def generated_pages() -> dict[str, str]:
    """What is not in ``docs``, by its path on the site: Markdown."""
    notebooks = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
    return (
        {name.lower(): (ROOT / name).read_text(encoding="utf-8") for name in ROOT_PAGES}
        | {
            f"notebooks/{path.stem}.md": made("notebook.md", name=path.name, **json.loads(path.read_text()))
            for path in notebooks
        }
        | {f"api/{package}.md": _reference(package) for package in PACKAGES}
        | {
            family_page(family): made("family.md", family=family, note=NOTES.get(family), entries=entries)
            for family, entries in _families().items()
        }
    )


def with_tables(markdown: str) -> str:
    """A page with its tables between ``<!-- options: COMMAND -->`` or ``<!-- catalogue: TABLE -->`` and their ends."""
    return re.sub(
        r"(<!-- (options|catalogue): (\w+) -->\n).*?(?=<!-- end of \2 -->)",
        lambda found: (
            f"{found[1]}\n{_command(found[3]) if found[2] == 'options' else made(f'{found[3]}.md')}\n"
        ),
        markdown,
        flags=re.DOTALL,
    )


def made(template: str, **values: Any) -> str:
    """What a template of ``website/templates`` makes of values."""
    return _templates().get_template(template).render(**values)


def picture(panels: dict[str, list[list[float]]], described: str) -> str:
    """Weights of a small inference, as an ``svg`` element in the colour of the text.

    Args:
        panels: (queries, keys) each, from 0 to 1, by what is written above.
        described: What a screen reader says.
    """
    return made("weights.svg", panels=panels, described=described)


@cache
def _templates() -> Environment:
    folder = FileSystemLoader(ROOT / "website" / "templates")
    result = Environment(loader=folder, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    result.filters |= {"cell": _cell, "short": short, "signs": _signs}
    result.globals |= {
        "differences": torch.no_grad()(differences),
        "drawn": _drawn,
        "families": _families(),
        "page_of": family_page,
        "picture": picture,
        "parts": lambda entry: dict(entry_lines(entry)),
    }
    return result


def _command(name: str) -> str:
    command: Any = typer.main.get_command(application).commands[name]  # pyright: ignore[reportAttributeAccessIssue]
    shown = [
        one
        for one in command.params
        if one.param_type_name == "option" and not one.hidden and one.name != "help"
    ]
    return made("options.md", options=shown)


def _families() -> dict[str, list[Entry]]:
    return {family: [one for one in ENTRIES.values() if one.family == family] for family in FAMILIES}


def family_page(family: str) -> str:
    """The path of a family's page on the site.

    Example:
        >>> family_page("Scores and positions")
        'catalogue/scores-and-positions.md'
    """
    return f"catalogue/{re.sub(r'[^a-z0-9]+', '-', family.lower()).strip('-')}.md"


@torch.no_grad()
def _drawn(entry: Entry) -> tuple[int, int, dict[str, list[list[float]]]]:
    """Which of how many inferences of an entry's example is drawn, and its weights by what they are."""
    asked = entry.run(entry.estimators[0]).inferences if entry.estimators else ()
    for number, parts in enumerate(asked, start=1):
        if isinstance(parts, AbstractFiniteParts):
            answers = [one for one in entry.estimators if one in ("first_order", "exact")]
            panels = {one.replace("_", " "): parts.weights(one) for one in answers}
            panels = {"preference u": parts.preference_weights(), **panels}
            return number, len(asked), {name: one[0, 0].clamp(0, 1).tolist() for name, one in panels.items()}
    return 0, len(asked), {}


def _cell(said: str) -> str:
    """Words of an entry among Markdown: no sign of theirs is one of Markdown's."""
    return re.sub(r"([|*_\\`\[\]$])", r"\\\1", _signs(said))


def _signs(said: str) -> str:
    """HTML in which an index stands below its letter, and an exponent above: one of more than a word is in braces.

    Example:
        >>> _signs("x_i, R_{j−i}, 2^{−h}")
        'x<sub>i</sub>, R<sub>j−i</sub>, 2<sup>−h</sup>'
    """
    below = _BELOW.sub(r"\1<sub>\2\3</sub>", escape(said, quote=False))
    return _ABOVE.sub(r"<sup>\1\2</sup>", below)


def _reference(package: str) -> str:
    """The page of a package: what mkdocstrings documents there, and a table of what other pages document."""
    module = import_module(package)
    own, elsewhere = [], []
    for name, value in _public(package).items():
        page = value.__name__ if inspect.ismodule(value) else _homes().get(id(value), package)
        said = f"`{page if inspect.ismodule(value) else name}`"
        if page == package:
            own.append(f"::: {package}.{name}\n")
            continue
        place = "" if inspect.ismodule(value) else f"#{page}.{name}"
        linked = f"[{said}]({page}.md{place})" if page in PACKAGES else said
        elsewhere.append(f"| {linked} | {_summary(value).replace('|', '&#124;')} |")
    table = ["| Name | What it is |", "|---|---|", *elsewhere, ""] if elsewhere else []
    return "\n".join([f"# `{package}`", "", _summary(module), "", *table, *own])


def _public(package: str) -> dict[str, Any]:
    module = import_module(package)
    return {name: getattr(module, name) for name in module.__all__ if not name.startswith("__")}


@cache
def _homes() -> dict[int, str]:
    return {id(value): package for package in PACKAGES[1:] for value in _public(package).values()}


def _summary(value: Any) -> str:
    return " ".join(as_markdown(f"{inspect.getdoc(value)}".split("\n\n")[0]).split())
