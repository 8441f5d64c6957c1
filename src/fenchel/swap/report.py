"""A finished swap as files: tables, one self-contained page and a figure for print, all numbers those of ``swap.json``.

The page needs no network, and all text in it is escaped. The figure is read in grey and by the colour-blind: every
estimator has its marker, line and hatching, and colours differ in lightness.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fenchel.auditing.report.heatmap import Cell, HeadGrid
from fenchel.auditing.report.reproduce import manifest_entries
from fenchel.auditing.report.self_contained import page_environment, page_files
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
from fenchel.errors import InputError
from fenchel.io.schema import Field, OpenRecord, Place, Positive, Whole
from fenchel.io.schema import Record as SavedRecord
from fenchel.io.storage import Form, check_writable, read_document, write_document, write_text
from fenchel.options import ABLATIONS
from fenchel.swap.findings import (
    ESTIMATORS,
    SwapTables,
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
    "FILES",
    "RESULTS_FORM",
    "SCHEMA",
    "Ranking",
    "SwapReport",
    "arm_tables",
    "head_maps",
    "rankings",
    "render_html",
    "stacks",
    "write_figures",
]

Record = dict[str, Any]

_PACKAGE = "fenchel.swap"
_MEASURES = {
    "embedding_change": "change of the sentence embeddings, 1 − cosine",
    "ranking_agreement": "Spearman’s correlation with the model’s own ranking",
}
_ROLES = ("model", "control", "swap")
_BARS = {"exact": "exact", "second_order": "second", "first_order": "control"}
# Colour, marker, hatching and line.
_STYLE: dict[str, tuple[str, str, str, Any]] = {
    "second_order": ("#5b9bd5", "s", "////", (0, (4, 2))),
    "exact": ("#8a2b06", "D", "", "-"),
}
_CONTROL: dict[str, Any] = {
    "color": "#3b4252",
    "marker": "o",
    "linestyle": (0, (1, 1.5)),
    "markersize": 4,
    "markerfacecolor": "white",
    "linewidth": 1,
}
_SETTINGS: dict[Any, Any] = {
    **SETTINGS,
    "svg.hashsalt": "fenchel",  # without it, two figures of the same swap differ
    "svg.fonttype": "path",
}
_LONGEST_AXIS = 40
_UNSEALED = 1

FILES = ("swap.json", "swap.csv", "swap.svg", "swap.png", "swap.html")
"""What a swap writes for people, in the order in which it is written."""

SCHEMA = 2
"""Version of the files that a swap writes; since 2 they have a digest."""


class _SavedArm(OpenRecord):
    where: str
    estimator: str
    alpha: Positive
    control: bool
    layer: Place | None
    head: Place | None
    module: str | None


class _SavedManifest(OpenRecord):
    model: str


class _SavedResults(SavedRecord):
    manifest: _SavedManifest
    finding: str
    units: dict[str, Whole]
    quality: str | None
    arms: Annotated[list[_SavedArm], Field(min_length=1)]
    layers: list[dict[str, Any]]
    against_control: list[dict[str, Any]]
    smoothing: list[dict[str, Any]]
    ranking: list[dict[str, Any]] = Field(default_factory=list)


RESULTS_FORM = Form(
    name="table of a swap",
    version=SCHEMA,
    schema=_SavedResults,
    advice="Write it again: run the swap's command with --resume once that file is removed.",
)
"""What ``swap.json`` holds."""


def render_html(report: SwapTables) -> str:
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
        style=page_files(_PACKAGE, "report.css"),
        light_scale=stylesheet(colours),
        dark_scale=stylesheet(colours[::-1]),
    )


def _role(record: Record) -> str:
    return "control" if record["control"] else "model" if record["estimator"] == "model" else "swap"


def arm_tables(report: SwapTables) -> list[Record]:
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


def _nearest_alpha(report: SwapTables) -> float | None:
    """The α of the control that is nearest to exact, or to the first estimator."""
    nearest = {record["estimator"]: record["nearest_alpha"] for record in report.results["smoothing"]}
    return nearest.get("exact", next(iter(nearest.values()), None))


def stacks(report: SwapTables) -> list[Record]:
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


def head_maps(report: SwapTables) -> list[tuple[str, HeadGrid]]:
    """What one head alone does to the model's output under each estimator and ablation; none where none was swapped.

    Estimators share a scale, and so do ablations.
    """
    changes: dict[str, dict[tuple[int, int], float]] = {}
    for arm in report.arms:
        if arm["where"] == "head" and not arm["control"]:
            changes.setdefault(arm["estimator"], {})[arm["layer"], arm["head"]] = arm["hidden_change"]
    highest = dict.fromkeys((True, False), 0.0)
    for estimator, own in changes.items():
        highest[estimator in ABLATIONS] = max(highest[estimator in ABLATIONS], *own.values())
    found = []
    for estimator, own in changes.items():
        most = highest[estimator in ABLATIONS]
        cells = {
            place: Cell(number, f"q{level(value, most)}", short(value))
            for number, (place, value) in enumerate(own.items())
        }
        found.append((estimator, HeadGrid.of(cells, most)))
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


def rankings(report: SwapTables) -> list[Ranking]:
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
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    heads = [arm for arm in report.arms if arm["where"] == "head" and arm["estimator"] in _STYLE]
    maps = list(dict.fromkeys(arm["estimator"] for arm in heads))
    tall = min(6.0, 1.3 + 0.22 * len({arm["layer"] for arm in heads})) if heads else 0.0
    caption = textwrap.wrap(_caption(report), 118, break_on_hyphens=False)
    height = 3.5 + tall + 0.15 * len(caption)
    figure = Figure(figsize=(8.4, height), facecolor="white")

    def place(left: float, right: float, top: float, tallness: float) -> Axes:
        return figure.add_axes((left, 1 - (top + tallness) / height, right - left, tallness / height))

    estimated = any(record["estimator"] in _STYLE for record in report.layers)
    _against_alpha(place(0.085, 0.48 if estimated else 0.985, 0.35, 2.4), report)
    if estimated:
        _by_layer(place(0.59, 0.985, 0.35, 2.4), report)
    width = 0.84 / max(1, len(maps))
    highest = max((arm["hidden_change"] for arm in heads), default=0.0)
    for number, estimator in enumerate(maps):
        axes = place(0.085 + number * width, 0.025 + (number + 1) * width, 3.75, tall - 0.85)
        own = {
            (arm["layer"], arm["head"]): arm["hidden_change"]
            for arm in heads
            if arm["estimator"] == estimator
        }
        layers, columns = (sorted(set(side)) for side in zip(*own, strict=True))
        grid = [[own.get((layer, head), float("nan")) for head in columns] for layer in layers]
        drawn = axes.imshow(grid, cmap=ListedColormap(scale()), vmin=0, vmax=highest or 1.0, aspect="auto")
        for ticks, numbers in ((axes.set_xticks, columns), (axes.set_yticks, layers)):
            every = 1 + len(numbers) // _LONGEST_AXIS
            ticks(range(0, len(numbers), every), [str(one) for one in numbers[::every]])
        axes.set(xlabel="head", ylabel="layer")
        axes.set_title(f"(c) One head swapped: {ESTIMATORS[estimator]}", fontsize=9, loc="left")
        if estimator == maps[-1]:
            bar = figure.colorbar(drawn, cax=place(0.905, 0.92, 3.75, tall - 0.85))
            bar.set_label("change at the output", fontsize=7)
            bar.ax.tick_params(labelsize=6)
    figure.text(0.02, 0.1 / height, "\n".join(caption), fontsize=7, color=INK, va="bottom", parse_math=False)
    return figure


def _against_alpha(axes: Axes, report: SwapTables) -> None:
    words, name = wording(report.manifest), report.results["quality"]
    # Where it is a quality, the interval of the difference is shown: that of the level is mostly the text's.
    spread, label = f"{name}_difference", words.qualities.get(name or "", "")
    if name is None:
        ranked = "ranking_agreement" in report.arms[0]
        name = spread = "ranking_agreement" if ranked else "hidden_change"
        label = (
            "Spearman's correlation with the model's ranking"
            if ranked
            else f"relative change of the {words.output}"
        )
    whole = [record for record in report.arms if record["where"] == "model" and record[name] is not None]
    controls = sorted((record for record in whole if record["control"]), key=lambda record: record["alpha"])

    def bars(records: Sequence[Record]) -> list[list[float]]:
        found = []
        for record in records:
            ends: list[Any] = [record.get(f"{spread}{end}") for end in ("", "_low", "_high")]
            middle, low, high = (0.0, 0.0, 0.0) if None in ends else ends
            found.append((max(0.0, middle - low), max(0.0, high - middle)))
        return [[below for below, _ in found], [above for _, above in found]]

    alphas = [record["alpha"] for record in controls]
    values = [record[name] for record in controls]
    style: dict[str, Any] = {**_CONTROL, "capsize": 2, "label": "control: first order at α"}
    axes.errorbar(alphas, values, bars(controls), **style)
    least, most = min(alphas, default=1.0), max(alphas, default=1.0)
    for record in whole:
        estimator = record["estimator"]
        if estimator == "model":
            axes.axhline(record[name], color=INK, linewidth=0.8, label="the model")
        elif estimator in _STYLE:
            colour, marker, _, line = _STYLE[estimator]
            axes.axhline(record[name], color=colour, linestyle=line, linewidth=0.8, alpha=0.8)
            place = most + (0.08 + 0.09 * list(_STYLE).index(estimator)) * (most - least or 1.0)
            style = {"markersize": 5, "capsize": 3, "linestyle": "none", "label": ESTIMATORS[estimator]}
            axes.errorbar([place], [record[name]], bars([record]), color=colour, marker=marker, **style)
    # Where the estimators stand is no α, so the axis must not name one there.
    axes.set_xticks([tick for tick in axes.get_xticks() if least - 1e-9 <= tick <= most + 1e-9])
    axes.set(xlabel="α of the control (estimators, at α = 1, on the right)", ylabel=label)
    _finish(axes, "(a) Against smoothing", "both", "best")


def _by_layer(axes: Axes, report: SwapTables) -> None:
    changes: dict[tuple[str, float], dict[tuple[str, int], float]] = {}
    for record in report.layers:
        own = changes.setdefault((record["estimator"], record["alpha"]), {})
        own[record["stack"], record["layer"]] = record["hidden_change"]
    places = list(next(iter(changes.values())))
    of_layers = list(dict.fromkeys(stack for stack, _ in places if stack != "output"))
    shown = [name for name in _STYLE if (name, 1.0) in changes]
    width = 0.8 / max(1, len(shown))
    for number, name in enumerate(shown):
        colour, marker, hatch, _ = _STYLE[name]
        middles = [i + (number - (len(shown) - 1) / 2) * width for i in range(len(places))]
        style: dict[str, Any] = {"color": colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0.5}
        heights = [changes[name, 1.0][place] for place in places]
        axes.bar(middles, heights, width * 0.92, label=f"all layers swapped: {ESTIMATORS[name]}", **style)
        alone = {
            arm["layer"]: arm["hidden_change"]
            for arm in report.arms
            if arm["where"] == "layer" and arm["estimator"] == name
        }
        there = [
            (x, alone[layer])
            for x, (stack, layer) in zip(middles, places, strict=True)
            if [stack] == of_layers and layer in alone
        ]
        if there:
            style = {"linestyle": "none", "markersize": 5, "color": "white", "markeredgecolor": INK}
            label = f"only this layer, at the output: {ESTIMATORS[name]}"
            axes.plot(*zip(*there, strict=True), marker=marker, label=label, **style)
    alpha = _nearest_alpha(report)
    if alpha is not None:
        control = changes["first_order", alpha]
        label = f"all layers: control, α = {alpha:g}"
        axes.plot(range(len(places)), [control[place] for place in places], **_CONTROL, label=label)
    every, several = 1 + len(places) // _LONGEST_AXIS, len(of_layers) > 1
    names = [
        f"{f'{stack[:3]} ' if several else ''}{layer}" if stack in of_layers else "output"
        for stack, layer in places[::every]
    ]
    axes.set_xticks(range(0, len(places), every), names, rotation=90 if several else 0)
    axes.set(xlabel="output of layer", ylabel="relative change")
    axes.margins(y=0.25)
    _finish(axes, "(b) Where the change arises", "y", "upper left")


def _finish(axes: Axes, title: str, grid: Literal["both", "y"], legend: Any) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.legend(fontsize=6.5 if grid == "both" else 6, frameon=False, loc=legend)
    axes.grid(axis=grid, color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


def _caption(report: SwapTables) -> str:
    manifest, words = report.manifest, wording(report.manifest)
    units = " and ".join(f"{number:,} {unit}" for unit, number in report.results["units"].items())
    sources = [Path(str(manifest[key])).name for key in ("texts", "pairs") if manifest.get(key) is not None]
    name = Path(str(manifest["model"])).name
    ranked = "the correlation" if "ranking_agreement" in report.arms[0] else "the change"
    what = "paired differences from the model" if report.results["quality"] else ranked
    return (
        f"{name} on {units} of {' and '.join(sources)}; nothing retrained. Bars in (a): 95 % bootstrap intervals of "
        f"{what}. Change: {words.formula}."
    )


@dataclass(frozen=True, repr=False)
class SwapReport(SwapTables):
    """What was swapped and what came of it, and the files that show it.

    Attributes:
        manifest: The model, the text, the options and the versions.
        results: The tables, see ``fenchel.swap.statistics.tabulated``.
    """

    def save(self, directory: str | Path) -> Path:
        """Write every file into a folder; each is whole or not there.

        Args:
            directory: The folder; made if it is not there.

        Returns:
            Path of ``swap.png``.

        Raises:
            OutputError: If something cannot be written.
            MissingExtraError: If matplotlib or jinja2 is not installed.
        """
        folder = Path(directory).expanduser()
        check_writable(folder)
        saved = {"manifest": self.manifest, "finding": self.finding, **self.results}
        write_document(folder / FILES[0], RESULTS_FORM, saved)
        write_text(folder / "swap.csv", self.csv())
        figure = write_figures(self, folder)
        write_text(folder / "swap.html", render_html(self))
        return figure

    def csv(self) -> str:
        """The arms as a table with commas, a line an arm; empty where a number is missing."""
        written = io.StringIO()
        names = list(dict.fromkeys(name for record in self.arms for name in record))
        writer = csv.DictWriter(written, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.arms)
        return written.getvalue()

    @classmethod
    def load(cls, directory: str | Path) -> SwapReport:
        """Read a swap from its folder, exactly as it was saved.

        Raises:
            InputError: If the folder holds none, one of another version, or one that was changed after it was written.
        """
        path = Path(directory).expanduser() / FILES[0]
        if not path.is_file():
            raise InputError(
                f"{directory} holds no swap ({FILES[0]} is not there). Give the folder that fenchel swap --out made."
            )
        saved = read_document(path, RESULTS_FORM, unsealed_version=_UNSEALED)
        results = {name: saved[name] for name in saved if name not in ("manifest", "finding")}
        return cls(saved["manifest"], results)
