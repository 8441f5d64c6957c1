"""One line of a table: an arm on a data set at a learning rate, over seeds, and against the baseline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fenchel.experiments.column import shown_columns
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.interval import MeanInterval, mean_interval
from fenchel.experiments.paper import Reported
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord

__all__ = ["Cell", "cells_of"]


@dataclass(frozen=True)
class Cell:
    """An arm on a data set at a learning rate.

    Attributes:
        data: Name of the data set.
        learning_rate: The learning rate.
        arm: Name of the arm.
        label: The arm as tables show it.
        seeds: Those of its finished runs.
        planned: How many seeds it is to have.
        headline: Mean over seeds of what arms are compared by; None before the first has finished.
        difference: Mean over seeds of the headline minus the baseline's with the same seed; None for the baseline
            and where there is no such pair.
        paper: What the papers report.
        paper_difference: Their OT-ViT minus their ViT.
        beside: What else the table shows of its runs, in words by label.
        control: The arm that it is compared with as tables show it, where that is not the baseline.
    """

    data: str
    learning_rate: float
    arm: str
    label: str
    seeds: tuple[int, ...]
    planned: int
    headline: MeanInterval | None
    difference: MeanInterval | None
    paper: Reported | None
    paper_difference: float | None
    beside: Mapping[str, str] = field(default_factory=dict)
    control: str | None = None

    def to_json(self, name: str) -> dict[str, Any]:
        """The cell as JSON; the headline has its name."""
        values = asdict(replace(self, beside={}))
        headline = values.pop("headline")
        beside = {"beside": dict(self.beside)} if self.beside else {}
        del values["beside"]
        if self.control is None:
            del values["control"]
        return {**values, name: headline, "seeds": list(self.seeds), **beside}


def cells_of(plan: Plan, records: Iterable[RunRecord], of: Comparison) -> tuple[Cell, ...]:
    """The lines of an experiment's table.

    Args:
        plan: What was to be run.
        records: What has been; others than the plan's are left out.
        of: What is compared.

    Returns:
        A cell for each data set, learning rate and arm, in the plan's order.
    """
    found: dict[tuple[str, float, str], dict[int, float]] = {}
    runs: dict[tuple[str, float, str], list[RunRecord]] = {}
    for record in records:
        key = record.data, record.learning_rate, record.arm
        found.setdefault(key, {})[record.seed] = record.headline
        if record.seed < plan.seeds:
            runs.setdefault(key, []).append(record)
    baseline = of.baseline
    reported = of.reported or (lambda data, rate, arm: None)
    cells: list[Cell] = []
    for data in plan.data:
        for rate in plan.learning_rates:
            for arm in plan.chosen:
                against = arm.against or baseline
                base = _planned(found.get((data, rate, against), {}), plan)
                own = _planned(found.get((data, rate, arm.name), {}), plan)
                paired = (
                    [] if arm.name == against else [own[seed] - base[seed] for seed in own if seed in base]
                )
                printed = reported(data, rate, arm.name)
                base_printed = reported(data, rate, baseline)
                cells.append(
                    Cell(
                        data=data,
                        learning_rate=rate,
                        arm=arm.name,
                        label=arm.label,
                        seeds=tuple(own),
                        planned=plan.seeds,
                        headline=mean_interval(list(own.values())) if own else None,
                        difference=mean_interval(paired) if paired else None,
                        paper=printed,
                        paper_difference=None
                        if printed is None or base_printed is None or arm.name == baseline
                        else round(printed.accuracy - base_printed.accuracy, 3),
                        control=None if against in (baseline, arm.name) else of.arms[against].label,
                        beside=shown_columns(
                            of.columns, runs.get((data, rate, arm.name), []), costs=of.costs
                        ),
                    )
                )
    return tuple(cells)


def _planned(found: dict[int, float], plan: Plan) -> dict[int, float]:
    return {seed: found[seed] for seed in range(plan.seeds) if seed in found}
