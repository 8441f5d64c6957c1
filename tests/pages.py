"""Pages of the documentation, whose Python blocks run in tests, and pages in a browser."""

import re
from collections import Counter
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    """The text of a page, given its path in the repository."""
    return (ROOT / name).read_text()


def python_blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page(name), flags=re.DOTALL)


def run_blocks(name: str) -> dict[str, Any]:
    """Run its Python blocks one after the other, and return the names that they bind."""
    names: dict[str, Any] = {}
    for block in python_blocks(name):
        exec(compile(block, name, "exec"), names)  # noqa: S102 - our own pages
    return names


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


def shown(table: Any, width: int = 80) -> str:
    """What a terminal of this width shows of a table."""
    from rich.console import Console

    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def assert_unabridged(table: Any) -> None:
    """A terminal of any width shows every character of a table."""
    wide, *narrower = (Counter(re.sub(r"[\s─]", "", shown(table, width))) for width in (1_000, 120, 80, 60))
    assert all(one == wide for one in narrower)


MINUS = "\N{MINUS SIGN}"


class Watched:
    """A page with everything that it should not do: complaints, requests and dialogs."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.troubles: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("request", self._request)
        page.on("dialog", self._dialog)

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"console: {message.text}")

    def _request(self, request: Any) -> None:
        if not request.url.startswith(("file:", "about:", "data:")):
            self.troubles.append(f"request: {request.url}")

    def _dialog(self, dialog: Any) -> None:
        self.troubles.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def overflow(self) -> int:
        return self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )

    def column(self, place: int) -> list[str]:
        return self.page.locator(f"#heads-table tbody td:nth-child({place + 1})").all_text_contents()


def cell(metric: str, index: int) -> str:
    """The selector of a cell of a heat map."""
    return f"table.heat[data-metric={metric}] td[data-row='{index}']"
