"""A page in a headless browser, with everything that it should not do."""

from typing import Any

__all__ = ["MINUS", "Watched", "cell"]

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
