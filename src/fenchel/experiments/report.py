"""An experiment's results: the numbers, and what is made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.experiments.budget import chosen_budget
from fenchel.experiments.cell import Cell, cells_of
from fenchel.experiments.column import decimals_of
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.definition import chosen_experiment
from fenchel.experiments.figure import write_curves
from fenchel.experiments.finding import findings
from fenchel.experiments.interval import MeanInterval, is_possible
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord
from fenchel.experiments.results import Results
from fenchel.experiments.schema import report_schema
from fenchel.experiments.table import markdown
from fenchel.experiments.training import plan_of
from fenchel.storage import Form, guarded_writing, read_document, write_document, write_text
from fenchel.storage.form import refused
from fenchel.train.metric import Metric

__all__ = ["FIGURE", "REPORT_FORM", "RESULTS", "TABLE", "ExperimentReport"]

RESULTS = "results.json"
TABLE = "table.md"
FIGURE = "curves.png"

REPORT_FORM = Form(
    name="results file of an experiment",
    version=2,
    schema=report_schema,
    advice="Make it again with fenchel experiment --report-only, from the runs that are beside it.",
)
"""What ``results.json`` holds; what follows from the runs is not read."""

_UNSEALED = 1


@dataclass(frozen=True, repr=False)
class ExperimentReport:
    """The results of an experiment, whole or in part.

    Attributes:
        plan: What was to be run.
        records: The finished runs, in the plan's order.
        diverged: Names of runs that ended without a result.
    """

    plan: Plan
    records: tuple[RunRecord, ...]
    diverged: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """One line: what was run, and how much of it."""
        return f"<{type(self).__name__} of {self.title}: {len(self.records)} of {self.planned} runs>"

    @property
    def of(self) -> Comparison:
        """What is compared."""
        return chosen_experiment(self.plan.experiment).of

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The lines of the table."""
        return cells_of(self.plan, self.records, self.of)

    @property
    def title(self) -> str:
        """What the experiment reproduces or asks, on which budget."""
        budget = chosen_budget(self.plan.budget, self.of.budgets.values()).named(self.plan.setting)
        return f"{chosen_experiment(self.plan.experiment).title}, budget {budget}"

    @property
    def planned(self) -> int:
        """How many runs there are to be."""
        return sum(1 for _ in self.plan.runs())

    @property
    def finished(self) -> bool:
        """Whether all of them have ended."""
        return len(self.records) + len(self.diverged) == self.planned

    @property
    def findings(self) -> tuple[str, ...]:
        """What the intervals show, in sentences."""
        base = self.of.arms[self.of.baseline].label
        headline = self.of.headline
        return findings(
            self.cells,
            base,
            higher_is_better=headline.higher_is_better,
            decimals=decimals_of(headline.most),
        )

    @property
    def caveats(self) -> tuple[str, ...]:
        """What must be known of the numbers."""
        said, metric = self.of.caveats(self.plan, self.records), self.of.headline
        if self.plan.seeds == 1:
            said = ("One seed has no interval: nothing can be said about differences.", *said)
        elif self.plan.seeds == 2:
            said = ("Two seeds give an interval too wide to be of use; take at least three.", *said)
        if any(cell.headline is not None and _too_wide(cell.headline, metric) for cell in self.cells):
            name = metric.name.replace("_", " ")
            article = "an" if name[0] in "aeiou" else "a"
            said = (
                f"± – stands where the interval would leave what {article} {name} can be, {metric.range}.",
                *said,
            )
        if self.diverged:
            lost = "Without a result, since the loss became infinite or not a number"
            said = (f"{lost}: {'; '.join(self.diverged)}.", *said)
        if not self.finished:
            partial = f"Partial: {len(self.records)} of {self.planned} runs have finished."
            said = (partial, *said)
        return said

    @property
    def results(self) -> Results:
        """All that tables and figures are made of."""
        return Results(
            title=self.title,
            of=self.of,
            arms=self.plan.chosen,
            cells=self.cells,
            records=self.records,
            planned=self.planned,
            finished=self.finished,
            findings=self.findings,
            caveats=self.caveats,
        )

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON: what was measured, and for its readers what follows from it."""
        return {
            "plan": self.plan.to_json(),
            "planned": self.planned,
            "finished": len(self.records),
            "runs": [record.to_json(self.of.task) for record in self.records],
            "diverged": list(self.diverged),
            "cells": [cell.to_json(self.of.headline.name) for cell in self.cells],
            "findings": list(self.findings),
            "caveats": list(self.caveats),
        }

    @classmethod
    def from_json(cls, written: Mapping[str, Any]) -> ExperimentReport:
        """The report that ``to_json`` wrote; what follows from the runs is computed anew."""
        plan = plan_of(written["plan"])
        task = chosen_experiment(plan.experiment).of.task
        return cls(
            plan,
            tuple(RunRecord.from_json(run, task) for run in written["runs"]),
            tuple(written["diverged"]),
        )

    @classmethod
    def load(cls, path: str | Path) -> ExperimentReport:
        """Reads a report.

        Args:
            path: ``results.json``, or the folder that holds it.

        Returns:
            The report.

        Raises:
            InputError: If it is not there, holds something else, or was changed after it was written.
        """
        path = Path(path).expanduser()
        file = path / RESULTS if path.is_dir() else path
        if not file.exists():
            raise InputError(f"{file} is not there. Run fenchel experiment --out {file.parent} first.")
        written = read_document(file, REPORT_FORM, unsealed_version=_UNSEALED)
        try:
            return cls.from_json(written)
        except InputError as error:
            raise refused(file, REPORT_FORM, f"is no {REPORT_FORM.name}: {error}") from error

    def save(self, directory: Path) -> None:
        """Write ``results.json``, ``table.md`` and, once a run has finished, ``curves.png``.

        Args:
            directory: An existing folder.

        Raises:
            OutputError: If a file cannot be written; an earlier one of that name is then intact.
            MissingExtraError: If matplotlib is not installed.
        """
        with guarded_writing(directory):
            write_document(directory / RESULTS, REPORT_FORM, self.to_json())
            write_text(directory / TABLE, markdown(self.results))
            if self.records:
                write_curves(self.results, directory / FIGURE)


def _too_wide(found: MeanInterval, metric: Metric) -> bool:
    return found.half_width is not None and not is_possible(found, metric.least, metric.most)
