"""The curves of a training: loss and accuracy by epoch, told apart by line and marker as well as by lightness."""

from __future__ import annotations

import string
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.runs.figure import write_figure
from fenchel.runs.style import GRID, INK, SETTINGS
from fenchel.train.result import TrainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CURVES_FILE", "write_curves"]

CURVES_FILE = "curves.png"
"""The file's name in a training's folder."""

_STYLE: dict[str, dict[str, Any]] = {
    "train": {"label": "training", "color": "#5b9bd5", "marker": "o", "linestyle": (0, (4, 2))},
    "validation": {"label": "validation", "color": "#3d7d46", "marker": "s", "linestyle": (0, (1, 1))},
    "test": {"label": "test", "color": "#8a2b06", "marker": "D", "linestyle": "-"},
}
_MOST_MARKERS = 25
_TITLE_WIDTH = 112


def write_curves(result: TrainResult, directory: Path) -> Path:
    """Write ``curves.png``.

    Args:
        result: A training with at least one epoch.
        directory: An existing folder.

    Returns:
        The file's path.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        OutputError: If the file cannot be written; an earlier one is then intact.
    """
    path = directory / CURVES_FILE
    write_figure(lambda: _draw(result), SETTINGS, [path], extra="train")
    return path


def _draw(result: TrainResult) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), facecolor="white", layout="constrained")
    metrics = result.task.metrics
    (panels,) = figure.subplots(1, len(metrics), squeeze=False)
    for letter, axes, metric in zip(string.ascii_lowercase, panels, metrics, strict=False):
        _panel(axes, result.epochs, metric.name, f"({letter}) {metric.title}", metric.unit)
    figure.suptitle(
        textwrap.fill(_title(result), _TITLE_WIDTH, break_on_hyphens=False),
        fontsize=8,
        color=INK,
        parse_math=False,
    )
    return figure


def _panel(axes: Axes, epochs: Sequence[dict[str, Any]], measure: str, title: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for split, style in _STYLE.items():
        name = f"{split}_{measure}"
        if not any(name in record for record in epochs):
            continue
        records = [record for record in epochs if record[name] is not None]
        axes.plot(
            [record["epoch"] for record in records],
            [record[name] for record in records],
            markersize=3.5, markevery=max(1, len(records) // _MOST_MARKERS), linewidth=1.2, **style,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=7)


def _title(result: TrainResult) -> str:
    task, data = result.task, result.description["data"]
    note = f" ({data['note']})" if data["note"] else ""
    count, headline = len(result.epochs), result.headline
    end = (
        ""
        if headline is None
        else f": test {task.headline} {headline:.4f} after {count} epoch{'s'[count == 1 :]}"
    )
    examples = f"{data[f'train_{task.unit}']:,} {task.unit} of {data['name']}{note}"
    trained = [
        f"{result.options.model_title} on {examples}",
        result.options.manner,
        f"seed {result.options.seed}",
    ]
    return ", ".join(filter(None, trained)) + end
