"""Figures 4 and 5 of the paper for the audited model, as PNG files for print."""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.auditing.heads import Kind
from fenchel.auditing.report.distribution import AXES, Distribution, distribution
from fenchel.auditing.report.findings import KIND_NAMES, Findings, model_name
from fenchel.drawing import MISSING, plain, short
from fenchel.errors import MissingExtraError
from fenchel.io.storage import atomic_path, guarded_writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["MOST_COLUMNS", "MOST_ROWS", "evenly", "write_figures"]

MOST_COLUMNS = 16
MOST_ROWS = 24
"""A kind's block in figure 5 has at most this many heads and layers, in figure 4 twice as many layers."""

_AXIS = AXES[0]
_FONT = "DejaVu Sans"  # comes with matplotlib, so that figures are the same everywhere
_BARS, _MEAN, _FRAME, _INK = "#8fb2d6", "#a8320a", "#8a93a3", "#1b2130"
_PANEL_WIDTH, _PANEL_HEIGHT = 1.05, 0.78  # inches, gaps included
_GAP_X = 0.12  # share of a panel, as is _Block.gap


@dataclass(frozen=True)
class _Block:
    """Panels that share their axes: rows from top to bottom, None where there is nothing to draw."""

    title: str
    rows: Sequence[Sequence[Distribution | None]]
    row_labels: Sequence[str]
    column_labels: Sequence[str]
    panel_labels: Sequence[Sequence[str]] | None = None

    @property
    def columns(self) -> int:
        return max(len(row) for row in self.rows)

    @property
    def gap(self) -> float:
        return 0.16 if self.panel_labels is None else 0.27


def evenly(numbers: Sequence[int], most: int) -> list[int]:
    """At most ``most`` of the numbers, evenly spread, the first and the last among them.

    Example:
        >>> evenly(range(1, 11), 4)
        [1, 4, 7, 10]
    """
    if len(numbers) <= most:
        return list(numbers)
    return [numbers[round(i * (len(numbers) - 1) / (most - 1))] for i in range(most)]


def write_figures(report: AuditResults, directory: str | os.PathLike[str]) -> tuple[Path, Path]:
    """Write ``figure4.png`` and ``figure5.png``: the relative deviation's distributions by layer and by head.

    A large model is thinned evenly (``MOST_COLUMNS``, ``MOST_ROWS``), which the figure says.

    Args:
        report: The audit.
        directory: An existing folder.

    Returns:
        The paths of the two files.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        OutputError: If a file cannot be written; an earlier one of that name is then intact.
    """
    findings = Findings.of(report)
    folder = Path(directory)
    return (
        _write(_by_layer(report, findings), folder / "figure4.png"),
        _write(_by_head(report, findings), folder / "figure5.png"),
    )


def _by_layer(report: AuditResults, findings: Findings) -> Figure:
    blocks, notes = [], []
    for kind in findings.kinds:
        layers = findings.layers(kind)
        chosen = evenly(layers, 2 * MOST_ROWS)
        if len(chosen) < len(layers):
            notes.append(f"{len(chosen)} of {len(layers)} layers, evenly spread")
        columns = min(len(chosen), 12)
        lines = [chosen[i : i + columns] for i in range(0, len(chosen), columns)]
        blocks.append(
            _Block(
                title=KIND_NAMES[kind],
                rows=[
                    [distribution(report.statistics, _AXIS, kind, layer) for layer in line] for line in lines
                ],
                row_labels=[""] * len(lines),
                column_labels=[""] * columns,
                panel_labels=[[f"Layer {layer}" for layer in line] for line in lines],
            )
        )
    return _draw(blocks, _caption(report, "a layer", notes), titled=len(blocks) > 1)


def _by_head(report: AuditResults, findings: Findings) -> Figure:
    blocks, notes = [], []
    for kind in findings.kinds:
        layers, heads = findings.layers(kind), findings.head_numbers(kind)
        rows, columns = evenly(layers, MOST_ROWS), evenly(heads, MOST_COLUMNS)
        if len(rows) < len(layers) or len(columns) < len(heads):
            notes.append(
                f"{len(rows)} of {len(layers)} layers and {len(columns)} of {len(heads)} heads, evenly spread"
            )
        blocks.append(
            _Block(
                title=KIND_NAMES[kind],
                rows=[_row(report, findings, kind, layer, columns) for layer in rows],
                row_labels=[f"Layer {layer}" for layer in rows],
                column_labels=[f"Head {head}" for head in columns],
            )
        )
    return _draw(blocks, _caption(report, "a head", notes), titled=len(blocks) > 1)


def _row(
    report: AuditResults, findings: Findings, kind: Kind, layer: int, heads: Sequence[int]
) -> list[Distribution | None]:
    present = {head.key.head for head in findings.of_kind(kind) if head.key.layer == layer}
    return [
        distribution(report.statistics, _AXIS, kind, layer, head) if head in present else None
        for head in heads
    ]


def _caption(report: AuditResults, unit: str, notes: Sequence[str]) -> str:
    manifest = report.manifest
    under = f", closeness {manifest['closeness']}" if manifest.get("closeness") else ""
    sentences = [
        f"Distribution of the relative deviation ‖λ* − αz‖ / ‖λ*‖ over the queries of {unit}; the dashed "
        f"line and the number mark the mean, the last bar also counts what lies above {_AXIS.upper:g}.",
        f"Model {model_name(manifest)}, text {manifest.get('texts', MISSING)}, "
        f"space {manifest.get('space', MISSING)}, α = {plain(manifest.get('alpha'))}{under}.",
    ]
    if notes:
        sentences.append(f"Shown: {'; '.join(dict.fromkeys(notes))}; all are in heads.json and report.html.")
    return " ".join(sentences)


def _draw(blocks: Sequence[_Block], caption: str, *, titled: bool) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("matplotlib", "report") from error
    columns = max(block.columns for block in blocks)
    left, right, axis_height = 0.6, 0.1, 0.22
    heading = 0.3 if any(any(block.column_labels) for block in blocks) else 0.08
    width = max(left + columns * _PANEL_WIDTH + right, 4.6)
    top = heading + (0.3 if titled else 0.0)
    heights = [top + len(block.rows) * _PANEL_HEIGHT + axis_height for block in blocks]
    words = _drawable(caption).replace("α = ", "α\u00a0=\u00a0")  # not to be parted
    lines = textwrap.wrap(words, int(19 * (width - 0.3)), break_on_hyphens=False)
    caption_height = 0.135 * len(lines) + 0.16
    height = sum(heights) + caption_height
    figure = Figure(figsize=(width, height), facecolor="white")
    above = 0.0
    for block, block_height in zip(blocks, heights, strict=True):
        panels = len(block.rows) * _PANEL_HEIGHT
        axes = figure.add_axes((
            left / width,
            (height - above - top - panels) / height,
            block.columns * _PANEL_WIDTH / width,
            panels / height,
        ))  # fmt: skip
        _draw_block(axes, block)
        if titled:
            _write_text(
                axes, 0, -heading / _PANEL_HEIGHT + 0.04, block.title, size=9, ha="left", weight="bold"
            )
        above += block_height
    figure.text(
        0.15 / width, 0.1 / height, "\n".join(lines), fontsize=7, color=_INK, va="bottom", linespacing=1.35,
        family=_FONT, parse_math=False,
    )  # fmt: skip
    return figure


def _draw_block(axes: Axes, block: _Block) -> None:
    """All panels of a block in one pair of axes, a unit square each: far cheaper than axes for each."""
    from matplotlib.collections import LineCollection, PolyCollection

    frames: list[Any] = []
    grid: list[Any] = []
    bars: list[Any] = []
    means: list[Any] = []
    gap = block.gap
    width, height = 1 - _GAP_X, 1 - gap
    for r, row in enumerate(block.rows):
        for c, shape in enumerate(row):
            if shape is None:
                continue
            bottom = r + 1.0
            frames.append([(c, bottom), (c + width, bottom), (c + width, r + gap), (c, r + gap)])
            grid.append([(c, bottom - height / 2), (c + width, bottom - height / 2)])
            grid.append([(c + width / 2, bottom), (c + width / 2, r + gap)])
            bars.append(_bar_outline(shape.fractions, c, bottom, width, height))
            if shape.mean is not None and math.isfinite(shape.mean):
                x = c + width * min(1.0, shape.mean / _AXIS.upper)
                means.append([(x, bottom), (x, r + gap)])
            label = block.panel_labels[r][c] if block.panel_labels else ""
            _write_text(axes, c, r + gap - 0.02, label, size=7, ha="left")
            mean_y = r + gap + 0.03 if not label else r + gap - 0.02
            _write_text(
                axes, c + width - 0.02, mean_y, short(shape.mean), size=7, ha="right",
                va="bottom" if label else "top", color=_MEAN, weight="bold",
            )  # fmt: skip
    axes.add_collection(LineCollection(grid, colors="#e3e6ec", linewidths=0.5, zorder=0))
    axes.add_collection(PolyCollection(bars, facecolors=_BARS, edgecolors="none"))
    axes.add_collection(LineCollection(means, colors=_MEAN, linewidths=1.1, linestyles=[(0, (3, 1.6))]))
    axes.add_collection(
        PolyCollection(frames, facecolors="none", edgecolors=_FRAME, linewidths=0.5, clip_on=False)
    )
    axes.set_xlim(0, block.columns)
    axes.set_ylim(len(block.rows), 0)
    axes.axis("off")
    _label_axes(axes, block)


def _bar_outline(
    fractions: Sequence[float], left: float, bottom: float, width: float, height: float
) -> list[tuple[float, float]]:
    step = width / len(fractions)
    points = [(left, bottom)]
    for i, fraction in enumerate(fractions):
        y = bottom - height * fraction
        points += [(left + i * step, y), (left + (i + 1) * step, y)]
    return [*points, (left + width, bottom)]


def _label_axes(axes: Axes, block: _Block) -> None:
    gap = block.gap
    width, height = 1 - _GAP_X, 1 - gap
    for c, label in enumerate(block.column_labels):
        _write_text(axes, c + width / 2, gap - 0.06, label, size=7)
        deepest = max((r for r, row in enumerate(block.rows) if c < len(row)), default=0) + 1.0
        for place, tick in ((0.0, "0"), (0.5, f"{_AXIS.upper / 2:g}"), (1.0, f"{_AXIS.upper:g}")):
            _write_text(
                axes, c + width * place, deepest + 0.05, tick, size=5.5, va="top",
                ha="left" if place == 0 else "right" if place == 1 else "center",
            )  # fmt: skip
    for r, label in enumerate(block.row_labels):
        _write_text(axes, -0.32, r + gap + height / 2, label, size=7, va="center", rotation=90)
        for fraction, tick in ((0.0, "0"), (0.5, "0.5"), (1.0, "1")):
            _write_text(axes, -0.05, r + 1 - height * fraction, tick, size=5.5, ha="right", va="center")


def _write_text(axes: Axes, x: float, y: float, text: str, *, size: float, **style: Any) -> None:
    if text:
        options = {"ha": "center", "va": "bottom", "color": _INK, **style}
        axes.text(x, y, text, fontsize=size, family=_FONT, parse_math=False, clip_on=False, **options)


def _drawable(text: str) -> str:
    """Text of which matplotlib's own font has every character; others are replaced, so that nothing warns."""
    from matplotlib import font_manager

    characters = font_manager.get_font(font_manager.findfont(_FONT)).get_charmap()
    return "".join(character if ord(character) in characters else "□" for character in " ".join(text.split()))


def _write(figure: Figure, path: Path) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=200)
    with atomic_path(path) as temporary, guarded_writing(path):
        temporary.write_bytes(buffer.getvalue())
    return path
