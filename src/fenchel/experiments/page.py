"""Pages of documentation that hold results: what stands between two marks is made from the recorded numbers."""

from __future__ import annotations

from pathlib import Path

from fenchel.errors import InputError
from fenchel.experiments.figure import write_curves
from fenchel.experiments.report import ExperimentReport
from fenchel.experiments.table import markdown_body
from fenchel.storage import between_marks, marked_names, write_text

__all__ = ["fill_page", "filled"]

_KIND = "results"


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
    names = marked_names(text, _KIND)
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

    def made(name: str) -> str | None:
        report = reports.get(name)
        if report is None:
            return None
        watched = report.of.task.watched.capitalize()
        figure = f"![{watched} {report.of.headline.name} and losses against epochs](images/{name}.png)"
        return (
            f"{markdown_body(report.results)}\n{figure}\n\nAll numbers: [{name}.json](results/{name}.json)."
        )

    return between_marks(text, _KIND, made)
