"""The curves of an experiment: what is measured against epochs, every arm with the range of its seeds.

Read in grey and by the colour-blind: arms differ in line, marker and lightness, not in hue alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.experiments.arm import Arm
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.record import RunRecord
from fenchel.experiments.results import Results
from fenchel.runs.figure import write_figure
from fenchel.runs.style import GRID, INK, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["STYLES", "write_curves"]

STYLES: tuple[dict[str, Any], ...] = (
    {"color": INK, "linestyle": "-", "marker": "o"},
    {"color": "#d1500a", "linestyle": (0, (5, 1.5)), "marker": "D"},
    {"color": "#1f4e9c", "linestyle": (0, (3, 1, 1, 1)), "marker": "s"},
    {"color": "#e8b80f", "linestyle": (0, (1, 1)), "marker": "^"},
    {"color": "#9aa0ab", "linestyle": (0, (7, 2)), "marker": "v"},
)
"""How arms are drawn, in the order in which their experiment has them; further ones have other markers inside."""
_FILLS = ("full", "none", "left", "bottom")
_MOST_MARKERS = 12
_BESIDE = 0.07
_WIDEST = 0.35  # of an epoch, from the first arm to the last
_LEGEND_ROW = 0.2  # inches, as the next two
_LEGEND_MARGIN = 0.1
_LEGEND_WIDTH = 8.4
_LEGEND_LINE = 0.75
_LETTER = 0.062


def write_curves(results: Results, path: Path) -> None:
    """Write the figure as PNG: a row a data set and learning rate, a column a measure.

    Args:
        results: Of an experiment with at least one finished run.
        path: The file; its folder must exist.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        OutputError: If the file cannot be written; an earlier one is then intact.
    """
    write_figure(lambda: _draw(results), SETTINGS, [path], extra="train")


def _draw(results: Results) -> Figure:
    from matplotlib.figure import Figure

    rows = list(dict.fromkeys((record.data, record.learning_rate) for record in results.records))
    caption = textwrap.wrap(_caption(results), 155, break_on_hyphens=False)
    caption_height = 0.1 + 0.15 * len(caption)
    known = _drawn_arms(results)
    columns = _legend_columns([arm.label for arm in known])
    legend_rows = -(-len(known) // columns)
    bottom = caption_height + _LEGEND_MARGIN + _LEGEND_ROW * legend_rows
    height = 2.55 * len(rows) + bottom
    figure = Figure(figsize=(8.8, height), facecolor="white")
    for row, (data, rate) in enumerate(rows):
        there = [record for record in results.records if (record.data, record.learning_rate) == (data, rate)]
        for column, (name, label) in enumerate(_panels(results.of)):
            top = 0.3 + 2.55 * row
            axes = figure.add_axes((0.075 + 0.325 * column, 1 - (top + 1.75) / height, 0.25, 1.75 / height))
            _panel(axes, there, name, known)
            axes.set_ylabel(label)
            axes.set_xlabel("epoch")
            if column == 0:
                axes.set_title(f"{data}, learning rate {rate:g}", fontsize=9, loc="left", parse_math=False)
    drawn = {
        label: line
        for axes in figure.axes
        for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    labels = [arm.label for arm in known if arm.label in drawn]
    figure.legend(
        [drawn[label] for label in labels],
        labels,
        loc="lower center", bbox_to_anchor=(0.5, caption_height / height), ncols=min(columns, len(drawn)),
        fontsize=7.5, frameon=False, handlelength=4.0,
    )  # fmt: skip
    figure.text(0.02, 0.1 / height, "\n".join(caption), fontsize=7, color=INK, va="bottom", parse_math=False)
    return figure


def _drawn_arms(results: Results) -> tuple[Arm, ...]:
    """The arms in the order of their styles: all of an experiment that has few, else those that were planned."""
    every = tuple(results.of.arms.values())
    return every if len(every) <= len(STYLES) else results.arms


def _legend_columns(labels: Sequence[str]) -> int:
    """How many labels stand side by side."""
    widest = _LEGEND_LINE + _LETTER * max(map(len, labels), default=1)
    return max(1, min(len(labels), int(_LEGEND_WIDTH / widest)))


def _style(place: int) -> dict[str, Any]:
    """How the arm of a place is drawn."""
    return {**STYLES[place % len(STYLES)], "fillstyle": _FILLS[place // len(STYLES) % len(_FILLS)]}


def _panels(of: Comparison) -> list[tuple[str, str]]:
    """What is drawn, and what it is called: the headline, the other metrics, and the loss in training."""
    watched, headline = of.task.watched, of.headline.name
    names = [headline, *(metric.name for metric in of.task.metrics if metric.name != headline)]
    tested = [(f"{watched}_{name}", f"{watched} {name.replace('_', ' ')}") for name in names]
    return [*tested[:2], ("train_loss", "training loss")]


def _panel(axes: Axes, records: Sequence[RunRecord], name: str, known: Sequence[Arm]) -> None:
    from matplotlib.ticker import MaxNLocator

    drawn = [
        (arm, _style(place))
        for place, arm in enumerate(known)
        if any(record.arm == arm.name for record in records)
    ]
    for place, (arm, style) in enumerate(drawn):
        curves = [record.curves[name] for record in records if record.arm == arm.name]
        by_epoch = [[value for value in values if value is not None] for values in zip(*curves, strict=True)]
        epochs = [epoch for epoch, values in enumerate(by_epoch, 1) if values]
        tested = [values for values in by_epoch if values]
        every = 1 + len(epochs) // _MOST_MARKERS
        beside = min(_BESIDE, _WIDEST / len(drawn)) * every * (place - (len(drawn) - 1) / 2)
        means = [sum(values) / len(values) for values in tested]
        # A mean of equal values may be rounded to either side of them.
        ranges = [
            [max(mean - min(values), 0.0) for mean, values in zip(means, tested, strict=True)],
            [max(max(values) - mean, 0.0) for mean, values in zip(means, tested, strict=True)],
        ]
        axes.errorbar(
            [epoch + beside for epoch in epochs], means, ranges, **style,
            markersize=3.5, markevery=every, errorevery=every, linewidth=1.2, elinewidth=0.7, capsize=1.8,
            label=arm.label,
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _caption(results: Results) -> str:
    counts = {cell.arm: len(cell.seeds) for cell in results.cells}
    seeds = f"{max(counts.values())} seed{'' if max(counts.values()) == 1 else 's'}"
    state = "" if results.finished else f" Partial: {len(results.records)} of {results.planned} runs."
    return (
        f"{results.title}. Lines: mean of {seeds}; bars: from the least to the greatest "
        f"of them. Arms are drawn a little beside each other. The training loss is measured in training, with "
        f"dropout.{state}"
    )
