"""Pages of documentation that hold results: what stands between two marks is made from the recorded numbers."""

from __future__ import annotations

import re
from pathlib import Path

from fenchel.errors import InputError
from fenchel.experiments.figure import write_curves
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.table import markdown_body
from fenchel.storage import write_text

__all__ = ["fill_page", "filled"]

_MARKED = re.compile(r"(<!-- results: ([\w.-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)


def fill_page(page: Path, results: Path, images: Path) -> tuple[str, ...]:
    """Put recorded results into a page, and draw their curves.

    The page marks each place by ``<!-- results: NAME -->`` and ``<!-- end of results -->``, each on its line; the
    numbers are in ``NAME.json``, a copy of an experiment's ``results.json``. Names without such a file are left alone.

    Args:
        page: A Markdown file.
        results: The folder of ``NAME.json``.
        images: The folder in which ``NAME.png`` is drawn.

    Returns:
        The names that were filled in.

    Raises:
        InputError: If the page has no marks, or a file holds no results.
        OutputError: If a file cannot be written.
        MissingExtraError: If matplotlib is not installed.
    """
    text = page.read_text(encoding="utf-8")
    names = tuple(match[2] for match in _MARKED.finditer(text))
    if not names:
        raise InputError(f"{page} marks no place for results; expected <!-- results: NAME --> and its end.")
    there = {
        name: ExperimentReport.load(results / f"{name}.json")
        for name in names
        if (results / f"{name}.json").exists()
    }
    for name, report in there.items():
        write_curves(report.results, images / f"{name}.png")
    write_text(page, filled(text, there))
    return tuple(there)


def filled(text: str, reports: dict[str, ExperimentReport]) -> str:
    """A page's text with what the reports say between its marks.

    Args:
        text: The page.
        reports: By the name in the mark.

    Returns:
        The page; places whose name has no report are as they were.
    """

    def replaced(match: re.Match[str]) -> str:
        report = reports.get(match[2])
        if report is None:
            return match[0]
        watched = report.of.task.watched.capitalize()
        figure = f"![{watched} {report.of.headline.name} and losses against epochs](images/{match[2]}.png)"
        numbers = f"All numbers: [{match[2]}.json](results/{match[2]}.json)."
        return f"{match[1]}\n{markdown_body(report.results)}\n{figure}\n\n{numbers}\n\n{match[3]}"

    return _MARKED.sub(replaced, text)
