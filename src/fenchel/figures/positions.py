"""What preferences over positions believe: rows of queries, columns of keys, and the profile of one query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import heatmap, sheet
from fenchel.nn.preference import (
    AbstractPreference,
    ALiBi,
    AttentionInputs,
    Causal,
    GaussianWindow,
    QuadraticPosition,
    RelativePosition,
    Window,
)
from fenchel.runs.style import GRID, INK, LINES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from fenchel.auditing.results import AuditResults

__all__ = ["POSITIONS"]

_KEYS, _COLUMNS = 32, 4
_QUERY = 20


def _preferences() -> dict[str, tuple[AbstractPreference, str]]:
    """Each with its formula; what would be learned is given values that show its form."""
    buckets = RelativePosition(heads=1, buckets=12, max_distance=24)
    shifted = QuadraticPosition(heads=1, width=2.0)
    with torch.no_grad():
        one_way = torch.arange(6, dtype=torch.float32)
        # Less for buckets farther away, and less for what follows than for what went before.
        buckets.relative_attention_bias.weight.copy_(torch.cat([-0.55 * one_way, -0.9 * one_way])[:, None])
        shifted.drift.fill_(2 * float(shifted.curvature) * 5.0)
    return {
        "causal": (Causal(), "u = 0 for j > i"),
        "sliding window": (Window(4, 4), "u = 0 for |i − j| > 4"),
        "dilated window": (Window(12, 12, dilation=3), "every third key"),
        "ALiBi × causal": (Causal() * ALiBi(heads=1) ** 64.0, "log u = −(i − j)/4"),
        "T5's buckets": (buckets, "log u = w of the bucket of j − i"),
        "Gaussian window": (GaussianWindow(heads=1, width=3.0), "log u = −(i − j)²/2σ², σ = 3"),
        "quadratic, shifted by 5": (shifted, "log u = −a(i − j)² + b(i − j)"),
        "Gaussian × causal": (Causal() * GaussianWindow(heads=1, width=3.0), "preferences multiply"),
    }


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    """The normalised preference of every query.

    Returns:
        For each preference its name, how it is built, its formula, and its weights, (queries, keys).
    """
    inputs = AttentionInputs(1, 1, _KEYS, _KEYS, torch.device("cpu"), torch.float64)
    panels = []
    for name, (preference, formula) in _preferences().items():
        log_weights = preference.double()(inputs)
        assert log_weights is not None  # noqa: S101 - none of them is uniform
        if log_weights.dtype == torch.bool:
            log_weights = torch.zeros_like(log_weights, dtype=torch.float64).masked_fill(
                ~log_weights, -torch.inf
            )
        weights = log_weights.detach().double().expand(1, 1, _KEYS, _KEYS)[0, 0].softmax(-1)
        panels.append({"name": name, "built": repr(preference), "formula": formula, "weights": weights})
    return rounded({"keys": _KEYS, "query": _QUERY, "panels": panels})


def caption(numbers: Numbers) -> str:
    """What is seen."""
    return (
        f"Preferences over {numbers['keys']} positions, before any query meets a key: u of query i (row) "
        "for key j (column), darker where more is believed, relative to the largest of the row. Below "
        f"each: the row of query {numbers['query']} (dashed line), summing to 1. Masks are u = 0. What is "
        "learned in practice (T5's biases, widths, the quadratic's drift) is set here to values that show "
        "its form. The last is the product of two."
    )


def draw(numbers: Numbers) -> Figure:
    """Matrices, each with a profile below."""
    panels = numbers["panels"]
    lines = -(-len(panels) // _COLUMNS)
    figure = sheet(2.55 * lines, caption(numbers))
    grid: Any = figure.subplots(2 * lines, _COLUMNS, height_ratios=[3.0, 1.0] * lines, sharex=True)
    for place, panel in enumerate(panels):
        line, column = divmod(place, _COLUMNS)
        matrix, profile = grid[2 * line][column], grid[2 * line + 1][column]
        heatmap(matrix, [[weight / max(row) for weight in row] for row in panel["weights"]], highest=1.0)
        matrix.axhline(numbers["query"], color="white", linewidth=1.4)
        matrix.axhline(numbers["query"], color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
        matrix.set_title(panel["name"], loc="left", fontsize=8.5, parse_math=False)
        row = panel["weights"][numbers["query"]]
        profile.fill_between(range(len(row)), row, step="mid", color="#a9c6e3", linewidth=0)
        profile.step(range(len(row)), row, where="mid", color=LINES["model"]["color"], linewidth=1.0)
        profile.axvline(numbers["query"], color=GRID, linewidth=0.8, zorder=0)
        profile.set_ylim(0, 1.1 * max(row))
        profile.set_yticks([])
        profile.spines["left"].set_visible(False)
        profile.set_xlabel(panel["formula"], fontsize=7, parse_math=False)
        if column == 0:
            matrix.set_ylabel("query i")
        else:
            matrix.tick_params(labelleft=False)
        profile.tick_params(labelbottom=True)
    return figure


POSITIONS = FigureKind(
    name="positions",
    summary="what preferences over positions believe: masks, windows, ALiBi, T5, products",
    measure=measure,
    caption=caption,
    draw=draw,
)
