"""Ways to pool the words of a sentence: one learned question by three estimators, and the mean, which asks none."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord, machines
from fenchel.train.text import TextClassification

__all__ = ["POOLING"]


def _caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    setting = plan.setting
    said = [
        f"{data.name}: trained on {setting['train_sentences']:,} sentences only."
        for data in plan.descriptions
        if setting["train_sentences"] is not None
    ]
    said += [
        f"{data.name}: {data.summary.note.rstrip('.')}." for data in plan.descriptions if data.summary.note
    ]
    said += [
        "Small models of words without order, trained from nothing: their accuracy is no measure of the field's.",
        f"All arms have the options of the training in common, {setting['epochs']} epochs, batches of "
        f"{setting['batch_size']}, width {setting['width']}, dropout {setting['dropout']:g}; none was tuned for any of "
        "them.",
        "A tenth of the sentences to train on is held out and watched; nothing is chosen by it, and the test is read "
        "once, after the last epoch.",
    ]
    if plan.seeds > 1:
        said.append(
            "Intervals are Student's t over seeds (weights, order of sentences, dropout); the sentences are the same "
            "in all of them, so they say nothing of other sentences."
        )
    if records:
        said.append(f"Trained on: {'; '.join(machines(records))}.")
    return tuple(said)


def _asking(name: str, label: str, estimator: str, reading: str) -> Arm:
    return Arm(name, label, {"model": "attention-pooling", "estimator": estimator}, reading)


POOLING = Comparison(
    task=TextClassification,
    arms=arms_by_name(
        Arm(
            "mean",
            "Mean",
            {"model": "mean-pooling", "estimator": None},
            "the mean of the words' values: attention that has not looked",
            leaves=frozenset({"alpha", "preference"}),
        ),
        _asking(
            "first-order",
            "First order",
            "first_order",
            "dot-product attention with a learned question a head",
        ),
        _asking(
            "second-order", "Second order", "second_order", "the same question, answered to second order"
        ),
        _asking("exact", "Exact", "exact", "the same question, answered exactly"),
    ),
    baseline="mean",
    budgets=budgets_by_name(
        Budget(
            "smoke",
            {"train_sentences": 500, "epochs": 2},
            "seconds: shows that everything works, and no more",
        ),
        Budget("desk", {"train_sentences": None, "epochs": 10}, "all sentences, minutes on two CPU cores"),
    ),
    caveats=_caveats,
    before="To know of these numbers:",
)
"""Arms that differ in how a sentence becomes one vector."""
