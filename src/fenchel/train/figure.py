"""The curves of a training: loss and accuracy by epoch, told apart by line and marker as well as by lightness."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.errors import MissingExtraError
from fenchel.storage import atomic_path, guarded_writing
from fenchel.train.result import TrainResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["CURVES_FILE", "write_curves"]

CURVES_FILE = "curves.png"
"""The file's name in a training's folder."""

_INK, _GRID = "#1b2130", "#d5d9e0"
_STYLE: dict[str, dict[str, Any]] = {
    "train": {"label": "training", "color": "#5b9bd5", "marker": "o", "linestyle": (0, (4, 2))},
    "test": {"label": "test", "color": "#8a2b06", "marker": "D", "linestyle": "-"},
}
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "font.size": 8,
    "axes.edgecolor": _INK,
}
_MOST_MARKERS = 25
_TITLE_WIDTH = 112
_FURTHER_TEMPLATES = {
    "zero": " (u = 0 on further templates)",
    "shared": " (u shared with further templates)",
    "none": "",
}


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
    try:
        import matplotlib
    except ImportError as error:
        raise MissingExtraError("matplotlib", "train") from error
    with matplotlib.rc_context(_SETTINGS):
        written = io.BytesIO()
        _draw(result).savefig(written, format="png", dpi=160)
    path = directory / CURVES_FILE
    with atomic_path(path) as temporary, guarded_writing(path):
        temporary.write_bytes(written.getvalue())
    return path


def _draw(result: TrainResult) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.0), facecolor="white", layout="constrained")
    left, right = figure.subplots(1, 2)
    _panel(left, result.epochs, "loss", "(a) Loss", "cross-entropy in nats")
    _panel(right, result.epochs, "accuracy", "(b) Accuracy", "share of images")
    figure.suptitle(
        textwrap.fill(_title(result), _TITLE_WIDTH, break_on_hyphens=False), fontsize=8, color=_INK
    )
    return figure


def _panel(axes: Axes, epochs: Sequence[dict[str, Any]], measure: str, title: str, label: str) -> None:
    from matplotlib.ticker import MaxNLocator

    for split, style in _STYLE.items():
        records = [record for record in epochs if record[f"{split}_{measure}"] is not None]
        axes.plot(
            [record["epoch"] for record in records],
            [record[f"{split}_{measure}"] for record in records],
            markersize=3.5, markevery=max(1, len(records) // _MOST_MARKERS), linewidth=1.2, **style,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("epoch")
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=9, loc="left")
    axes.grid(color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, fontsize=7)


def _title(result: TrainResult) -> str:
    options, data = result.options, result.description["data"]
    extra = _FURTHER_TEMPLATES[options.extra_preference or "none"]
    note = f" ({data['note']})" if data["note"] else ""
    accuracy = result.test_accuracy
    count = len(result.epochs)
    end = (
        ""
        if accuracy is None
        else f": test accuracy {accuracy:.4f} after {count} epoch{'' if count == 1 else 's'}"
    )
    return (
        f"{options.model}{extra} on {data['train_images']:,} images of {data['name']}{note}, recipe {options.recipe}, "
        f"seed {options.seed}{end}"
    )
