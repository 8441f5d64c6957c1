"""Attention maps as a figure for print: both estimators side by side, in a scale that survives a photocopier."""

from __future__ import annotations

import base64
import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.answering.attention_map import AttentionMap, Grid
from fenchel.answering.terminal_map import short_bound
from fenchel.runs.colour import ink, level, scale
from fenchel.runs.figure import write_figure
from fenchel.runs.number import decimal
from fenchel.runs.style import INK, SETTINGS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["write_maps_figure"]

_CELL = 0.34  # inches
_FEW = 16
"""Up to so many keys, cells have their numbers in them."""
_OVERLAYS_IN_A_ROW = 6
_VEIL = 0.86
_ESTIMATORS = (("first order", "first_order"), ("exact", "exact"))


def write_maps_figure(maps: Sequence[AttentionMap], path: Path, *, title: str = "") -> Path:
    """Write a figure of some maps, one below the other.

    Words are a matrix with a row a query; cells of an image are the image itself, once a query, its cells as visible
    as they are heavy.

    Args:
        maps: At least one.
        path: A ``.png`` or ``.svg`` file in an existing folder.
        title: Above all.

    Returns:
        The path.

    Raises:
        MissingExtraError: If matplotlib, or for images Pillow, is not installed.
        OutputError: If the file cannot be written.
    """
    write_figure(lambda: _drawn(maps, title), SETTINGS, [path], extra="train")
    return path


def _drawn(maps: Sequence[AttentionMap], title: str) -> Figure:
    from matplotlib.figure import Figure

    heights = [_height(one) for one in maps]
    width = max(_width(one) for one in maps)
    heading = textwrap.fill(title, max(20, int(width * 13)), break_on_hyphens=False)
    top = 0.3 * (heading.count("\n") + 1) if title else 0.0
    figure = Figure(figsize=(width, sum(heights) + top), facecolor="white", layout="constrained")
    if title:
        figure.suptitle(heading, fontsize=9, color=INK, parse_math=False)
    parts = figure.subfigures(len(maps), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, one in zip(parts, maps, strict=True):
        if one.grid is None:
            _matrices(part, one)
        else:
            _overlays(part, one, one.grid)
    return figure


def _height(one: AttentionMap) -> float:
    if one.grid is None:
        return _CELL * len(one.queries) + 1.5
    return 0.5 + 2.7 * -(-len(one.queries) // _OVERLAYS_IN_A_ROW)


def _width(one: AttentionMap) -> float:
    if one.grid is None:
        return 2 * max(_CELL * len(one.keys), 1.6) + 2.9
    return 0.6 + 1.3 * min(len(one.queries), _OVERLAYS_IN_A_ROW)


def _matrices(part: Any, one: AttentionMap) -> None:
    part.suptitle(one.title, fontsize=8.5, color=INK, x=0.01, ha="left", parse_math=False)
    panels = part.subplots(1, 2, sharey=True)
    for axes, (called, name) in zip(panels, _ESTIMATORS, strict=True):
        _matrix(axes, one, getattr(one, name))
        axes.set_title(called, fontsize=8.5)
    panels[0].set_yticks(range(len(one.queries)), one.queries, parse_math=False)
    panels[0].set_ylabel("query")
    beside = panels[1].secondary_yaxis("right")
    beside.set_yticks(
        range(len(one.queries)),
        [
            f"moved {decimal(float(moved))}, certified ≤ {short_bound(float(error))}{'' if solved else ' (!)'}"
            for moved, error, solved in zip(one.moved, one.error, one.solved, strict=True)
        ],
        fontsize=6.5,
    )


def _matrix(axes: Axes, one: AttentionMap, weights: Tensor) -> None:
    from matplotlib.colors import ListedColormap

    colours = scale()
    axes.imshow(
        weights.numpy(), cmap=ListedColormap(colours), vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    if len(one.keys) <= _FEW:
        for query, row in enumerate(weights.tolist()):
            for key, weight in enumerate(row):
                if weight >= 0.005:
                    colour = ink(colours[level(weight, 1.0)])
                    text = f"{weight:.2f}".removeprefix("0")
                    axes.text(key, query, text, ha="center", va="center", fontsize=5.5, color=colour)
    axes.set_xticks(
        range(len(one.keys)), one.keys, rotation=60, ha="right", rotation_mode="anchor", parse_math=False
    )
    axes.set_xlabel("key")
    axes.tick_params(length=2)


def _overlays(part: Any, one: AttentionMap, grid: Grid) -> None:
    part.suptitle(one.title, fontsize=8.5, color=INK, x=0.01, ha="left", parse_math=False)
    picture = _pixels(grid)
    columns = min(len(one.queries), _OVERLAYS_IN_A_ROW)
    lines = -(-len(one.queries) // columns)
    panels = part.subplots(2 * lines, columns, squeeze=False)
    for axes in panels.flat:
        axes.set_axis_off()
    for place, query in enumerate(one.queries):
        line, column = divmod(place, columns)
        for below, (called, name) in enumerate(_ESTIMATORS):
            axes = panels[2 * line + below][column]
            weights = getattr(one, name)[place].reshape(grid.rows, grid.columns)
            axes.imshow(picture, extent=(0, grid.columns, grid.rows, 0), interpolation="nearest")
            # The square root: a cell with a tenth of the weight can still be seen.
            veil = torch.zeros(grid.rows, grid.columns, 4)
            veil[..., 3] = _VEIL * (1 - (weights / weights.max().clamp_min(1e-12)).sqrt())
            axes.imshow(veil.numpy(), extent=(0, grid.columns, grid.rows, 0), interpolation="nearest")
            title = query if below == 0 else f"moved {decimal(float(one.moved[place]))}"
            axes.set_title(title, fontsize=7, parse_math=False)
            if column == 0:
                axes.text(
                    -0.08,
                    0.5,
                    called,
                    transform=axes.transAxes,
                    rotation=90,
                    ha="right",
                    va="center",
                    fontsize=7,
                )


def _pixels(grid: Grid) -> Any:
    from PIL import Image

    content = base64.b64decode(grid.image.partition("base64,")[2])
    with Image.open(io.BytesIO(content)) as image:
        return image.convert("RGB")
