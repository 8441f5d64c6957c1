"""The picture on the first page: ``python docs/figures/report_map.py audit/report.html docs/images/report-map.png``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

__all__ = ["draw_report_map"]

_WIDTH = 400  # a phone's: what is legible there is legible anywhere
_DENSITY = 3
# What the report says and draws itself, with the rest of it taken away.
_ONLY_THESE = """() => {
  const tiles = document.querySelector(".tiles"), map = document.createElement("div");
  [...tiles.children].slice(2).forEach((tile) => tile.remove());
  map.className = "maps";
  map.style.cssText = "display: block; margin-top: 1.2rem";
  map.append(document.querySelector('table.heat[data-metric="total_variation"]').closest("figure"));
  const note = document.createElement("p");
  note.className = "note";
  note.textContent = "Rows are layers, columns heads.";
  document.body.replaceChildren(tiles, map, note);
  document.body.style.cssText = "margin: 0; max-width: none; padding: 12px 14px 4px";
}"""


def draw_report_map(report: Path, out: Path) -> None:
    """Draw two of a report's numbers and its map of total variation, in Chromium.

    Args:
        report: The ``report.html`` of ``make audit``.
        out: Where the PNG goes.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": _WIDTH, "height": 400}, device_scale_factor=_DENSITY)
        page.set_default_timeout(120_000)
        page.goto(report.absolute().as_uri())
        page.evaluate(_ONLY_THESE)
        page.locator("body").screenshot(path=out)
        browser.close()


if __name__ == "__main__":
    draw_report_map(Path(sys.argv[1]), Path(sys.argv[2]))
