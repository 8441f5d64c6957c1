"""The pictures of docs/figures.md, drawn from the numbers that are recorded for them, in few colours and so small."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from fenchel.figures import FIGURES, FigureReport
from fenchel.storage import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PICTURES", "RECORDS", "small_picture", "write_pictures"]

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "images" / "figures"
RECORDS = ROOT / "docs" / "results" / "figures"
"""What ``fenchel figure`` wrote: its JSON files."""

_COLOURS = 160
_DOTS_PER_INCH = 160


def small_picture(figure: Figure) -> bytes:
    """A figure of matplotlib as PNG in a palette of its own colours."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=_DOTS_PER_INCH)
    picture = Image.open(drawn).convert("RGB")
    picture.quantize(_COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()


def write_pictures() -> None:
    """Draw every picture anew, after a change of how figures look or of what is recorded."""
    for name in FIGURES:
        with atomic_path(PICTURES / f"{name}.png") as temporary:
            temporary.write_bytes(small_picture(FigureReport.load(RECORDS / f"{name}.json").draw()))


if __name__ == "__main__":
    write_pictures()
