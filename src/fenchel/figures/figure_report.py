"""A figure that was made: its numbers, and the files that show them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.arguments import checked
from fenchel.errors import InputError
from fenchel.figures.figure_kind import FigureKind
from fenchel.figures.registry import figure_named
from fenchel.figures.sheet import SHEET_SETTINGS
from fenchel.runs.extras import require_packages
from fenchel.runs.figure import write_figure
from fenchel.storage import Form, check_writable, read_document, schema, write_document

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["EXTRA", "FIGURE_FORM", "FigureReport", "refuse_occupied"]

EXTRA = "report"
"""The extra that brings matplotlib."""

FIGURE_FORM = Form(
    name="figure",
    version=1,
    schema=schema.record(
        {
            "figure": schema.text(),
            "of": schema.optional(schema.text()),
            "caption": schema.text(),
            "numbers": schema.mapping(schema.anything),
        }
    ),
    advice="Replace it with --overwrite, or choose another folder with --out.",
)
"""What the JSON beside a picture is."""

_PICTURES = (".svg", ".png")


@dataclass(frozen=True, repr=False)
class FigureReport:
    """A figure that was made.

    Attributes:
        kind: Which.
        of: What it is made of: a digest of the audit; None where it is made of none.
        numbers: All that it shows, as JSON has it.
    """

    kind: FigureKind
    of: str | None
    numbers: Mapping[str, Any]

    @property
    def name(self) -> str:
        """As ``fenchel figure`` takes it."""
        return self.kind.name

    @property
    def caption(self) -> str:
        """What is seen."""
        return self.kind.caption(self.numbers)

    def draw(self) -> Figure:
        """A figure of matplotlib, to go on with or to show in a notebook.

        Raises:
            MissingExtraError: If matplotlib is not installed.
        """
        require_packages(EXTRA, "matplotlib")
        import matplotlib

        with matplotlib.rc_context(SHEET_SETTINGS):
            return self._laid_out()

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``NAME.json``, ``NAME.svg`` and ``NAME.png``; each is whole or not there.

        Args:
            directory: The folder; made if it is not there.
            overwrite: Replace the figure of something else that it may hold under this name.

        Returns:
            Path of the PNG file.

        Raises:
            InputError: If the folder holds such a figure of something else and ``overwrite`` is false.
            OutputError: If something cannot be written.
            MissingExtraError: If matplotlib is not installed.
        """
        require_packages(EXTRA, "matplotlib")
        folder = Path(directory).expanduser()
        refuse_occupied(folder, self.name, self.of, overwrite=overwrite)
        check_writable(folder)
        write_document(folder / f"{self.name}.json", FIGURE_FORM, self.to_json())
        paths = [folder / f"{self.name}{ending}" for ending in _PICTURES]
        write_figure(self._laid_out, SHEET_SETTINGS, paths, extra=EXTRA)
        return paths[-1]

    @classmethod
    def load(cls, path: str | Path) -> FigureReport:
        """A figure from the JSON file that ``save`` wrote, to be drawn again without measuring.

        Raises:
            InputError: If the file is no figure, one of another version, or was changed after it was written.
        """
        file: Path = checked("text", path, name="path")
        there = read_document(file, FIGURE_FORM)
        return cls(figure_named(there["figure"]), there["of"], there["numbers"])

    def _laid_out(self) -> Figure:
        """Drawn, with its panels in their places: laid out again, a layout with fixed aspects would move on."""
        figure = self.kind.draw(self.numbers)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        # The last bits are rounded otherwise each time, and end up in names within the SVG.
        for axes in figure.axes:
            left, bottom, width, height = (round(side, 9) for side in axes.get_position(original=True).bounds)
            axes.set_position((left, bottom, width, height), which="original")
            axes.apply_aspect()
        return figure

    def to_json(self) -> dict[str, Any]:
        """What the JSON file holds."""
        return {
            "figure": self.name,
            "of": self.of,
            "caption": self.caption,
            "numbers": dict(self.numbers),
        }

    def _repr_png_(self) -> bytes:
        import matplotlib

        content = io.BytesIO()
        with matplotlib.rc_context(SHEET_SETTINGS):
            self.draw().savefig(content, format="png", dpi=120)
        return content.getvalue()

    def __repr__(self) -> str:
        return f"<FigureReport of {self.name}: {self.caption}>"


def refuse_occupied(folder: Path, name: str, of: str | None, *, overwrite: bool) -> None:
    """Refuse a folder that holds a figure of this name that is made of something else.

    Args:
        folder: The folder, whether or not it is there.
        name: Of the figure.
        of: What the one to be made is made of.
        overwrite: Whether that may be replaced.

    Raises:
        InputError: If it does, if its numbers are damaged, or if there are pictures without numbers.
    """
    if overwrite:
        return
    numbers = folder / f"{name}.json"
    if numbers.exists():
        there = read_document(numbers, FIGURE_FORM)
        if (there["figure"], there["of"]) != (name, of):
            raise InputError(
                f"{numbers} holds the figure {there['figure']} of something else than what was asked for. "
                f"{FIGURE_FORM.advice}"
            )
        return
    for ending in _PICTURES:
        if (picture := folder / f"{name}{ending}").exists():
            raise InputError(
                f"{picture} is there without {numbers.name}, the numbers that it would be of. "
                f"{FIGURE_FORM.advice}"
            )
