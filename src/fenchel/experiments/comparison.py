"""What experiments of one kind have in common: the task, the arms, the budgets, and what is to be known of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fenchel.experiments.after import After
from fenchel.experiments.arm import Arm
from fenchel.experiments.budget import Budget
from fenchel.experiments.column import Column
from fenchel.experiments.paper import Reported
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord
from fenchel.train.metric import Metric
from fenchel.train.task import AnyTask

__all__ = ["Comparison"]


@dataclass(frozen=True)
class Comparison:
    """Arms of one task that are compared by its headline.

    Attributes:
        task: What is trained.
        arms: By name, in the order in which tables list them.
        baseline: The arm that the others are compared with.
        budgets: By name, the smallest first.
        caveats: What readers must know of the numbers, in sentences, the weightiest first.
        before: The heading of these sentences.
        reported: What the papers report for data, learning rate and arm; None where they report nothing of the kind.
        undecided: Options that a setting leaves open, since they depend on the data or the arm.
        setting: Options that all runs have besides those of the budget, where they are not the task's defaults.
        columns: What tables show of the runs besides the headline.
        costs: Whether tables show parameters and time.
        after: What runs go on from, where that is another experiment's.
    """

    task: type[AnyTask]
    arms: Mapping[str, Arm]
    baseline: str
    budgets: Mapping[str, Budget]
    caveats: Callable[[Plan, Sequence[RunRecord]], tuple[str, ...]]
    before: str
    reported: Callable[[str, float, str], Reported | None] | None = None
    undecided: frozenset[str] = frozenset()
    setting: Mapping[str, Any] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    costs: bool = False
    after: After | None = None

    @property
    def headline(self) -> Metric:
        """What arms are compared by."""
        return self.task.metric(self.task.headline)

    @property
    def own(self) -> frozenset[str]:
        """Options that tell runs apart, so that no setting has them."""
        needed = set() if self.after is None else {self.after.option}
        return frozenset({"data", "learning_rate", "seed"}).union(
            needed, *(arm.options for arm in self.arms.values())
        )

    @property
    def curves(self) -> tuple[str, ...]:
        """What is kept of every epoch of a run."""
        tested = (f"{split}_{metric.name}" for split in self.task.splits() for metric in self.task.metrics)
        return ("train_loss", *tested)

    @property
    def measured_besides(self) -> tuple[str, ...]:
        """What is kept of the test of a run where it was measured: not of all, nor by earlier versions."""
        return tuple(f"test_{metric.name}" for metric in self.task.only_tested)
