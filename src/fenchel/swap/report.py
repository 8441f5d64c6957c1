"""A finished swap, as the files of a folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Annotated, Any

from fenchel.errors import InputError
from fenchel.io.schema import Field, OpenRecord, Place, Positive, Record, Whole
from fenchel.io.storage import Form, check_writable, read_document, write_document, write_text
from fenchel.swap.figure import write_figures
from fenchel.swap.html import render_html
from fenchel.swap.state import SCHEMA
from fenchel.swap.swap_tables import SwapTables

__all__ = ["FILES", "SwapReport"]

FILES = ("swap.json", "swap.csv", "swap.svg", "swap.png", "swap.html")
"""What a swap writes for people, in the order in which it is written."""


class _SavedArm(OpenRecord):
    where: str
    estimator: str
    alpha: Positive
    control: bool
    layer: Place | None
    head: Place | None
    module: str | None


class _SavedManifest(OpenRecord):
    model: str


class _SavedResults(Record):
    manifest: _SavedManifest
    finding: str
    units: dict[str, Whole]
    quality: str | None
    arms: Annotated[list[_SavedArm], Field(min_length=1)]
    layers: list[dict[str, Any]]
    against_control: list[dict[str, Any]]
    smoothing: list[dict[str, Any]]


RESULTS_FORM = Form(
    name="table of a swap",
    version=SCHEMA,
    schema=_SavedResults,
    advice="Write it again: run the swap's command with --resume once that file is removed.",
)
"""What ``swap.json`` holds."""

_UNSEALED = 1


class SwapReport(SwapTables):
    """What was swapped and what came of it, and the files that show it.

    Attributes:
        manifest: The model, the text, the options and the versions.
        results: The tables, see ``fenchel.swap.results.tabulated``.
    """

    def save(self, directory: str | Path) -> Path:
        """Write every file into a folder; each is whole or not there.

        Args:
            directory: The folder; made if it is not there.

        Returns:
            Path of ``swap.png``.

        Raises:
            OutputError: If something cannot be written.
            MissingExtraError: If matplotlib or jinja2 is not installed.
        """
        folder = Path(directory).expanduser()
        check_writable(folder)
        saved = {"manifest": self.manifest, "finding": self.finding, **self.results}
        write_document(folder / FILES[0], RESULTS_FORM, saved)
        write_text(folder / "swap.csv", self.csv())
        figure = write_figures(self, folder)
        write_text(folder / "swap.html", render_html(self))
        return figure

    def csv(self) -> str:
        """The arms as a table with commas, a line an arm; empty where a number is missing."""
        written = io.StringIO()
        names = list(dict.fromkeys(name for record in self.arms for name in record))
        writer = csv.DictWriter(written, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.arms)
        return written.getvalue()

    @classmethod
    def load(cls, directory: str | Path) -> SwapReport:
        """Read a swap from its folder, exactly as it was saved.

        Raises:
            InputError: If the folder holds none, one of another version, or one that was changed after it was written.
        """
        path = Path(directory).expanduser() / FILES[0]
        if not path.is_file():
            raise InputError(
                f"{directory} holds no swap ({FILES[0]} is not there). Give the folder that fenchel swap --out made."
            )
        saved = read_document(path, RESULTS_FORM, unsealed_version=_UNSEALED)
        results = {name: saved[name] for name in saved if name not in ("manifest", "finding")}
        return cls(saved["manifest"], results)
