"""A swap as one self-contained page, and as a figure for print: all numbers are those of ``swap.json``.

The page needs no network, and all text in it is escaped. The figure is read in grey and by the colour-blind: every
estimator has its marker, line and hatching, and colours differ in lightness.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.auditing.report.reproduce import manifest_entries
from fenchel.auditing.report.self_contained import page_environment, page_file
from fenchel.drawing import (
    GRID,
    INK,
    LEVELS,
    SETTINGS,
    WhiskerAxis,
    level,
    scale,
    short,
    stylesheet,
    write_figure,
)
from fenchel.options import ABLATIONS
from fenchel.swap.report import (
    ESTIMATORS,
    SwapReport,
    arm_name,
    by_alpha,
    share_left_in_words,
    signed,
    wording,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "HeadMap",
    "Ranking",
    "arm_tables",
    "head_maps",
    "rankings",
    "render_html",
    "stacks",
    "write_figures",
]

Record = dict[str, Any]

_PACKAGE = "fenchel.swap"
_REPORT = "fenchel.auditing.report"
_STYLES = ((_REPORT, "report.css"), (_REPORT, "whiskers.css"), (_PACKAGE, "swap.css"))
_MEASURES = {
    "embedding_change": "change of the sentence embeddings, 1 − cosine",
    "ranking_agreement": "Spearman’s correlation with the model’s own ranking",
}
_ROLES = ("model", "control", "swap")
_BARS = {"exact": "exact", "second_order": "second", "first_order": "control"}
_STYLE: dict[str, dict[str, Any]] = {
    "second_order": {"colour": "#5b9bd5", "marker": "s", "hatch": "////", "line": (0, (4, 2))},
    "exact": {"colour": "#8a2b06", "marker": "D", "hatch": "", "line": "-"},
}
_CONTROL = {"colour": "#3b4252", "marker": "o", "line": (0, (1, 1.5))}
_SETTINGS: dict[Any, Any] = {
    **SETTINGS,
    "svg.hashsalt": "fenchel",  # without it, two figures of the same swap differ
    "svg.fonttype": "path",
}
_LONGEST_AXIS = 40


def render_html(report: SwapReport) -> str:
    """A swap as one HTML page that needs no network and runs no script.

    Args:
        report: The swap. Its texts (model, text, modules) are escaped, whatever they hold.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    environment = page_environment(_PACKAGE)
    environment.filters.update(signed=signed, left=share_left_in_words)
    colours = scale()
    swaps = [arm for arm in report.arms if arm["where"] == "model" and _role(arm) == "swap"]
    layers = report.manifest.get("stacks", {}).items()
    listed = [f"{name}: {count} layers" for name, count in layers if name != "output"]
    return environment.get_template("swap.html.jinja").render(
        manifest=report.manifest,
        finding=report.finding,
        units=report.results["units"],
        words=wording(report.manifest),
        quality=report.results["quality"],
        smoothing=report.results["smoothing"],
        # The exact estimator, or the last one where exact was not asked for.
        main=next((arm for arm in swaps if arm["estimator"] == "exact"), swaps[-1] if swaps else None),
        model=next(arm for arm in report.arms if _role(arm) == "model"),
        tables=arm_tables(report),
        stacks=stacks(report),
        maps=head_maps(report),
        rankings=rankings(report),
        names={name: words[:1].upper() + words[1:] for name, words in ESTIMATORS.items()},
        levels=range(LEVELS),
        entries=sorted(manifest_entries({**report.manifest, "stacks": listed})),
        style="".join(page_file(package, name) for package, name in _STYLES),
        light_scale=stylesheet(colours),
        dark_scale=stylesheet(colours[::-1]),
    )


def _role(record: Record) -> str:
    return "control" if record["control"] else "model" if record["estimator"] == "model" else "swap"


def arm_tables(report: SwapReport) -> list[Record]:
    """A table of all model-wide arms for each measure, the quality first, where there is one.

    Returns:
        Of each its ``measure``, what it is in ``words``, whether the difference from the model is drawn
        (``of_difference``), where the model stands (``model_at``), and ``rows``: the model, the controls by α, the
        estimators, with what is ``shown`` and its interval as numbers and as a ``whisker``.
    """
    words = wording(report.manifest)
    known = {**words.qualities, "hidden_change": f"relative change of the {words.output}", **_MEASURES}
    whole = [record for record in report.arms if record["where"] == "model"]
    whole.sort(key=lambda record: (_ROLES.index(_role(record)), record["alpha"]))
    tables = []
    for measure, called in known.items():
        if measure not in whole[0]:
            continue
        of_difference = measure in words.qualities
        drawn = f"{measure}_difference" if of_difference else measure
        at_model = 0.0 if of_difference else float(whole[0][measure] or 0.0)
        spans = [tuple(record[f"{drawn}{end}"] for end in ("", "_low", "_high")) for record in whole]
        axis = WhiskerAxis.of([end for span in spans for end in span], through=at_model)
        rows = [
            {
                "name": arm_name(record),
                "role": _role(record),
                "value": record[measure],
                "shown": span[0],
                "low": span[1],
                "high": span[2],
                "whisker": axis.whisker(*span),
            }
            for record, span in zip(whole, spans, strict=True)
        ]
        tables.append(
            {
                "measure": measure,
                "words": called,
                "of_difference": of_difference,
                "rows": rows,
                "model_at": axis.place(at_model),
            }
        )
    return tables


def _nearest_alpha(report: SwapReport) -> float | None:
    """The α of the control that is nearest to exact, or to the first estimator."""
    nearest = {record["estimator"]: record["nearest_alpha"] for record in report.results["smoothing"]}
    return nearest.get("exact", next(iter(nearest.values()), None))


def stacks(report: SwapReport) -> list[Record]:
    """The change of every layer's output under the estimators and under the control that is nearest to exact.

    Returns:
        Of each stack its ``name`` and its ``layers``: the ``layer``'s number, ``bars`` (arm, change, length in percent
        of the longest) and, by estimator, the change at the output where it ``alone`` was swapped.
    """
    alpha = _nearest_alpha(report)
    shown = [
        record for record in report.layers if record["estimator"] != "first_order" or record["alpha"] == alpha
    ]
    shown.sort(key=lambda record: list(_BARS).index(record["estimator"]))
    longest = max((record["hidden_change"] for record in shown), default=0.0) or 1.0
    names = list(dict.fromkeys(record["stack"] for record in report.layers)) if shown else []
    of_layers = [name for name in names if name != "output"]
    found = []
    for name in names:
        own = [record for record in shown if record["stack"] == name]
        layers = [
            {
                "layer": layer,
                "bars": [
                    (
                        _BARS[record["estimator"]],
                        record["hidden_change"],
                        round(100 * record["hidden_change"] / longest, 2),
                    )
                    for record in own
                    if record["layer"] == layer
                ],
                "alone": {
                    arm["estimator"]: arm["hidden_change"]
                    for arm in report.arms
                    if of_layers == [name] and arm["where"] == "layer" and arm["layer"] == layer
                    if not arm["control"]
                },
            }
            for layer in sorted({record["layer"] for record in own})
        ]
        found.append({"name": name, "layers": layers})
    return found


@dataclass(frozen=True)
class HeadMap:
    """What one head alone does to the model's output when it infers by an estimator, or is ablated.

    Attributes:
        estimator: Which.
        heads: The numbers of the columns.
        rows: A layer's number and, for each head, its CSS class and its number; None where there is none.
        highest: The upper end of the scale, which all estimators share, and all ablations.
    """

    estimator: str
    heads: list[int]
    rows: list[tuple[int, list[tuple[str, str] | None]]]
    highest: float

    @property
    def width(self) -> str:
        """How wide the map is, as the CSS class that decides when its numbers are shown."""
        return "few" if len(self.heads) <= 8 else "several" if len(self.heads) <= 12 else "many"

    @property
    def height(self) -> str:
        """How tall the map is, as the CSS class of its rows."""
        return "low" if len(self.rows) <= 16 else "tall"


def head_maps(report: SwapReport) -> list[HeadMap]:
    """A map an estimator and ablation; none where no head was swapped alone."""
    changes: dict[str, dict[tuple[int, int], float]] = {}
    for arm in report.arms:
        if arm["where"] == "head" and not arm["control"]:
            changes.setdefault(arm["estimator"], {})[arm["layer"], arm["head"]] = arm["hidden_change"]
    highest = dict.fromkeys((True, False), 0.0)
    for estimator, own in changes.items():
        ablated = estimator in ABLATIONS
        highest[ablated] = max(highest[ablated], *own.values())
    found = []
    for estimator, own in changes.items():
        most, heads = highest[estimator in ABLATIONS], sorted({head for _, head in own})
        rows = [
            (
                layer,
                [
                    (f"q{level(own[layer, head], most)}", short(own[layer, head]))
                    if (layer, head) in own
                    else None
                    for head in heads
                ],
            )
            for layer in sorted({layer for layer, _ in own})
        ]
        found.append(HeadMap(estimator, heads, rows, most))
    return found


@dataclass(frozen=True)
class Ranking:
    """Heads, or layers, in the order of their measured effect, drawn.

    Attributes:
        estimator: What was swapped in.
        where: ``head`` or ``layer``.
        measure: What the effect is of, in words.
        of_quality: Whether that is a loss or a score.
        rows: Of each place its entry of ``SwapReport.ranking``, its arm, its effect drawn, and the least and greatest
            change that the control gives there.
        zero_at: Where 0 stands.
        sure: Of how many the interval leaves 0 out.
    """

    estimator: str
    where: str
    measure: str
    of_quality: bool
    rows: list[Record]
    zero_at: float
    sure: int


def rankings(report: SwapReport) -> list[Ranking]:
    """The rankings of a swap, those of ablations first."""
    words = wording(report.manifest)
    arms = {(arm["estimator"], arm["layer"], arm["head"]): arm for arm in report.arms if not arm["control"]}
    found = []
    for ranked in sorted(report.ranking, key=lambda record: record["estimator"] not in ABLATIONS):
        order, measure = ranked["order"], ranked["measure"]
        spans = [tuple(one[f"effect{end}"] for end in ("", "_low", "_high")) for one in order]
        axis = WhiskerAxis.of([end for span in spans for end in span], through=0.0)
        rows = [
            {
                **one,
                "arm": arms[ranked["estimator"], one["layer"], one["head"]],
                "whisker": axis.whisker(*span),
                "by_alpha": by_alpha(report.arms, one),
            }
            for one, span in zip(order, spans, strict=True)
        ]
        sure = sum(low is not None and (low > 0 or high < 0) for _, low, high in spans)
        called = words.qualities.get(
            measure, _MEASURES.get(measure, f"relative change of the {words.output}")
        )
        of_quality = measure in words.qualities
        found.append(
            Ranking(ranked["estimator"], ranked["where"], called, of_quality, rows, axis.place(0.0), sure)
        )
    return found


def write_figures(report: SwapReport, directory: Path) -> Path:
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


def _draw(report: SwapReport) -> Figure:
    from matplotlib.figure import Figure

    heads = [arm for arm in report.arms if arm["where"] == "head" and arm["estimator"] in _STYLE]
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

    estimated = any(record["estimator"] in _STYLE for record in report.layers)
    _against_alpha(place(0.085, 0.48 if estimated else 0.985, 0.35, 2.4), report)
    if estimated:
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


def _measure(report: SwapReport) -> tuple[str, str]:
    """The name of what the first panel shows, and its axis."""
    quality = report.results["quality"]
    if quality is not None:
        return quality, wording(report.manifest).qualities[quality]
    if "ranking_agreement" not in report.arms[0]:
        return "hidden_change", f"relative change of the {wording(report.manifest).output}"
    return "ranking_agreement", "Spearman's correlation with the model's ranking"


def _against_alpha(axes: Axes, report: SwapReport) -> None:
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
            markersize=5, capsize=3, linestyle="none", label=ESTIMATORS[record["estimator"]],
        )  # fmt: skip
    # Where the estimators stand is no α, so the axis must not name one there.
    axes.set_xticks([tick for tick in axes.get_xticks() if min(alphas) - 1e-9 <= tick <= max(alphas) + 1e-9])
    axes.set_xlabel("α of the control (estimators, at α = 1, on the right)")
    axes.set_ylabel(label)
    axes.set_title("(a) Against smoothing", fontsize=9, loc="left")
    axes.legend(fontsize=6.5, frameon=False, loc="best")
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _by_layer(axes: Axes, report: SwapReport) -> None:
    layers = report.layers
    places = list(dict.fromkeys((record["stack"], record["layer"]) for record in layers))
    of_layers = [stack for stack in dict.fromkeys(stack for stack, _ in places) if stack != "output"]
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
            edgecolor="white", linewidth=0.5, label=f"all layers swapped: {ESTIMATORS[name]}",
        )  # fmt: skip
        if alone and len(of_layers) == 1:
            there = [
                (x, alone[name, layer])
                for x, (stack, layer) in zip(middles, places, strict=True)
                if stack in of_layers and (name, layer) in alone
            ]
            axes.plot(
                *zip(*there, strict=True), linestyle="none", marker=style["marker"], markersize=5, color="white",
                markeredgecolor=INK, label=f"only this layer, at the output: {ESTIMATORS[name]}",
            )  # fmt: skip
    alpha = _nearest_alpha(report)
    if alpha is not None:
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
    axes.set_title(f"(c) One head swapped: {ESTIMATORS[estimator]}", fontsize=9, loc="left")
    return drawn


def _caption(report: SwapReport) -> str:
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
