"""One line of a table: an arm on a data set at a learning rate, over seeds, and against the baseline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.experiments.arm import BASELINE, chosen_arms
from fenchel.experiments.interval import MeanInterval, mean_interval
from fenchel.experiments.paper import Reported, reported
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
        seeds: Those of its finished runs.
        planned: How many seeds it is to have.
        accuracy: Mean test accuracy over seeds; None before the first has finished.
        difference: Mean over seeds of the accuracy minus the baseline's with the same seed; None for the baseline
            and where there is no such pair.
        paper: What the papers report.
        paper_difference: Their OT-ViT minus their ViT.
    """

    data: str
    learning_rate: float
    arm: str
    seeds: tuple[int, ...]
    planned: int
    accuracy: MeanInterval | None
    difference: MeanInterval | None
    paper: Reported | None
    paper_difference: float | None

    @property
    def label(self) -> str:
        """The arm as tables show it."""
        return chosen_arms([self.arm])[0].label

    def to_json(self) -> dict[str, Any]:
        """The cell as JSON."""
        return {**asdict(self), "seeds": list(self.seeds)}


def cells_of(plan: Plan, records: Iterable[RunRecord]) -> tuple[Cell, ...]:
    """The lines of an experiment's table.

    Args:
        plan: What was to be run.
        records: What has been; others than the plan's are left out.

    Returns:
        A cell for each data set, learning rate and arm, in the plan's order.
    """
    found: dict[tuple[str, float, str], dict[int, float]] = {}
    for record in records:
        key = record.data, record.learning_rate, record.arm
        found.setdefault(key, {})[record.seed] = record.test_accuracy
    cells: list[Cell] = []
    for data in plan.data:
        for rate in plan.learning_rates:
            base = _planned(found.get((data, rate, BASELINE), {}), plan)
            for arm in plan.arms:
                own = _planned(found.get((data, rate, arm), {}), plan)
                paired = [] if arm == BASELINE else [own[seed] - base[seed] for seed in own if seed in base]
                printed = reported(data, rate, arm)
                baseline = reported(data, rate, BASELINE)
                cells.append(
                    Cell(
                        data=data,
                        learning_rate=rate,
                        arm=arm,
                        seeds=tuple(own),
                        planned=plan.seeds,
                        accuracy=mean_interval(list(own.values())) if own else None,
                        difference=mean_interval(paired) if paired else None,
                        paper=printed,
                        paper_difference=None
                        if printed is None or baseline is None or arm == BASELINE
                        else round(printed.accuracy - baseline.accuracy, 3),
                    )
                )
    return tuple(cells)


def _planned(accuracies: dict[int, float], plan: Plan) -> dict[int, float]:
    return {seed: accuracies[seed] for seed in range(plan.seeds) if seed in accuracies}
