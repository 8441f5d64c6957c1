"""The curves of an experiment: test accuracy and losses against epochs, every arm with the range of its seeds.

Read in grey and by the colour-blind: arms differ in line, marker and lightness, not in hue alone.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.errors import MissingExtraError
from fenchel.experiments.arm import ARMS
from fenchel.experiments.record import RunRecord
from fenchel.storage import atomic_path, guarded_writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.experiments.report import ExperimentReport

__all__ = ["STYLES", "write_curves"]

_INK, _GRID = "#1b2130", "#d5d9e0"
STYLES: dict[str, dict[str, Any]] = {
    "vit": {"color": "#1b2130", "linestyle": "-", "marker": "o"},
    "ot-vit": {"color": "#d1500a", "linestyle": (0, (5, 1.5)), "marker": "D"},
    "ot-vit-shared": {"color": "#1f4e9c", "linestyle": (0, (3, 1, 1, 1)), "marker": "s"},
    "ot-vit-alone": {"color": "#e8b80f", "linestyle": (0, (1, 1)), "marker": "^"},
    "vit-extra": {"color": "#9aa0ab", "linestyle": (0, (7, 2)), "marker": "v"},
}
"""How each arm is drawn."""
_SETTINGS: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that figures are the same everywhere
    "font.size": 8,
    "axes.edgecolor": _INK,
}
_PANELS = (
    ("test_accuracy", "test accuracy"),
    ("test_loss", "test loss"),
    ("train_loss", "training loss"),
)
_MOST_MARKERS = 12
_BESIDE = 0.07
_LEGEND_HEIGHT = 0.3


def write_curves(report: ExperimentReport, path: Path) -> None:
    """Write the figure as PNG: a row a data set and learning rate, a column a measure.

    Args:
        report: An experiment with at least one finished run.
        path: The file; its folder must exist.

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
        _draw(report).savefig(written, format="png", dpi=160)
    with atomic_path(path) as temporary, guarded_writing(path):
        temporary.write_bytes(written.getvalue())


def _draw(report: ExperimentReport) -> Figure:
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys((record.data, record.learning_rate) for record in report.records))
    caption = textwrap.wrap(_caption(report), 155, break_on_hyphens=False)
    caption_height = 0.1 + 0.15 * len(caption)
    bottom = caption_height + _LEGEND_HEIGHT
    height = 2.55 * len(rows) + bottom
    figure = Figure(figsize=(8.8, height), facecolor="white")
    for row, (data, rate) in enumerate(rows):
        there = [record for record in report.records if (record.data, record.learning_rate) == (data, rate)]
        for column, (name, label) in enumerate(_PANELS):
            top = 0.3 + 2.55 * row
            axes = figure.add_axes((0.075 + 0.325 * column, 1 - (top + 1.75) / height, 0.25, 1.75 / height))
            _panel(axes, there, name)
            axes.set_ylabel(label)
            axes.set_xlabel("epoch")
            if column == 0:
                axes.set_title(f"{data}, learning rate {rate:g}", fontsize=9, loc="left")
    drawn = {
        label: line
        for axes in figure.axes
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        [drawn[arm.label] for arm in ARMS.values() if arm.label in drawn],
        [arm.label for arm in ARMS.values() if arm.label in drawn],
        loc="lower center", bbox_to_anchor=(0.5, caption_height / height), ncols=len(drawn),
        fontsize=7.5, frameon=False, handlelength=4.0,
    )  # fmt: skip
    figure.text(0.02, 0.1 / height, "\n".join(caption), fontsize=7, color=_INK, va="bottom", parse_math=False)
    return figure


def _panel(axes: Axes, records: Sequence[RunRecord], name: str) -> None:
    from matplotlib.ticker import MaxNLocator

    arms = [arm for arm in STYLES if any(record.arm == arm for record in records)]
    for place, arm in enumerate(arms):
        curves = [record.curves[name] for record in records if record.arm == arm]
        by_epoch = [[value for value in values if value is not None] for values in zip(*curves, strict=True)]
        epochs = [epoch for epoch, values in enumerate(by_epoch, 1) if values]
        tested = [values for values in by_epoch if values]
        every = 1 + len(epochs) // _MOST_MARKERS
        beside = _BESIDE * every * (place - (len(arms) - 1) / 2)
        means = [sum(values) / len(values) for values in tested]
        ranges = [
            [mean - min(values) for mean, values in zip(means, tested, strict=True)],
            [max(values) - mean for mean, values in zip(means, tested, strict=True)],
        ]
        axes.errorbar(
            [epoch + beside for epoch in epochs], means, ranges, **STYLES[arm],
            markersize=3.5, markevery=every, errorevery=every, linewidth=1.2, elinewidth=0.7, capsize=1.8,
            label=ARMS[arm].label,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(color=_GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _caption(report: ExperimentReport) -> str:
    counts = {cell.arm: len(cell.seeds) for cell in report.cells}
    seeds = f"{max(counts.values())} seed{'' if max(counts.values()) == 1 else 's'}"
    state = "" if report.finished else f" Partial: {len(report.records)} of {report.planned} runs."
    return (
        f"{report.title}. Lines: mean of {seeds}; bars: from the least to the greatest "
        f"of them. Arms are drawn a little beside each other. The training loss is measured in training, with "
        f"dropout.{state}"
    )
