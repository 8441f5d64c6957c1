"""A figure of the papers reproduced: the papers' numbers beside a model's, as JSON, as Markdown and in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from fenchel.arguments import KINDS, Kind, checked
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.report.findings import KIND_NAMES
from fenchel.auditing.run import audit
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import count, short, stacked, titled_table
from fenchel.errors import ModelError
from fenchel.io.documents import open_documents
from fenchel.io.files import check_writable, write_text
from fenchel.io.storage import Form, OpenRecord, write_document
from fenchel.loading import RunModel
from fenchel.reproducing.paper import BERT, FIGURES, SETTING, T5, UNSAID, PaperPanel
from fenchel.run_options import ReproduceOptions, takes

if TYPE_CHECKING:
    from rich.console import RenderableType

_BESIDE = ("predicted_deviation", "total_variation", "mean_error")
_COLUMNS = ("Layer", "Paper", "Ours", "Twin", "Predicted", "Total variation", "Twin's")

_OWN_SCALE = (
    "*Ours* has templates x/√d′, as the paper prints. The model does not divide by √d′: *own scale* is the same with "
    "its own templates, whose first-order answer is what it computes."
)

Means = tuple[tuple[float, ...], ...]


class _SavedReproduction(OpenRecord):
    figure: str


_FORM = Form(
    name="reproduction",
    version=1,
    schema=_SavedReproduction,
    advice="Make it again: run the command with --resume.",
)


@dataclass(frozen=True)
class PanelResult:
    """One panel of the papers and the same of the model that was audited.

    Attributes:
        panel: What the papers print.
        ours: The mean relative deviation, a row a layer with one number or a number a head, as in the panel.
        twin: The same of the untrained twin.
        beside: By metric, the mean of each layer: what the covariance alone predicts, how much weight would have to
            move, how far the output is off.
        twin_beside: The same of the untrained twin.
        own_scale: As ``ours``, under the scale that the model itself has; None where that is the papers'.
    """

    panel: PaperPanel
    ours: Means
    twin: Means
    beside: Mapping[str, tuple[float, ...]]
    twin_beside: Mapping[str, tuple[float, ...]]
    own_scale: Means | None = None

    @property
    def of_its_shape(self) -> bool:
        """Whether the model has as many layers and heads as the papers'."""
        return [len(row) for row in self.ours] == [len(row) for row in self.panel.printed]

    def to_json(self) -> dict[str, Any]:
        """The panel as JSON values."""
        return {
            "panel": self.panel.name,
            "paper_model": self.panel.model,
            "kind": self.panel.kind,
            "by": self.panel.by,
            "paper": self.panel.printed,
            **{name: value for name, value in vars(self).items() if name != "panel" and value is not None},
        }


@dataclass(frozen=True)
class Reproduction:
    """A figure of the papers and what came out here.

    Attributes:
        figure: Its name, as ``fenchel reproduce`` takes it.
        panels: The panels that the model has attention for.
        missing: The names of those that it has none for.
        manifest: What was audited.
        problems: How many exact problems were solved, the twin's included.
        not_converged: How many of them are not certified to the tolerance.
    """

    figure: str
    panels: tuple[PanelResult, ...]
    missing: tuple[str, ...]
    manifest: Mapping[str, Any]
    problems: int
    not_converged: int

    @property
    def model(self) -> str:
        """The model that was audited."""
        return str(self.manifest["model"])

    @property
    def is_the_papers_model(self) -> bool:
        """Whether the name is that of the papers' model; a folder may hold anything."""
        theirs = {result.panel.model for result in self.panels}
        return self.model in theirs | {name.rpartition("/")[2] for name in theirs}

    @property
    def standing(self) -> str:
        """What the model is to the papers', in a sentence."""
        theirs = self.panels[0].panel.model
        if self.is_the_papers_model:
            return f"{self.model} is the model that the paper names."
        if all(result.of_its_shape for result in self.panels):
            return f"{self.model} has the shape of {theirs}, the paper's model; whether it is that one is not checked."
        return f"{self.model} is not the paper's model, {theirs}: the numbers are of one kind, and need not agree."

    def to_json(self) -> dict[str, Any]:
        """Everything, ready for the JSON file."""
        panels = [result.to_json() for result in self.panels]
        return {**vars(self), "standing": self.standing, "panels": panels}

    def save(self, directory: str | Path) -> Path:
        """Write ``FIGURE.json`` and ``FIGURE.md``; each is whole or not there.

        Args:
            directory: The folder; made if it is not there.

        Returns:
            Path of the Markdown file.

        Raises:
            OutputError: If something cannot be written.
        """
        folder = Path(directory).expanduser()
        check_writable(folder)
        write_document(folder / f"{self.figure}.json", _FORM, self.to_json())
        page = folder / f"{self.figure}.md"
        write_text(page, markdown(self))
        return page

    def __repr__(self) -> str:
        return f"<Reproduction of {self.figure} with {self.model}. {finding(self)}>"


@takes(ReproduceOptions)
def reproduce(
    figure: str,
    texts: Any,
    **options: Any,
) -> Reproduction:
    """Set a figure of the papers beside the same of a model: mean relative deviations by layer or by head.

    The model is audited as the papers say, in space ``input`` with α = 1 and ``template_scale="sqrt_d"``, but each λ*
    is solved to a certificate. Where the model scales its templates otherwise, as T5 does, it is audited under its own
    scale too. Its untrained twin reads the same text, since a small deviation alone does not tell a trained model from
    one that never learnt anything.

    Args:
        figure: ``figure4``, ``figure5`` or ``figures6-8``.
        texts: What to read, as for ``fenchel.audit``; the papers do not say what they read.
        **options: The options of :class:`fenchel.run_options.ReproduceOptions`.

    Returns:
        The papers' numbers and ours.

    Raises:
        InputError: If the figure is not one of them, or an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded, or has none of the attention that the figure shows.
        OutputError: If the folder cannot be written to.
    """
    figure = checked("figure", figure)
    asked = ReproduceOptions.checked(**options)
    if isinstance(texts, str | Path):
        open_documents(texts, **asked.of_text)  # a mistake in it shows before a model is loaded
    name = FIGURES[figure][0].model if asked.model is None else str(asked.model)
    result = RunModel.of(name, None, device=asked.device, dtype=asked.dtype, revision=asked.revision)
    kinds, scaled_otherwise = _looked_at(result)
    wanted = _panels(figure, name, kinds)
    del result  # the audit of a named model loads it itself, and so knows the digest of its weights
    folder = asked.directory
    same = {**asked.model_dump(exclude={"model", "directory"}), "observer": asked.observer}

    def audited(place: str, **choice: Any) -> AuditReport:
        there = None if folder is None else folder / place
        return audit(name, None, texts, space="input", queries="all", directory=there, **choice, **same)

    done = audited("audit", template_scale="sqrt_d", baseline="twin")
    own = audited("audit-own-scale", baseline="none") if scaled_otherwise else None
    report = _reproduced(figure, wanted, done, own)
    if folder is not None:
        report.save(folder)
    return report


def _looked_at(found: RunModel) -> tuple[set[Kind], bool]:
    """How a model attends, from one short sentence, before hours are spent on a figure that it has nothing for.

    Returns:
        The kinds of its attention, and whether it scales templates otherwise than the papers.
    """
    scaled = [
        audit(
            found.model,
            found.tokenizer,
            ["Attention is inference."],
            tol=1e-2,
            space="input",
            template_scale=scale,
        )
        for scale in ("sqrt_d", "model")
    ]
    theirs, own = ([head["gap_mean"] for head in report.heads] for report in scaled)
    return {kind for kind, _ in scaled[0].statistics.layers()}, theirs != own


def _panels(figure: str, name: str, kinds: set[Kind]) -> tuple[PaperPanel, ...]:
    """The panels that a model stands beside: of figure 4, an encoder beside BERT, what also decodes beside T5."""
    panels = FIGURES[figure]
    if figure == "figure4":
        theirs = BERT if kinds == {"encoder_self"} else T5
        panels = tuple(panel for panel in panels if panel.model == theirs)
    shown: set[Kind] = {panel.kind for panel in panels}
    if not kinds & shown:
        raise ModelError(
            f"{name} has {_words(kinds)} attention only, and {figure} shows {_words(shown)}. Give a model that has it."
        )
    return panels


def _words(kinds: set[Kind]) -> str:
    return " and ".join(kind.replace("_", " ") for kind in KINDS if kind in kinds)


def _reproduced(
    figure: str, panels: tuple[PaperPanel, ...], done: AuditReport, own: AuditReport | None
) -> Reproduction:
    """The panels beside what an audit with its twin found, but for those whose attention the model has none of."""
    heads, kinds = [*done.heads, *done.twin_heads], {kind for kind, _ in done.statistics.layers()}
    results, missing = [], []
    for panel in panels:
        if panel.kind in kinds and done.twin is not None:
            ours, twin = _of_panel(panel, done.statistics), _of_panel(panel, done.twin)
            scaled = None if own is None else _of_panel(panel, own.statistics)[0]
            results.append(PanelResult(panel, ours[0], twin[0], ours[1], twin[1], scaled))
        else:
            missing.append(f"{panel.name} ({_words({panel.kind})})")
    return Reproduction(
        figure=figure,
        panels=tuple(results),
        missing=tuple(missing),
        manifest=done.manifest,
        problems=sum(head["queries"] for head in heads),
        not_converged=sum(head["not_converged"] for head in heads),
    )


def _of_panel(panel: PaperPanel, statistics: AuditStatistics) -> tuple[Means, dict[str, tuple[float, ...]]]:
    """The means that a panel shows, and those of each layer that stand beside them."""
    layers = [site for site in statistics.layers() if site[0] == panel.kind]
    rows = []
    for site in layers:
        heads: Sequence[int | None] = [None]
        if panel.by == "head":
            heads = [key.head for key in statistics.keys() if key[:2] == site]  # noqa: SIM118
        rows.append(tuple(statistics.mean("relative_deviation", *site, head) for head in heads))
    beside = {metric: tuple(statistics.mean(metric, *site) for site in layers) for metric in _BESIDE}
    return tuple(rows), beside


def finding(found: Reproduction) -> str:
    """What came out, in the measures that tell a trained model from an untrained one and those that do not."""
    ours = [fmean(row) for result in found.panels for row in result.ours]
    twin = [fmean(row) for result in found.panels for row in result.twin]
    moved = [fmean(result.beside["total_variation"]) for result in found.panels]
    twin_moved = [fmean(result.twin_beside["total_variation"]) for result in found.panels]
    solved = (
        f"{count(found.not_converged)} of {count(found.problems)} exact problems are NOT certified"
        if found.not_converged
        else f"All {count(found.problems)} exact problems are certified in float64"
    )
    return (
        f"The layers' mean relative deviation is {_range(ours)} in {_called(found.model)} and {_range(twin)} in its "
        f"untrained twin; the weight that would have to move is {short(fmean(moved))} and {short(fmean(twin_moved))}. "
        f"{solved}."
    )


def markdown(found: Reproduction) -> str:
    """The reproduction as a page of Markdown."""
    manifest = found.manifest
    text = Path(str(manifest.get("texts"))).name
    lines = [
        f"# {found.figure} of the paper, with {_escaped(_called(found.model))}",
        "",
        _escaped(found.standing),
        "",
        f"Read: {_escaped(text)}, {count(manifest.get('tokens'))} tokens in windows of at most "
        f"{manifest.get('max_length')}. In the papers {SETTING}. They do not say {UNSAID}. Here every λ* is solved to "
        f"a certificate of {manifest.get('tol'):g}.",
        "",
        _escaped(finding(found)),
        "",
        "*Predicted* is what the covariance of the preference alone makes of the deviation; *twin* is the same "
        "configuration with weights that were never trained, on the same text.",
    ]
    lines += ["", "The distributions are drawn in audit/report.html."]
    for result in found.panels:
        lines += ["", f"## {_title(result)}", ""]
        if result.own_scale is not None:
            lines += [_OWN_SCALE, ""]
        if result.panel.remark:
            lines += [f"Of the paper's numbers: {result.panel.remark}.", ""]
        lines += _markdown_table(_columns(result), layer_rows(result))
        if result.panel.by == "head":
            for name, rows in (
                (f"Paper, {result.panel.model}", result.panel.printed),
                ("Ours", result.ours),
                ("Untrained twin", result.twin),
                *([] if result.own_scale is None else [("Ours, own scale", result.own_scale)]),
            ):
                heads = max(len(row) for row in rows)
                table = [
                    [str(layer), *(short(value) for value in row), *["–"] * (heads - len(row))]
                    for layer, row in enumerate(rows, start=1)
                ]
                lines += ["", f"### {_escaped(name)}, by head", ""]
                lines += _markdown_table(["Layer", *(f"Head {n + 1}" for n in range(heads))], table)
    if found.missing:
        lines += ["", f"Not shown, since the model has no such attention: {', '.join(found.missing)}."]
    return "\n".join(lines) + "\n"


def layer_rows(result: PanelResult) -> list[list[str]]:
    """Layer by layer: the paper's number, ours, the twin's, and what tells them apart; by head, means and ranges."""

    def cell(rows: Sequence[Sequence[float]], place: int) -> str:
        if place >= len(rows):
            return "–"
        row = rows[place]
        if len(row) == 1:
            return short(row[0])
        return f"{short(fmean(row))} ({short(min(row))}–{short(max(row))})"

    def value(values: Sequence[float], place: int) -> str:
        return short(values[place]) if place < len(values) else "–"

    return [
        [
            str(place + 1),
            cell(result.panel.printed, place),
            cell(result.ours, place),
            cell(result.twin, place),
            value(result.beside["predicted_deviation"], place),
            value(result.beside["total_variation"], place),
            value(result.twin_beside["total_variation"], place),
            *([] if result.own_scale is None else [cell(result.own_scale, place)]),
        ]
        for place in range(max(len(result.panel.printed), len(result.ours)))
    ]


def terminal_table(found: Reproduction) -> RenderableType:
    """A table a panel, for rich.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    tables: list[Any] = []
    for result in found.panels:
        made = titled_table(_title(result))
        for name in _columns(result):
            made.add_column(name.replace(" ", "\n"), justify="right")
        for row in layer_rows(result):
            made.add_row(*map(_narrow, row))
        tables.append(made)
    return stacked(*tables)


def _columns(result: PanelResult) -> list[str]:
    return [*_COLUMNS, *([] if result.own_scale is None else ["Own scale"])]


def _narrow(cell: str) -> str:
    """A mean and its range in two lines, without the zeros before the points."""
    mean, _, spread = cell.partition(" (")
    return f"{mean}\n{spread.rstrip(')').replace('0.', '.')}" if spread else mean


def _title(result: PanelResult) -> str:
    name = f"{result.panel.name.capitalize()}, {KIND_NAMES[result.panel.kind].lower()}"
    return name + (": mean over heads (least–largest head)" if result.panel.by == "head" else "")


def _markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [columns, ["---"] * len(columns), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _range(values: Sequence[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def _called(model: str) -> str:
    # Of a folder the last part: a page that is published need not say where on a disk it lay.
    return Path(model).name or model


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in " ".join(text.split()))
