"""A reproduction as JSON and as Markdown."""

from __future__ import annotations

from pathlib import Path

from fenchel.io.schema import OpenRecord
from fenchel.io.storage import Form, check_writable, write_document, write_text
from fenchel.reproducing.reproduction import SCHEMA, Reproduction
from fenchel.reproducing.table import finding, markdown

__all__ = ["ReproductionReport"]


class _SavedReproduction(OpenRecord):
    figure: str


_FORM = Form(
    name="reproduction",
    version=SCHEMA,
    schema=_SavedReproduction,
    advice="Make it again: run the command with --resume.",
)


class ReproductionReport(Reproduction):
    """The papers' numbers beside ours, and the files that show them."""

    def save(self, directory: str | Path) -> Path:
        """Write ``FIGURE.json`` and ``FIGURE.md``; each is whole or not there.

        Args:
            directory: The folder; made if it is not there.

        Returns:
            Path of the Markdown file.

        Raises:
            OutputError: If something cannot be written.
        """
        folder = Path(directory).expanduser()
        check_writable(folder)
        write_document(folder / f"{self.figure}.json", _FORM, self.to_json())
        page = folder / f"{self.figure}.md"
        write_text(page, markdown(self))
        return page

    def __repr__(self) -> str:
        return f"<Reproduction of {self.figure} with {self.model}. {finding(self)}>"
