"""What models that filled in blanks are worth as classifiers of questions: fine-tuned, and begun anew."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.after import After
from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.caveats import usual_caveats
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.pretraining import BLANKS
from fenchel.experiments.record import RunRecord
from fenchel.train.cloze import FineTuning

__all__ = ["FINE_TUNED"]


def _caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    return usual_caveats(
        plan,
        records,
        "An arm goes on from the run of that name and seed of pretraining-blanks, on the same budget; the one without "
        "pretraining has the same model with none of its weights.",
        "Words of the questions that the pretraining did not know have embeddings that begin anew. The epoch of the "
        "best validation accuracy is kept, and the test is read once with it.",
        shared=("epochs", "batch_size", "dropout"),
    )


FINE_TUNED = Comparison(
    task=FineTuning,
    arms=arms_by_name(
        Arm(
            "fresh",
            "No pretraining",
            {"weights": "fresh"},
            "the same model, its weights drawn anew",
            after=BLANKS.baseline,
        ),
        *(
            Arm(
                arm.name,
                arm.label,
                {"weights": "pretrained"},
                f"fine-tuned after: {arm.reading}",
                after=arm.name,
            )
            for arm in BLANKS.arms.values()
        ),
    ),
    baseline="fresh",
    budgets=budgets_by_name(
        Budget(
            "smoke", {"train_sentences": 200, "epochs": 1}, "after the smoke of pretraining-blanks, seconds"
        ),
        Budget(
            "desk",
            {"train_sentences": None, "epochs": 12},
            "after its desk, some minutes a run on a CPU core",
        ),
    ),
    caveats=_caveats,
    before="To know of these numbers:",
    columns=(Column("test_loss", "Test loss"),),
    costs=True,
    after=After("pretraining-blanks", "pretrained"),
)
"""TREC's questions, after each way to pretrain and after none."""
