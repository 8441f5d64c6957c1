"""The look of the pictures of the docs, and the command line of the scripts that make them."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from torch import Tensor

INK, MUTED, GRID = "#1b2130", "#6b7484", "#d5d9e0"
LINES: dict[str, dict[str, Any]] = {
    "first_order": {"color": "#2f7fc1", "marker": "o", "linestyle": (0, (5, 1.5))},
    "second_order": {"color": "#7fb2dc", "marker": "s", "linestyle": (0, (4, 2))},
    "exact": {"color": "#8a2b06", "marker": "D", "linestyle": "-"},
    "bound": {"color": MUTED, "marker": "v", "linestyle": (0, (1, 1))},
    "prediction": {"color": "#d98a00", "marker": "x", "linestyle": (0, (3, 1, 1, 1))},
    "model": {"color": "#1f4e9c", "marker": "o", "linestyle": "-"},
    "twin": {"color": "#d1500a", "marker": "^", "linestyle": (0, (4, 2)), "markerfacecolor": "white"},
}
COLOURS = "YlGnBu"
SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.edgecolor": INK, "text.color": INK, "axes.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 8.5, "axes.titlelocation": "left",
    "axes.grid": False, "grid.color": GRID, "grid.linewidth": 0.5, "axes.axisbelow": True, "legend.frameon": False,
    "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7, "lines.linewidth": 1.3, "lines.markersize": 4,
}  # fmt: skip


def sheet(height: float) -> Figure:
    """An empty picture as wide as a page, whose height is in inches."""
    return Figure(figsize=(7.2, height), facecolor="white", layout="constrained")


def plain(value: Any) -> Any:
    """Numbers as JSON holds them, rounded to six digits; what is not finite is None."""
    if isinstance(value, Tensor):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if abs(value) < float("inf") else None
    return value


def main(name: str, measure: Callable[..., dict[str, Any]], draw: Callable[[dict[str, Any]], Figure]) -> None:
    """Measure and draw one picture: NAME.png, and NAME.json with the numbers that it shows."""
    root = Path(__file__).parents[1]
    parser = argparse.ArgumentParser(description=f"Make {name}.png and {name}.json.")
    images, results = root / "images" / "figures", root / "results" / "figures"
    parser.add_argument("--images", type=Path, default=images, help="folder of the picture")
    parser.add_argument("--numbers", type=Path, default=results, help="folder of the numbers")
    parser.add_argument("given", nargs="*", help="folder of an audit, for pictures that are made of one")
    told = parser.parse_args()
    numbers = plain(measure(*told.given))
    for folder in (told.images, told.numbers):
        folder.mkdir(parents=True, exist_ok=True)
    (told.numbers / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    with mpl.rc_context(SETTINGS):
        draw(numbers).savefig(told.images / f"{name}.png", dpi=200)
    print(told.images / f"{name}.png")
