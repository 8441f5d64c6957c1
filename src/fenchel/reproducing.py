"""Reproduce the papers' figures of trained models: their numbers and ours."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, Literal

from fenchel.arguments import KINDS, Kind, checked
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.heads import KIND_NAMES
from fenchel.auditing.inputs import RunModel
from fenchel.auditing.report.html import rendered_page
from fenchel.auditing.run import audit
from fenchel.auditing.statistics import AuditStatistics
from fenchel.drawing import MISSING, count, short, stacked, titled_table
from fenchel.errors import ModelError
from fenchel.io.documents import open_documents
from fenchel.io.runs import check_writable, write_text
from fenchel.io.storage import Form, OpenRecord, check_json, write_document
from fenchel.run_options import ReproduceOptions, takes

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["FIGURES", "PanelResult", "PaperPanel", "Reproduction", "reproduce"]

# The model of figures 4a and 5.
BERT: Final = "google-bert/bert-base-uncased"

# The model of figures 4b, 6, 7 and 8.
T5: Final = "google-t5/t5-small"

# Their setting, section 8.
SETTING: Final = (
    "templates are the inputs of the key map divided by the square root of the head's width, the evidence is z = KᵀQx, "
    "α = 1, and λ* is found by gradient ascent"
)

# Details that the papers do not give.
NOT_STATED: Final = "the text and how much of it, which BERT-base, and when the ascent was ended"


@dataclass(frozen=True)
class PaperPanel:
    """A figure or panel of the papers: the mean over queries of ‖λ* − αz‖ / ‖λ*‖ for each layer.

    Attributes:
        name: Its name, such as "figure 4a".
        model: Name of the model on the hub.
        kind: Kind of attention.
        by: Whether there is a number for each layer or for each head.
        printed: A row per layer, with one number or a number per head.
        remark: A remark on the numbers, if any.
    """

    name: str
    model: str
    kind: Kind
    by: Literal["layer", "head"]
    printed: tuple[tuple[float, ...], ...]
    remark: str = ""


FIGURES: Final[Mapping[str, tuple[PaperPanel, ...]]] = check_json(
    dict[str, tuple[PaperPanel, ...]], json.loads(Path(__file__).with_name("figures.json").read_bytes())
)
"""Panels in the papers' order, by the name of the figure in ``fenchel reproduce``."""

_BESIDE = ("predicted_deviation", "total_variation", "mean_error")

# Titles of the tables by head, by the heading of the column.
_BY_HEAD = {
    "Paper": "Paper, {model}",
    "Ours": "Ours",
    "Twin": "Untrained twin",
    "Own scale": "Ours, own scale",
}

Means = tuple[tuple[float, ...], ...]

_FORM = Form(
    name="reproduction",
    version=1,
    schema=OpenRecord,
    advice="Create it again: run the command with --resume.",
)


@dataclass(frozen=True)
class PanelResult:
    """A panel of the papers with the results for the audited model.

    Attributes:
        panel: The panel of the papers.
        ours: Mean relative deviations, a row per layer with one number or a number per head, as in the panel.
        twin: Those of the untrained twin.
        beside: Means of other metrics for each layer: predicted deviation, total variation and error of the mean.
        twin_beside: Those of the untrained twin.
        own_scale: As ``ours``, with the model's own scale; None where that is the papers'.
    """

    panel: PaperPanel
    ours: Means
    twin: Means
    beside: Mapping[str, tuple[float, ...]]
    twin_beside: Mapping[str, tuple[float, ...]]
    own_scale: Means | None = None

    @property
    def of_its_shape(self) -> bool:
        """Whether the model has the same numbers of layers and heads as the papers'."""
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
    """A figure of the papers with our results.

    Attributes:
        figure: Its name in ``fenchel reproduce``.
        panels: Panels for kinds of attention of the model.
        missing: Names of the other panels.
        manifest: Manifest of the audit.
        problems: Number of exact problems that were solved, including those of the twin.
        not_converged: Number of these that are not certified to the tolerance.
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
        """Whether the model has the name of the papers' model; folders are not checked."""
        theirs = {result.panel.model for result in self.panels}
        return self.model in theirs | {name.rpartition("/")[2] for name in theirs}

    @property
    def standing(self) -> str:
        """Relation of the model to the papers' model, in a sentence."""
        theirs = self.panels[0].panel.model
        if self.is_the_papers_model:
            return f"{self.model} is the model that the paper names."
        if all(result.of_its_shape for result in self.panels):
            return (
                f"{self.model} has the shape of {theirs}, the paper's model; whether it has the same weights is not "
                "checked."
            )
        return f"{self.model} is not the paper's model, {theirs}: the numbers are of the same kind but may differ."

    def to_json(self) -> dict[str, Any]:
        """The contents of the JSON file."""
        panels = [result.to_json() for result in self.panels]
        return {**vars(self), "standing": self.standing, "panels": panels}

    def save(self, directory: str | Path) -> Path:
        """Write ``FIGURE.json`` and ``FIGURE.md``, each atomically.

        Args:
            directory: The folder; created if it does not exist.

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
def reproduce(figure: str, texts: Any, **options: Any) -> Reproduction:
    """Reproduce a figure of the papers with a model: mean relative deviations by layer or by head.

    The model is audited in the papers' setting, in space ``input`` with α = 1 and ``template_scale="sqrt_d"``, but each
    λ* is solved to a certificate. A model with another scale, such as T5, is also audited with its own. So is its
    untrained twin on the same text, since a small deviation alone does not distinguish a trained from an untrained
    model.

    Args:
        figure: ``figure4``, ``figure5`` or ``figures6-8``.
        texts: Texts as for ``fenchel.audit``; the papers do not give theirs.
        **options: The options of :class:`fenchel.run_options.ReproduceOptions`.

    Returns:
        The papers' numbers and ours.

    Raises:
        InputError: If the figure is not one of them, or an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded, cannot be audited in space ``input`` (rotary positions), or has none
            of the attention that the figure shows.
        OutputError: If the folder cannot be written to.
    """
    figure = checked("figure", figure)
    asked = ReproduceOptions.checked(**options)
    if isinstance(texts, str | Path):
        open_documents(texts, **asked.of_text)  # raises on mistakes before a model is loaded
    name = FIGURES[figure][0].model if asked.model is None else str(asked.model)
    result = RunModel.of(name, None, asked)
    kinds, scaled_otherwise = _looked_at(result)
    wanted = _panels(figure, name, kinds)
    del result  # the audit loads a named model itself, with the digest of its weights
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
    """Inspect the attention of a model on one short sentence, before a long audit.

    Returns:
        Its kinds of attention, and whether its template scale differs from the papers'.
    """
    options: dict[str, Any] = {"tol": 1e-2, "space": "input"}
    try:
        scaled = [
            audit(found.model, found.tokenizer, ["Attention is inference."], template_scale=scale, **options)
            for scale in ("sqrt_d", "model")
        ]
    except ModelError as error:
        reason, advised, _ = str(error).partition(" Use space='key'")
        if not advised:
            raise
        raise ModelError(
            f"{reason} The papers' figures are in that space, so they cannot be made with this model. Give one such as "
            f"{BERT}"
        ) from error
    theirs, own = ([head["gap_mean"] for head in report.heads] for report in scaled)
    return {kind for kind, _ in scaled[0].statistics.layers()}, theirs != own


def _panels(figure: str, name: str, kinds: set[Kind]) -> tuple[PaperPanel, ...]:
    """The panels for a model: of figure 4, that of BERT for encoders and that of T5 for models with a decoder."""
    panels = FIGURES[figure]
    if figure == "figure4":
        theirs = BERT if kinds == {"encoder_self"} else T5
        panels = tuple(panel for panel in panels if panel.model == theirs)
    shown: set[Kind] = {panel.kind for panel in panels}
    if not kinds & shown:
        raise ModelError(
            f"{name} has {_words(kinds)} attention only, but {figure} shows {_words(shown)}. Give a model that has it."
        )
    return panels


def _words(kinds: set[Kind]) -> str:
    return " and ".join(kind.replace("_", " ") for kind in KINDS if kind in kinds)


def _reproduced(
    figure: str, panels: tuple[PaperPanel, ...], done: AuditReport, own: AuditReport | None
) -> Reproduction:
    """Combine the panels with the results of an audit and its twin, for the kinds of attention of the model."""
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
    """The means of a panel, and those of other metrics for each layer."""
    layers = [site for site in statistics.layers() if site[0] == panel.kind]
    shown: list[Any] = [*(statistics.keys() if panel.by == "head" else layers)]
    rows = [
        tuple(statistics.mean("relative_deviation", *key) for key in shown if key[:2] == site)
        for site in layers
    ]
    beside = {metric: tuple(statistics.mean(metric, *site) for site in layers) for metric in _BESIDE}
    return tuple(rows), beside


def finding(found: Reproduction) -> str:
    """The results in a sentence, with measures that distinguish trained from untrained models and those that do not."""
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
        f"untrained twin; the weight that would move is {short(fmean(moved))} and {short(fmean(twin_moved))}. "
        f"{solved}."
    )


def markdown(found: Reproduction) -> str:
    """The reproduction as a page of Markdown."""
    return rendered_page(
        "fenchel.auditing.report",
        "reproduction.md.jinja",
        styles=(),
        scale=False,
        filters={"escaped": _escaped},
        found=found,
        manifest=found.manifest,
        model=_called(found.model),
        text=Path(str(found.manifest.get("texts"))).name,
        setting=SETTING,
        not_stated=NOT_STATED,
        finding=finding(found),
        panels=[(_title(one), one, _columns(one), layer_rows(one)) for one in found.panels],
        by_head=_BY_HEAD,
    )


def _columns(result: PanelResult) -> dict[str, Means]:
    """Columns of a panel by heading: a row per layer, with one number or a number per head."""

    def by_layer(values: Sequence[float]) -> Means:
        return tuple((value,) for value in values)

    columns = {
        "Paper": result.panel.printed,
        "Ours": result.ours,
        "Twin": result.twin,
        "Predicted": by_layer(result.beside["predicted_deviation"]),
        "Total variation": by_layer(result.beside["total_variation"]),
        "Twin's": by_layer(result.twin_beside["total_variation"]),
    }
    return columns if result.own_scale is None else {**columns, "Own scale": result.own_scale}


def layer_rows(result: PanelResult) -> list[list[str]]:
    """Rows of layers with the columns of a panel; with several heads, means and ranges."""

    def cell(row: Sequence[float]) -> str:
        spread = f" ({short(min(row))}–{short(max(row))})" if len(row) > 1 else ""
        return f"{short(fmean(row))}{spread}" if row else MISSING

    rows = zip_longest(*_columns(result).values(), fillvalue=())
    return [[str(layer), *map(cell, row)] for layer, row in enumerate(rows, start=1)]


def terminal_table(found: Reproduction) -> RenderableType:
    """A table per panel, for rich.

    Raises:
        MissingExtraError: If rich is not installed.
    """
    tables: list[Any] = []
    for result in found.panels:
        headings = (name.replace(" ", "\n") for name in ("Layer", *_columns(result)))
        made = titled_table(_title(result), *headings)
        made.padding = 0  # Eight columns, four of them with ranges, fit 80 columns.
        for row in layer_rows(result):
            made.add_row(*map(_narrow, row))
        tables.append(made)
    return stacked(*tables)


def _narrow(cell: str) -> str:
    """A mean and its range on two lines, without leading zeros; a range may break at its dash."""
    mean, _, spread = cell.partition(" (")
    return f"{mean}\n{spread.rstrip(')').replace('0.', '.').replace('–', ' – ')}" if spread else mean


def _title(result: PanelResult) -> str:
    name = f"{result.panel.name.capitalize()}, {KIND_NAMES[result.panel.kind].lower()}"
    return name + (": mean over heads (least–largest head)" if result.panel.by == "head" else "")


def _range(values: Sequence[float]) -> str:
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{low} to {high}"


def _called(model: str) -> str:
    # Only the name of a folder: published pages should not contain local paths.
    return Path(model).name or model


def _escaped(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in " ".join(text.split()))
