"""The papers' numbers beside ours, with what ours are worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fenchel.auditing.results import AuditResults
from fenchel.auditing.statistics import AuditStatistics
from fenchel.reproducing.paper import PaperPanel

__all__ = ["SCHEMA", "PanelResult", "Reproduction", "panel_result"]

SCHEMA = 1
"""Version of the JSON that a reproduction writes."""

_BESIDE = ("predicted_deviation", "total_variation", "mean_error")

Means = tuple[tuple[float, ...], ...]


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
    """

    panel: PaperPanel
    ours: Means
    twin: Means
    beside: Mapping[str, tuple[float, ...]]
    twin_beside: Mapping[str, tuple[float, ...]]

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
            "paper": [list(row) for row in self.panel.printed],
            "ours": [list(row) for row in self.ours],
            "twin": [list(row) for row in self.twin],
            "beside": {name: list(values) for name, values in self.beside.items()},
            "twin_beside": {name: list(values) for name, values in self.twin_beside.items()},
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
        return self.model in {name for panel in self.panels for name in _names(panel.panel.model)}

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
        return {
            "figure": self.figure,
            "standing": self.standing,
            "panels": [result.to_json() for result in self.panels],
            "missing": list(self.missing),
            "manifest": dict(self.manifest),
            "problems": self.problems,
            "not_converged": self.not_converged,
        }


def panel_result(panel: PaperPanel, audit: AuditResults) -> PanelResult | None:
    """A panel beside what an audit with its twin found; None where the model does not attend in that way."""
    if audit.twin is None or not any(kind == panel.kind for kind, _ in audit.statistics.layers()):
        return None
    return PanelResult(
        panel=panel,
        ours=_means(panel, audit.statistics),
        twin=_means(panel, audit.twin),
        beside=_beside(panel, audit.statistics),
        twin_beside=_beside(panel, audit.twin),
    )


def _means(panel: PaperPanel, statistics: AuditStatistics) -> Means:
    rows = []
    for kind, layer in statistics.layers():
        if kind != panel.kind:
            continue
        heads: Sequence[int | None] = [None]
        if panel.by == "head":
            heads = [key.head for key in statistics.keys() if key[:2] == (kind, layer)]  # noqa: SIM118
        rows.append(tuple(statistics.mean("relative_deviation", kind, layer, head) for head in heads))
    return tuple(rows)


def _beside(panel: PaperPanel, statistics: AuditStatistics) -> dict[str, tuple[float, ...]]:
    layers = [site for site in statistics.layers() if site[0] == panel.kind]
    return {metric: tuple(statistics.mean(metric, *site) for site in layers) for metric in _BESIDE}


def _names(model: str) -> tuple[str, str]:
    return model, model.rpartition("/")[2]
