"""An audit in one picture: deviation, moved weight and output error of every layer and head, the twin's beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fenchel.auditing.results import AuditResults
from fenchel.errors import InputError
from fenchel.figures.audited import SPREAD, audit_line, audited_kinds, described, marker_size
from fenchel.figures.figure_kind import FigureKind, Numbers, rounded
from fenchel.figures.sheet import lettered, ruled, sheet
from fenchel.runs.style import LINES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["DEVIATIONS"]

_SHOWN = {
    "relative_deviation": ("deviation of λ", "‖λ* − αz‖ / ‖λ*‖"),
    "total_variation": ("weight that moves", "total variation"),
    "mean_error": ("error of the output", "‖ĥ − h*‖ / ‖h*‖"),
}
_BAND = "#cddff0"


def measure(audit: AuditResults | None = None) -> dict[str, Any]:
    """Means, medians and quantiles by layer, means by head, and the same of the twin where there is one.

    Args:
        audit: The audit.

    Raises:
        InputError: If it has no head, since no document fell into its share.
    """
    assert audit is not None  # noqa: S101 - it is required
    if not audit.heads:
        raise InputError("the audit holds no head: no document fell into its share. Give one that has some.")
    return rounded(
        {
            "audit": described(audit),
            "spread": SPREAD,
            "kinds": audited_kinds(audit, [*_SHOWN, "certificate"]),
        }
    )


def caption(numbers: Numbers) -> str:
    """What is seen."""
    twin = (
        " Triangles: means of the untrained twin on the same text."
        if numbers["kinds"][0]["layers"][0]["twin"] is not None
        else " No untrained twin was audited."
    )
    return (
        "How far first-order attention is from the inference that it approximates, layer by layer: the "
        "line is the mean over all queries, circles are the means of single heads, the band holds nine "
        "tenths of the queries (5th to 95th percentile). A small deviation of λ (a) does not mean a small "
        "error of weights (b) and output (c). Bars on dotted stems in (a): what one attention pass "
        f"certifies of the median query, at most.{twin} {audit_line(numbers['audit'])}"
    )


def draw(numbers: Numbers) -> Figure:
    """A row a kind of attention, a column a measure."""
    kinds = numbers["kinds"]
    figure = sheet(2.6 * len(kinds), caption(numbers))
    panels: Any = figure.subplots(len(kinds), len(_SHOWN), squeeze=False)
    for row, kind in zip(panels, kinds, strict=True):
        for axes, (metric, (_, label)) in zip(row, _SHOWN.items(), strict=True):
            _by_layer(axes, kind, metric)
            axes.set_ylabel(label)
        if len(kinds) > 1:
            row[0].set_ylabel(f"{kind['name']}\n{_SHOWN['relative_deviation'][1]}")
    lettered(panels[0], [title for title, _ in _SHOWN.values()])
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure


def _by_layer(axes: Axes, kind: Numbers, metric: str) -> None:
    from matplotlib.ticker import MaxNLocator

    layers, size = kind["layers"], marker_size(kind)
    banded = [layer for layer in layers if layer["model"][metric]["high"] is not None]
    axes.fill_between(
        [layer["layer"] for layer in banded],
        [layer["model"][metric]["low"] for layer in banded],
        [layer["model"][metric]["high"] for layer in banded],
        color=_BAND, linewidth=0, label="nine tenths of the queries",
    )  # fmt: skip
    dots = [
        (layer["layer"], value)
        for layer in layers
        for value in layer["model"][metric]["heads"]
        if value is not None
    ]
    model = LINES["model"]
    axes.plot(
        [place for place, _ in dots], [value for _, value in dots], "o", color=model["color"], markersize=0.65 * size,
        markerfacecolor="white", markeredgewidth=0.6, linestyle="none", label="heads", zorder=3,
    )  # fmt: skip
    _line(axes, layers, metric, "model", "mean", size)
    if layers[0]["twin"] is not None:
        _line(axes, layers, metric, "twin", "untrained twin", size)
    if metric == "relative_deviation":
        certified = [
            (layer["layer"], layer["model"]["certificate"]["median"], layer["model"][metric]["median"])
            for layer in layers
        ]
        certified = [mark for mark in certified if None not in mark]
        bound = LINES["bound"]
        axes.vlines(
            [mark[0] for mark in certified], [mark[2] for mark in certified], [mark[1] for mark in certified],
            colors=bound["color"], linestyles=":", linewidth=0.9,
        )  # fmt: skip
        axes.plot(
            [mark[0] for mark in certified], [mark[1] for mark in certified], "_", color=bound["color"],
            markersize=2.2 * size, markeredgewidth=1.4, linestyle="none", label="certified, at most",
        )  # fmt: skip
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, None)
    axes.set_xlabel("layer")
    ruled(axes)


def _line(axes: Axes, layers: list[Any], metric: str, who: str, label: str, size: float) -> None:
    known = [layer for layer in layers if layer[who][metric]["mean"] is not None]
    axes.plot(
        [layer["layer"] for layer in known],
        [layer[who][metric]["mean"] for layer in known],
        label=label, zorder=4, **{**LINES[who], "markersize": size},
    )  # fmt: skip


DEVIATIONS = FigureKind(
    name="deviations",
    summary="an audit in one picture: deviation, moved weight, output error, by layer",
    measure=measure,
    caption=caption,
    draw=draw,
    audit="required",
)
