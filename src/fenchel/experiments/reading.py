"""Classifiers of sentences and of pairs of them, whose words are asked, against those that look at nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.caveats import usual_caveats
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord
from fenchel.train.reading import PairReading, SentenceReading
from fenchel.train.task import AnyTask

__all__ = ["MAIN_READERS", "READING_PAIRS", "READING_SENTENCES"]

MAIN_READERS = ("mean", "bag", "first-order", "exact", "context", "demo-mean", "demo-first-order")
"""What is run where nobody asks for other arms."""

_OF_ATTENTION = frozenset({"alpha", "closeness"})
_CONTROLS = (
    "An additive score is all preference, so that other estimators than first order are no arms of it."
)
_DEMO = (
    "Arms called demo read frozen states of the bundled encoder, which has seen far more text than these data; they "
    "are to be compared with each other."
)


def _arms(preferences: Mapping[str, str]) -> tuple[Arm, ...]:
    words = {"pooling": "attention", "embed": "learned"}
    control = {"pooling": "mean", "embed": "learned"}
    demo = {"embed": "demo"}
    return (
        Arm("mean", "Mean", control, "the mean of the words in the place of attention", leaves=_OF_ATTENTION),
        Arm(
            "bag",
            "Bag of words",
            {**control, "pooling": "bag"},
            "which words there are, and no more",
            leaves=_OF_ATTENTION,
        ),
        Arm("first-order", "First order", {**words, "estimator": "first_order"}, "dot-product attention"),
        Arm(
            "second-order",
            "Second order",
            {**words, "estimator": "second_order"},
            "the same, inferred to second order",
        ),
        Arm("exact", "Exact", {**words, "estimator": "exact"}, "the same, inferred exactly"),
        *(
            Arm(
                preference,
                preference.capitalize(),
                {**words, "estimator": "first_order", "preference": preference},
                f"first order, with a preference: {meaning}",
            )
            for preference, meaning in preferences.items()
        ),
        Arm(
            "additive",
            "Additive",
            {**words, "estimator": "first_order", "score": "additive"},
            "an additive score, which is all preference",
        ),
        Arm(
            "demo-mean",
            "Demo, mean",
            {**demo, "pooling": "mean"},
            "the mean of frozen states",
            leaves=_OF_ATTENTION,
            against="demo-mean",
        ),
        Arm(
            "demo-first-order",
            "Demo, first order",
            {**demo, "pooling": "attention", "estimator": "first_order"},
            "dot-product attention to frozen states",
            against="demo-mean",
        ),
        Arm(
            "demo-exact",
            "Demo, exact",
            {**demo, "pooling": "attention", "estimator": "exact"},
            "the same, inferred exactly",
            against="demo-mean",
        ),
    )


def _caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    trained = plan.setting["train_sentences"]
    some = () if trained is None else (f"Trained on {trained:,} examples only.",)
    demo = (_DEMO,) if any(arm.options.get("embed") == "demo" for arm in plan.chosen) else ()
    return usual_caveats(
        plan,
        records,
        *some,
        "Small models: but for those called demo they are trained from nothing, and their accuracy is no measure of "
        "the field's. The epoch of the best validation accuracy is kept, and the test is read once with it.",
        *demo,
        _CONTROLS,
        shared=("epochs", "batch_size", "width", "dropout"),
    )


def _comparison(
    task: type[AnyTask],
    arms: tuple[Arm, ...],
    epochs: int,
    setting: Mapping[str, Any],
    columns: tuple[Column, ...],
) -> Comparison:
    return Comparison(
        task=task,
        arms=arms_by_name(*arms),
        baseline="mean",
        budgets=budgets_by_name(
            Budget(
                "smoke",
                {"train_sentences": 200, "epochs": 1},
                "a minute: shows that everything works, and no more",
            ),
            Budget(
                "desk",
                {"train_sentences": None, "epochs": epochs},
                "all examples, minutes a run on a CPU core",
            ),
        ),
        caveats=_caveats,
        before="To know of these numbers:",
        setting=setting,
        undecided=frozenset({"encoder", "summary"} & {field.name for field in fields(task.options_type)}),
        columns=columns,
        costs=True,
    )


_LOSS = Column("test_loss", "Test loss")
_OF_SENTENCES = {
    "position": "a learned weight for each place",
    "context": "what the sentence itself says is important",
}
_OF_PAIRS = {
    "context": "what the other sentence itself says is important",
    "gaussian": "around the place that is as far into the other sentence",
    "relative": "by the distance of places, learned",
}

READING_SENTENCES: Mapping[str, Comparison] = {
    "trec": _comparison(SentenceReading, _arms(_OF_SENTENCES), 12, {}, (_LOSS,)),
    "sst2": _comparison(SentenceReading, _arms(_OF_SENTENCES), 6, {}, (_LOSS,)),
}
"""By data set: arms that differ in how words become one vector."""

READING_PAIRS: Mapping[str, Comparison] = {
    "sick": _comparison(
        PairReading,
        _arms(_OF_PAIRS),
        12,
        {},
        (Column("test_pearson", "Test Pearson, relatedness"), _LOSS),
    ),
    "cad-nli": _comparison(PairReading, _arms(_OF_PAIRS), 10, {}, (_LOSS,)),
}
"""By data set: arms that differ in how the words of one sentence find those of the other."""
