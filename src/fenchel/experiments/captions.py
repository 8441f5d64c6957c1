"""Captioners that look softly, hard or not at all, on images that are few enough to be learned by heart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.caveats import usual_caveats
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord
from fenchel.train.captions import Captioning

__all__ = ["CAPTIONS_BY_HEART", "CAPTIONS_HELD_OUT"]

_SHARED = ("epochs", "batch_size", "width", "dropout", "image_size")
_LOOKING: dict[str, Any] = {"estimator": "first_order", "preference": "uniform", "coverage": 0.0}
_BY_HEART = (
    "Trained, validated and tested on the same images: what is measured is how well they are learned by heart, and "
    "nothing else. A lower loss is better at that, and no better at captioning."
)
_HELD_OUT = (
    "A tenth of the images is validated on and a tenth tested on, 15 each: too few to say how good any arm is. The "
    "epoch of the lowest validation loss is kept; the loss in training of the last epoch, far below, shows "
    "the overfitting."
)


def _arms() -> tuple[Arm, ...]:
    soft, hard = {**_LOOKING, "attention": "soft"}, {**_LOOKING, "attention": "hard"}
    control = {**_LOOKING, "attention": "mean", "estimator": None}
    return (
        Arm(
            "mean",
            "Mean of all cells",
            control,
            "the control that does not look",
            leaves=frozenset({"alpha"}),
        ),
        Arm("soft", "Soft", soft, "the mean of the cells under p, by first order"),
        Arm("soft-exact", "Soft, exact", {**soft, "estimator": "exact"}, "the same with the exact p"),
        Arm(
            "soft-context",
            "Soft, Context",
            {**soft, "preference": "context"},
            "soft, with a preference among cells that the image decides",
        ),
        Arm(
            "soft-stochastic",
            "Soft, doubly stochastic",
            {**soft, "coverage": 1.0},
            "soft, with the doubly stochastic penalty",
        ),
        Arm(
            "hard",
            "Hard, REINFORCE",
            {**hard, "gradient": "reinforce", "entropy": 0.01},
            "one cell, drawn in training and the likeliest in use; where to look is learned by REINFORCE",
        ),
        Arm(
            "hard-through",
            "Hard, straight through",
            {**hard, "gradient": "straight_through"},
            "one cell, with the gradient of the mean",
        ),
    )


def _comparison(held_out: float, said: str) -> Comparison:
    def caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
        return usual_caveats(plan, records, said, shared=_SHARED)

    return Comparison(
        task=Captioning,
        arms=arms_by_name(*_arms()),
        baseline="mean",
        budgets=budgets_by_name(
            Budget(
                "smoke",
                {"train_images": 20, "epochs": 2, "width": 32, "image_size": 32},
                "seconds: shows that everything works, and no more",
            ),
            Budget(
                "desk",
                {"train_images": None, "epochs": 40, "width": 128, "image_size": 64},
                "all 154 images, a run in a few minutes on a CPU core",
            ),
        ),
        caveats=caveats,
        before="To know of these numbers:",
        setting={"dropout": 0.1, "held_out": held_out, "evaluate_every": 5 if held_out == 0 else 1},
        columns=(Column("test_bleu", "Test BLEU", 2), Column("train_loss", "Loss in training, last epoch")),
        costs=True,
    )


CAPTIONS_BY_HEART = _comparison(0.0, _BY_HEART)
"""Arms on all images, whose own captions they are tested on."""

CAPTIONS_HELD_OUT = _comparison(0.1, _HELD_OUT)
"""The same arms, tested on images that are held out."""
