"""A comparison as a page and as JSON."""

from __future__ import annotations

from pathlib import Path

from fenchel.comparing.comparison import SCHEMA, Comparison
from fenchel.comparing.html import render_html
from fenchel.comparing.table import finding
from fenchel.errors import InputError
from fenchel.io.schema import OpenRecord
from fenchel.io.storage import Form, check_writable, read_document, write_document, write_text

__all__ = ["ComparisonReport"]

_JSON, _PAGE = "compare.json", "compare.html"


class _SavedAudit(OpenRecord):
    name: str


class _SavedComparison(OpenRecord):
    audits: list[_SavedAudit]


_FORM = Form(
    name="comparison",
    version=SCHEMA,
    schema=_SavedComparison,
    advice="Replace it with --overwrite, or choose another folder with --out.",
)


class ComparisonReport(Comparison):
    """Audits side by side, and the files that show them."""

    def save(self, directory: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``compare.json`` and ``compare.html``; each is whole or not there.

        Args:
            directory: The folder; made if it is not there.
            overwrite: Replace the other comparison that the folder may hold.

        Returns:
            Path of ``compare.html``.

        Raises:
            InputError: If the folder holds another comparison and ``overwrite`` is false.
            OutputError: If something cannot be written.
        """
        folder = Path(directory).expanduser()
        page = render_html(self)
        check_writable(folder)
        if not overwrite and (folder / _JSON).exists():
            there = read_document(folder / _JSON, _FORM)
            if there["audits"] != self.to_json()["audits"]:
                names = ", ".join(audit["name"] for audit in there["audits"])
                raise InputError(f"{folder} holds another comparison, of {names[:200]}. {_FORM.advice}")
        write_document(folder / _JSON, _FORM, self.to_json())
        write_text(folder / _PAGE, page)
        return folder / _PAGE

    def __repr__(self) -> str:
        return f"<ComparisonReport of {', '.join(self.names)}: {len(self.keys)} heads. {finding(self)}>"
