"""Files of a finished swap: tables and a self-contained page with the numbers of ``swap.json``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fenchel.arguments import Kind
from fenchel.auditing.heads import SHORT_KIND_NAMES, AttentionModule
from fenchel.auditing.report.html import manifest_entries, rendered_page
from fenchel.auditing.report.plots import Cell, HeadGrid
from fenchel.auditing.swap_effects import by_alpha
from fenchel.drawing import (
    MISSING,
    change_style,
    level,
    short,
    signed,
    signed_short,
    stacked,
    titled_table,
    whiskers,
)
from fenchel.errors import InputError
from fenchel.io.runs import check_writable, write_text
from fenchel.io.storage import (
    Field,
    Form,
    NonEmptyStr,
    NonNegativeInt,
    OpenRecord,
    PositiveFloat,
    PositiveInt,
    read_document,
    write_document,
)
from fenchel.io.storage import Record as SavedRecord
from fenchel.run_options import ABLATIONS
from fenchel.swap.findings import (
    ESTIMATORS,
    Wording,
    condition_name,
    directions,
    finding,
    interval_of,
    main_condition,
    place_name,
    share_left_in_words,
    too_few,
    within,
    wording,
    worst_and_best,
)
from fenchel.swap.statistics import by_effect

if TYPE_CHECKING:
    from rich.console import RenderableType

Record = dict[str, Any]

_MEASURES = {
    "embedding_change": "change of the sentence embeddings, 1 − cosine",
    "ranking_agreement": "Spearman’s correlation with the model’s own ranking",
}
_ROLES = ("model", "control", "swap")
_BARS = {"exact": "exact", "second_order": "second", "first_order": "control"}
_HEADINGS = {"loss": "Loss", "score_correlation": "Spearman"}
_MOST = 5

# Result files of a swap, in the order in which they are written.
FILES = ("swap.json", "swap.csv", "swap.html")

# Version of the files of a swap; since 3 they call an arm a condition.
SCHEMA = 3


class _SavedCondition(OpenRecord):
    where: str
    estimator: str
    alpha: PositiveFloat
    control: bool
    layer: PositiveInt | None
    head: PositiveInt | None
    module: str | None


class SavedManifest(OpenRecord):
    """The entries of a saved manifest that are used."""

    model: NonEmptyStr
    stacks: dict[str, NonNegativeInt] = Field(default_factory=dict)
    modules: list[AttentionModule] = Field(default_factory=list)


class _SavedResults(SavedRecord):
    manifest: SavedManifest
    finding: str
    units: dict[str, NonNegativeInt]
    quality: str | None
    conditions: Annotated[list[_SavedCondition], Field(min_length=1)]
    layers: list[dict[str, Any]]
    against_control: list[dict[str, Any]]
    smoothing: list[dict[str, Any]]
    ranking: list[dict[str, Any]] = Field(default_factory=list)


# Contents of ``swap.json``.
RESULTS_FORM = Form(
    name="table of a swap",
    version=SCHEMA,
    schema=_SavedResults,
    advice="Write it again: run the swap's command with --resume once that file is removed.",
)


def render_html(report: SwapReport) -> str:
    """Render a swap as one self-contained HTML page without scripts.

    Args:
        report: The swap. Its texts (model, text, modules) are escaped.

    Returns:
        The page.

    Raises:
        MissingExtraError: If jinja2 is not installed.
    """
    layers = report.manifest.get("stacks", {}).items()
    listed = [f"{name}: {count} layers" for name, count in layers if name != "output"]
    words = wording(report.manifest)
    entries = {name: value for name, value in report.manifest.items() if name != "modules"}
    return rendered_page(
        "fenchel.swap",
        "swap.html.jinja",
        filters={
            "left": lambda record: share_left_in_words(record, report.results),
            "condition_name": condition_name,
            "place_name": lambda record: place_name(record, words),
        },
        manifest=report.manifest,
        report=report,
        words=words,
        main=main_condition(report.results),
        tables=condition_tables(report),
        stacks=stacks(report),
        maps=head_maps(report),
        rankings=rankings(report),
        controlled=_has_controls(report, "model"),
        names={name: called[:1].upper() + called[1:] for name, called in ESTIMATORS.items()},
        entries=sorted(manifest_entries({**entries, "stacks": listed})),
    )


def _has_controls(report: SwapReport, *where: str) -> bool:
    """Whether there are controls of the whole model, or of single layers and heads."""
    return any(record["control"] and record["where"] in where for record in report.conditions)


def _role(record: Record) -> str:
    return "control" if record["control"] else "model" if record["estimator"] == "model" else "swap"


def condition_tables(report: SwapReport) -> list[Record]:
    """A table of all model-wide conditions for each measure, losses and scores first.

    Returns:
        For each its ``measure``, its name in ``words``, whether the difference from the model is drawn
        (``of_difference``), the position of the model (``model_at``), and ``rows``: the model, the controls by α, the
        estimators, each with its record (``record``), its ``role``, and the drawn ``interval`` with its ``whisker``.
    """
    words = wording(report.manifest)
    whole = [record for record in report.conditions if record["where"] == "model"]
    whole.sort(key=lambda record: (_ROLES.index(_role(record)), record["alpha"]))
    tables = []
    for measure in (*words.qualities, "hidden_change", *_MEASURES):
        if measure not in whole[0]:
            continue
        of_difference = measure in words.qualities
        intervals = [
            interval_of(record, f"{measure}_difference" if of_difference else measure) for record in whole
        ]
        at_model = 0.0 if of_difference else float(whole[0][measure] or 0.0)
        drawn, model_at = whiskers((interval.span for interval in intervals), through=at_model)
        rows = [
            {"record": record, "role": _role(record), "interval": interval, "whisker": whisker}
            for record, interval, whisker in zip(whole, intervals, drawn, strict=True)
        ]
        table = {"measure": measure, "words": _measure_in_words(measure, words), "rows": rows}
        tables.append({**table, "of_difference": of_difference, "model_at": model_at})
    return tables


def _measure_in_words(measure: str, words: Wording) -> str:
    change = {"hidden_change": f"relative change of the {words.output}"}
    return {**words.qualities, **change, **_MEASURES}[measure]


def _nearest_alpha(report: SwapReport) -> float | None:
    """The α of the control nearest to exact, or to the first estimator."""
    nearest = {record["estimator"]: record["nearest_alpha"] for record in report.results["smoothing"]}
    return nearest.get("exact", next(iter(nearest.values()), None))


def stacks(report: SwapReport) -> list[Record]:
    """The change of every layer's output under the estimators and under the control nearest to exact.

    Returns:
        For each stack its ``name`` and ``layers``: number of the ``layer``, ``bars`` (record, change, length in percent
        of the longest) and, by estimator, the change of the output where it ``alone`` was swapped.
    """
    alpha, order = _nearest_alpha(report), list(_BARS)
    shown = [one for one in report.layers if one["estimator"] != "first_order" or one["alpha"] == alpha]
    longest = max((record["hidden_change"] for record in shown), default=0.0) or 1.0
    bars: dict[str, dict[int, list[tuple[str, float, float]]]] = {}
    for record in sorted(shown, key=lambda record: order.index(record["estimator"])):
        change = record["hidden_change"]
        bar = (_BARS[record["estimator"]], change, round(100 * change / longest, 2))
        bars.setdefault(record["stack"], {}).setdefault(record["layer"], []).append(bar)
    # Conditions number the layers of all stacks together, so the stack is only known if there is one.
    alone: dict[int, dict[str, float]] = {}
    if len(bars.keys() - {"output"}) == 1:
        for record in report.conditions:
            if record["where"] == "layer" and not record["control"]:
                alone.setdefault(record["layer"], {})[record["estimator"]] = record["hidden_change"]
    return [
        {
            "name": name,
            "layers": [
                {"layer": layer, "bars": drawn, "alone": {} if name == "output" else alone.get(layer, {})}
                for layer, drawn in by_layer.items()
            ],
        }
        for name, by_layer in bars.items()
    ]


def head_maps(report: SwapReport) -> list[tuple[str, Kind | None, HeadGrid]]:
    """Heat maps of the effect of single heads for each estimator and ablation: on the loss or score, else the output.

    Estimators share a scale, and so do ablations. If there are several kinds of attention, each has a map.
    """
    layers = wording(report.manifest).layers
    quality = report.results["quality"]
    name = "hidden_change" if quality is None else f"{quality}_difference"
    changes: dict[str, dict[tuple[int, int], float | None]] = {}
    for record in report.conditions:
        if record["where"] == "head" and not record["control"]:
            changes.setdefault(record["estimator"], {})[record["layer"], record["head"]] = record[name]
    result = []
    for estimator, by_head in changes.items():
        alike = (changes[other] for other in changes if (other in ABLATIONS) == (estimator in ABLATIONS))
        most = max(abs(change or 0.0) for other in alike for change in other.values())
        cells = {
            key: Cell(number, f"q{level(change or 0.0, most)}", short(change))
            if quality is None
            else Cell(number, change_style(change, most), signed_short(change))
            for number, (key, change) in enumerate(by_head.items())
        }
        by_kind: dict[Kind | None, dict[tuple[int, int], Cell]] = {}
        for (number, head), cell in cells.items():
            kind, layer = layers.get(number, (None, number))
            by_kind.setdefault(kind, {})[layer, head] = cell
        result += ((estimator, kind, HeadGrid.of(of_kind, most)) for kind, of_kind in by_kind.items())
    return result


def rankings(report: SwapReport) -> list[Record]:
    """Heads, or layers, by their measured effect, with drawings; ablations first.

    Returns:
        For each estimator what is ranked (``where``), the ``measure`` of the effect in words and whether that is a loss
        or a score (``of_quality``), the position of 0 (``zero_at``), whether there are controls (``controlled``), in
        words whether there are too ``few`` units for a conclusion, the number of intervals without 0 (``sure``) and
        their ``directions``, and ``rows``: for each place its entry of
        ``SwapReport.ranking``, its ``record``, its effect as a ``whisker``, and the smallest and largest change under
        its controls (``by_alpha``).
    """
    words = wording(report.manifest)
    records = {
        (record["estimator"], record["layer"], record["head"]): record
        for record in report.conditions
        if not record["control"]
    }
    result = []
    for ranked in sorted(report.ranking, key=lambda record: record["estimator"] not in ABLATIONS):
        order, measure = ranked["order"], ranked["measure"]
        intervals = [interval_of(one, "effect") for one in order]
        drawn, zero_at = whiskers(interval.span for interval in intervals)
        rows = [
            {
                **one,
                "record": records[ranked["estimator"], one["layer"], one["head"]],
                "whisker": whisker,
                "by_alpha": by_alpha(report.conditions, one),
            }
            for one, whisker in zip(order, drawn, strict=True)
        ]
        result.append(
            {
                **ranked,
                "measure": _measure_in_words(measure, words),
                "of_quality": measure in words.qualities,
                "rows": rows,
                "zero_at": zero_at,
                "few": too_few(report.results, measure),
                "controlled": any(row["by_alpha"] for row in rows),
                "sure": sum(interval.direction != 0 for interval in intervals),
                "directions": directions(intervals, words.sentences.get(measure, "it")),
            }
        )
    return result


@dataclass(frozen=True, repr=False)
class SwapReport:
    """Results of a swap, and the files that show them.

    Attributes:
        manifest: The model, the text, the options and the versions.
        results: The tables, see ``fenchel.swap.statistics.Tables``.
    """

    manifest: dict[str, Any]
    results: dict[str, Any]

    @property
    def conditions(self) -> list[dict[str, Any]]:
        """A record of the model itself, of every control and of every swap."""
        return self.results["conditions"]

    @property
    def layers(self) -> list[dict[str, Any]]:
        """A record of every layer and model-wide condition: the change of its output."""
        return self.results["layers"]

    @property
    def ranking(self) -> list[dict[str, Any]]:
        """Heads, or layers, by their measured effect, for every estimator and ablation."""
        return self.results.get("ranking", [])

    @property
    def finding(self) -> str:
        """The results in sentences that the intervals support."""
        result = finding(self.results, wording(self.manifest))
        if (reason := self.manifest.get("unlabelled")) is not None:
            result = f"{result} The images have no labels: {reason}."
        trained_with = self.manifest.get("trained_with")
        if trained_with is None:
            return result
        return (
            f"{result} The model was trained with the {str(trained_with).replace('_', ' ')} estimator; the model here "
            "is the same weights under first order."
        )

    def __repr__(self) -> str:
        """Model, counts and first result in one line."""
        units = ", ".join(f"{number:,} {unit}" for unit, number in self.results["units"].items())
        first, _, _ = f"{self.finding} ".replace("\n", " ").partition(". ")
        said = f": {first}" if first.strip() else ""
        counted = f"{len(self.conditions):,} conditions on {units}"
        return f"<{type(self).__name__} of {self.manifest.get('model')}, {counted}{said}>"

    def condition(
        self, estimator: str, alpha: float = 1.0, *, layer: int | None = None, head: int | None = None
    ) -> dict[str, Any]:
        """The record of one condition.

        Args:
            estimator: ``model``, ``first_order``, ``second_order``, ``exact`` or an ablation.
            alpha: Of the control.
            layer: Number of the only layer that was swapped.
            head: Number of the only head that was swapped.

        Raises:
            InputError: If there was no such condition.
        """
        wanted = {"estimator": estimator, "alpha": alpha, "layer": layer, "head": head}
        for record in self.conditions:
            if all(record[name] == value for name, value in wanted.items()):
                return record
        where = "" if layer is None else f" in layer {layer}" + ("" if head is None else f", head {head}")
        raise InputError(
            f"no condition {estimator!r} with alpha {alpha:g}{where} was run; see report.conditions for those that were"
        )

    def save(self, directory: str | Path) -> Path:
        """Write all files into a folder, each atomically.

        Args:
            directory: The folder; created if it does not exist.

        Returns:
            Path of ``swap.html``.

        Raises:
            OutputError: If something cannot be written.
            MissingExtraError: If jinja2 is not installed.
        """
        folder = Path(directory).expanduser()
        check_writable(folder)
        saved = {"manifest": self.manifest, "finding": self.finding, **self.results}
        write_document(folder / FILES[0], RESULTS_FORM, saved)
        write_text(folder / "swap.csv", self.csv())
        write_text(folder / "swap.html", render_html(self))
        return folder / "swap.html"

    def csv(self) -> str:
        """The conditions in CSV format, one per line; empty where a number is missing."""
        written = io.StringIO()
        names = list(dict.fromkeys(name for record in self.conditions for name in record))
        writer = csv.DictWriter(written, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.conditions)
        return written.getvalue()

    @classmethod
    def load(cls, directory: str | Path) -> SwapReport:
        """Load a swap from its folder.

        Raises:
            InputError: If the folder contains none, or one that was changed or is of another version.
        """
        path = Path(directory).expanduser() / FILES[0]
        if not path.is_file():
            raise InputError(
                f"{directory} holds no swap ({FILES[0]} is missing). Give the folder of fenchel swap --out."
            )
        saved = read_document(path, RESULTS_FORM)
        del saved["finding"]
        return cls(saved.pop("manifest"), saved)


def terminal_table(report: SwapReport) -> RenderableType:
    """The tables, for rich; they fit 80 columns and break headers in narrower terminals.

    Args:
        report: The swap.

    Returns:
        An object for ``rich.print``. Names are not interpreted as markup.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    whole = [record for record in report.conditions if record["where"] == "model"]
    units = ", ".join(f"{number:,} {unit}" for unit, number in report.results["units"].items())
    words = wording(report.manifest)
    parts: list[Any] = [_table(f"{report.manifest['model']}, {units}", [whole], report, words, [])]
    for where, labels in (("layer", ["Layer"]), ("head", ["Layer", "Head"])):
        records = [one for one in report.conditions if one["where"] == where and not one["control"]]
        groups = {"swapped alone": [record for record in records if record["estimator"] not in ABLATIONS]}
        for name in ABLATIONS:
            groups[f"with {ESTIMATORS[name]}"] = [record for record in records if record["estimator"] == name]
        for called, group in groups.items():
            if group:
                shown, ends = _both_ends(group, report.results["quality"], words)
                parts.append(_table(f"One {where} {called}: {shown}", ends, report, words, labels))
    if whole[0].get("score_correlation", 0) is None:
        parts.append(("The model gives every pair the same similarity, so there is no ranking.", "bold"))
    return stacked(*parts)


def _both_ends(group: list[Record], quality: str | None, words: Wording) -> tuple[str, list[list[Record]]]:
    """The heads or layers with the largest effect and with the smallest, in words and as records."""
    measure, name, order = by_effect(group, quality)
    known = [record for record in order if record[name] is not None]
    what = words.sentences.get(measure, "the embeddings" if measure == "embedding_change" else "the output")
    if len(known) <= 2 * _MOST:
        return f"all, by the effect on {what}", [order]
    if quality is None:
        shown = f"the {_MOST} of {len(order)} that change {what} most, and the {_MOST} that change it least"
    else:
        first, last = worst_and_best(quality)
        measured = what.removeprefix("the ")
        shown = f"the {_MOST} of {len(order)} with the {first} {measured}, and the {_MOST} with the {last}"
    return shown, [known[:_MOST], known[-_MOST:]]


def _table(
    title: str, sections: list[list[Record]], report: SwapReport, words: Wording, labels: list[str]
) -> Any:
    from rich.text import Text

    rows = [[list(_cells(record, report, words, labels)) for record in section] for section in sections]
    headings = [heading for heading, _ in rows[0][0]]
    left = [heading for heading in headings if heading == "Attention" or "\n" in heading]
    broken = (heading if heading in left else heading.replace(" ", "\n", 1) for heading in headings)
    made = titled_table(title, *broken, left=left)
    for section in rows:
        made.add_section()
        for row in section:
            made.add_row(*(Text(cell) for _, cell in row))
    return made


def _cells(
    record: Record, report: SwapReport, words: Wording, labels: list[str]
) -> Iterator[tuple[str, str]]:
    """Headings and cells of a row of a table."""
    if labels and words.layers:
        kind, layer = words.layers[record["layer"]]
        place = ", ".join(map(str, [layer, *(record["head"] for _ in labels[1:])]))
        # In one column, since the table has to fit 80 columns.
        heading = ", ".join(labels).capitalize()
        yield f"{heading}\n(--layers)", f"{SHORT_KIND_NAMES[kind]}\n{place} ({record['layer']})"
    for label in () if words.layers else labels:
        yield label, str(record[label.lower()])
    yield "Attention", condition_name(record)
    # Tables of single layers and heads have additional columns, and room for one quality only.
    compared = labels or sum(record["where"] == "model" for record in report.conditions) > 1
    for name in [name for name in words.qualities if name in record][: 1 if labels else None]:
        yield _HEADINGS.get(name, words.tiles[name]), _number(record[name])
        if compared:
            yield "Difference [95 %]", _difference(record, name)
    yield words.change.capitalize(), _number(record["hidden_change"])
    if labels and _has_controls(report, "layer", "head"):
        same = by_alpha(report.conditions, record)
        yield "The same by α", f"{short(same[0])} to {short(same[1])}" if same else MISSING
    if "embedding_change" in record:
        yield "1 − cosine", _number(record["embedding_change"])
        yield "Ranking kept", _number(record["ranking_agreement"])


def _number(value: float | None) -> str:
    if value is None:
        return MISSING
    text = f"{value:.4f}" if value == 0 or abs(value) >= 1e-4 else f"{value:.0e}"
    return text.replace("-", "−", 1) if value < 0 else text


def _difference(record: Record, quality: str) -> str:
    if record["estimator"] == "model":
        return ""
    difference = interval_of(record, f"{quality}_difference")
    if (difference.low, difference.high) == (0, 0):
        return "0"
    return signed(difference.estimate) + within(difference).replace(" ", "\n", 1)
