"""The figure of a swap: the measure against the control's α, the change of every layer, and a map of single heads.

It is read in grey and by the colour-blind: every estimator has its marker, line and hatching, and colours differ in
lightness.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.drawing import GRID, INK, SETTINGS, scale, write_figure
from fenchel.swap.wording import wording

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fenchel.swap.swap_tables import SwapTables

__all__ = ["write_figures"]

_STYLE: dict[str, dict[str, Any]] = {
    "second_order": {
        "label": "second order",
        "colour": "#5b9bd5",
        "marker": "s",
        "hatch": "////",
        "line": (0, (4, 2)),
    },
    "exact": {"label": "exact", "colour": "#8a2b06", "marker": "D", "hatch": "", "line": "-"},
}
_CONTROL = {"colour": "#3b4252", "marker": "o", "line": (0, (1, 1.5))}
_SETTINGS: dict[Any, Any] = {
    **SETTINGS,
    "svg.hashsalt": "fenchel",  # without it, two figures of the same swap differ
    "svg.fonttype": "path",
}
_LONGEST_AXIS = 40


def write_figures(report: SwapTables, directory: Path) -> Path:
    """Write ``swap.svg`` and ``swap.png``.

    Args:
        report: The swap.
        directory: An existing folder.

    Returns:
        Path of ``swap.png``.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        OutputError: If a file cannot be written; an earlier one of that name is then intact.
    """
    png = directory / "swap.png"
    write_figure(lambda: _draw(report), _SETTINGS, [png.with_suffix(".svg"), png], extra="report")
    return png


def _draw(report: SwapTables) -> Figure:
    from matplotlib.figure import Figure

    heads = [record for record in report.arms if record["where"] == "head" and not record["control"]]
    maps = list(dict.fromkeys(record["estimator"] for record in heads))
    tall = 0.0
    if heads:
        layers = len({record["layer"] for record in heads})
        tall = min(6.0, 1.3 + 0.22 * layers)
    caption = textwrap.wrap(_caption(report), 118, break_on_hyphens=False)
    bottom = 0.2 + 0.15 * len(caption)
    height = 3.3 + tall + bottom
    figure = Figure(figsize=(8.4, height), facecolor="white")

    def place(left: float, right: float, top: float, tallness: float) -> Axes:
        return figure.add_axes((left, 1 - (top + tallness) / height, right - left, tallness / height))

    _against_alpha(place(0.085, 0.48, 0.35, 2.4), report)
    _by_layer(place(0.59, 0.985, 0.35, 2.4), report)
    width = 0.84 / max(1, len(maps))
    highest = max((record["hidden_change"] for record in heads), default=0.0)
    for number, estimator in enumerate(maps):
        left = 0.085 + number * width
        axes = place(left, left + width - 0.06, 3.75, tall - 0.85)
        chosen = [record for record in heads if record["estimator"] == estimator]
        drawn = _head_map(axes, chosen, estimator, highest)
        if number == len(maps) - 1:
            bar = figure.colorbar(drawn, cax=place(0.905, 0.92, 3.75, tall - 0.85))
            bar.set_label("change at the output", fontsize=7)
            bar.ax.tick_params(labelsize=6)
    figure.text(0.02, 0.1 / height, "\n".join(caption), fontsize=7, color=INK, va="bottom", parse_math=False)
    return figure


def _measure(report: SwapTables) -> tuple[str, str]:
    """The name of what the first panel shows, and its axis."""
    quality = report.results["quality"]
    if quality is not None:
        return quality, wording(report.manifest).qualities[quality]
    if "ranking_agreement" not in report.arms[0]:
        return "hidden_change", f"relative change of the {wording(report.manifest).output}"
    return "ranking_agreement", "Spearman's correlation with the model's ranking"


def _against_alpha(axes: Axes, report: SwapTables) -> None:
    name, label = _measure(report)
    whole = [record for record in report.arms if record["where"] == "model" and record[name] is not None]
    # Where it is a quality, the interval of the difference is shown: that of the level is mostly the text's.
    spread = f"{name}_difference" if report.results["quality"] else name
    controls = sorted((record for record in whole if record["control"]), key=lambda record: record["alpha"])
    own = next((record[name] for record in whole if record["estimator"] == "model"), None)

    def bars(records: Sequence[dict[str, Any]]) -> list[list[float]]:
        found: list[list[float]] = [[], []]
        for record in records:
            low, high, middle = (record.get(f"{spread}{end}") for end in ("_low", "_high", ""))
            if low is None or high is None or middle is None:
                low = high = middle = 0.0
            found[0].append(max(0.0, middle - low))
            found[1].append(max(0.0, high - middle))
        return found

    axes.errorbar(
        [record["alpha"] for record in controls], [record[name] for record in controls], bars(controls),
        color=_CONTROL["colour"], marker=_CONTROL["marker"], linestyle=_CONTROL["line"], markersize=4, capsize=2,
        linewidth=1, markerfacecolor="white", label="control: first order at α",
    )  # fmt: skip
    if own is not None:
        axes.axhline(own, color=INK, linewidth=0.8, label="the model")
    alphas = [record["alpha"] for record in controls] or [1.0]
    beyond = max(alphas) + 0.08 * (max(alphas) - min(alphas) or 1.0)
    step = 0.09 * (max(alphas) - min(alphas) or 1.0)
    estimators = [record for record in whole if record["estimator"] in _STYLE]
    for number, record in enumerate(estimators):
        style = _STYLE[record["estimator"]]
        axes.axhline(record[name], color=style["colour"], linestyle=style["line"], linewidth=0.8, alpha=0.8)
        axes.errorbar(
            [beyond + number * step], [record[name]], bars([record]), color=style["colour"], marker=style["marker"],
            markersize=5, capsize=3, linestyle="none", label=style["label"],
        )  # fmt: skip
    # Where the estimators stand is no α, so the axis must not name one there.
    axes.set_xticks([tick for tick in axes.get_xticks() if min(alphas) - 1e-9 <= tick <= max(alphas) + 1e-9])
    axes.set_xlabel("α of the control (estimators, at α = 1, on the right)")
    axes.set_ylabel(label)
    axes.set_title("(a) Against smoothing", fontsize=9, loc="left")
    axes.legend(fontsize=6.5, frameon=False, loc="best")
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _by_layer(axes: Axes, report: SwapTables) -> None:
    layers = report.layers
    places = list(dict.fromkeys((record["stack"], record["layer"]) for record in layers))
    of_layers = [stack for stack in dict.fromkeys(stack for stack, _ in places) if stack != "output"]
    nearest = {record["estimator"]: record["nearest_alpha"] for record in report.results["smoothing"]}
    shown = [name for name in _STYLE if any(record["estimator"] == name for record in layers)]
    alone = {
        (record["estimator"], record["layer"]): record["hidden_change"]
        for record in report.arms
        if record["where"] == "layer" and not record["control"]
    }
    width = 0.8 / max(1, len(shown))
    for number, name in enumerate(shown):
        style = _STYLE[name]
        own = {(r["stack"], r["layer"]): r["hidden_change"] for r in layers if r["estimator"] == name}
        middles = [i + (number - (len(shown) - 1) / 2) * width for i in range(len(places))]
        axes.bar(
            middles, [own[place] for place in places], width * 0.92, color=style["colour"], hatch=style["hatch"],
            edgecolor="white", linewidth=0.5, label=f"all layers swapped: {style['label']}",
        )  # fmt: skip
        if alone and len(of_layers) == 1:
            there = [
                (x, alone[name, layer])
                for x, (stack, layer) in zip(middles, places, strict=True)
                if stack in of_layers and (name, layer) in alone
            ]
            axes.plot(
                *zip(*there, strict=True), linestyle="none", marker=style["marker"], markersize=5, color="white",
                markeredgecolor=INK, label=f"only this layer, at the output: {style['label']}",
            )  # fmt: skip
    if "exact" in nearest or nearest:
        alpha = nearest.get("exact", next(iter(nearest.values())))
        control = {
            (r["stack"], r["layer"]): r["hidden_change"]
            for r in layers
            if r["estimator"] == "first_order" and r["alpha"] == alpha
        }
        axes.plot(
            range(len(places)), [control[place] for place in places], color=_CONTROL["colour"], marker="o",
            markersize=4, linestyle=_CONTROL["line"], markerfacecolor="white", linewidth=1,
            label=f"all layers: control, α = {alpha:g}",
        )  # fmt: skip
    short = {stack: f"{stack[:3]} " if len(of_layers) > 1 else "" for stack in of_layers}
    every = 1 + len(places) // _LONGEST_AXIS
    axes.set_xticks(
        range(0, len(places), every),
        [f"{short[stack]}{layer}" if stack in short else "output" for stack, layer in places[::every]],
        rotation=90 if len(of_layers) > 1 else 0,
    )  # fmt: skip
    axes.set_xlabel("output of layer")
    axes.set_ylabel("relative change")
    axes.set_title("(b) Where the change arises", fontsize=9, loc="left")
    axes.margins(y=0.25)
    axes.legend(fontsize=6, frameon=False, loc="upper left")
    axes.grid(axis="y", color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _head_map(axes: Axes, records: list[dict[str, Any]], estimator: str, highest: float) -> Any:
    from matplotlib.colors import ListedColormap

    layers = sorted({record["layer"] for record in records})
    heads = sorted({record["head"] for record in records})
    grid = [[float("nan")] * len(heads) for _ in layers]
    for record in records:
        grid[layers.index(record["layer"])][heads.index(record["head"])] = record["hidden_change"]
    drawn = axes.imshow(grid, cmap=ListedColormap(scale()), vmin=0, vmax=highest or 1.0, aspect="auto")
    for ticks, numbers, put in ((axes.set_xticks, heads, "head"), (axes.set_yticks, layers, "layer")):
        every = 1 + len(numbers) // _LONGEST_AXIS
        ticks(range(0, len(numbers), every), [str(number) for number in numbers[::every]])
        (axes.set_xlabel if put == "head" else axes.set_ylabel)(put)
    axes.set_title(f"(c) One head swapped: {_STYLE[estimator]['label']}", fontsize=9, loc="left")
    return drawn


def _caption(report: SwapTables) -> str:
    manifest = report.manifest
    units = " and ".join(f"{number:,} {unit}" for unit, number in report.results["units"].items())
    source = " and ".join(
        Path(str(manifest[key])).name for key in ("texts", "pairs") if manifest.get(key) is not None
    )
    name = Path(str(manifest["model"])).name
    what = (
        "paired differences from the model"
        if report.results["quality"]
        else "the correlation"
        if "ranking_agreement" in report.arms[0]
        else "the change"
    )
    return (
        f"{name} on {units} of {source}; nothing retrained. Bars in (a): 95 % bootstrap intervals of {what}. Change: "
        f"{wording(manifest).formula}."
    )
