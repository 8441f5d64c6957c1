"""Captioners that look softly, hard or not at all, on images that are few enough to be learned by heart."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.column import Column
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord, machines
from fenchel.train.captions import Captioning

__all__ = ["CAPTIONS"]

_OF_LOOKING = frozenset({"alpha"})


def _caveats(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    setting = plan.setting
    said = [
        f"{data.name}: {data.summary.note.rstrip('.')}." for data in plan.descriptions if data.summary.note
    ]
    said += [
        "Arms but those with images held out are trained, validated and tested on the same images: what is measured is "
        "how well they are learned by heart, and nothing else. Lower is better at that, and no better at captioning.",
        "Where images are held out, a tenth is validated on and a tenth tested on; the epoch of the lowest validation "
        "loss is kept, and its loss in training says how far the model had been fitted by the last epoch.",
        f"All arms have {setting['epochs']} epochs, batches of {setting['batch_size']}, width {setting['width']}, dropout "
        f"{setting['dropout']:g} and {setting['image_size']} pixels a side in common; none was tuned for any of them.",
    ]
    if plan.seeds > 1:
        said.append(
            "Intervals are Student's t over seeds (weights, order of captions, draws); the images are the same in all of "
            "them, so they say nothing of other images."
        )
    if records:
        said.append(f"Trained on: {'; '.join(machines(records))}.")
    return tuple(said)


def _soft(name: str, label: str, reading: str, **options: object) -> Arm:
    own = {"attention": "soft", "gradient": None, "estimator": "first_order", "preference": "uniform"}
    return Arm(name, label, {**own, "coverage": 0.0, "entropy": 0.0, "held_out": 0.0, **options}, reading)


def _hard(name: str, label: str, gradient: str, reading: str, **options: object) -> Arm:
    own = {"attention": "hard", "gradient": gradient, "estimator": "first_order", "preference": "uniform"}
    entropy = 0.01 if gradient == "reinforce" else 0.0
    return Arm(name, label, {**own, "coverage": 0.0, "entropy": entropy, "held_out": 0.0, **options}, reading)


def _mean(name: str, label: str, reading: str, **options: object) -> Arm:
    own = {"attention": "mean", "gradient": None, "estimator": None, "preference": "uniform"}
    own |= {"coverage": 0.0, "entropy": 0.0, "held_out": 0.0}
    return Arm(name, label, {**own, **options}, reading, leaves=_OF_LOOKING)


CAPTIONS = Comparison(
    task=Captioning,
    arms=arms_by_name(
        _mean("mean", "Mean of all cells", "the control that does not look"),
        _soft("soft", "Soft", "the mean of the cells under p, by first order"),
        _soft("soft-exact", "Soft, exact", "the same, p exact", estimator="exact"),
        _soft(
            "soft-context",
            "Soft, Context",
            "soft, with a preference that the image decides",
            preference="context",
        ),
        _soft(
            "soft-stochastic",
            "Soft, doubly stochastic",
            "soft, with the doubly stochastic penalty",
            coverage=1.0,
        ),
        _hard(
            "hard", "Hard, REINFORCE", "reinforce", "one cell, drawn in training; where to look by REINFORCE"
        ),
        _hard(
            "hard-through",
            "Hard, straight through",
            "straight_through",
            "one cell, with the gradient of the mean",
        ),
        _mean(
            "mean-held-out",
            "Mean, images held out",
            "the control, tested on images it has not seen",
            held_out=0.1,
        ),
        _soft(
            "soft-held-out", "Soft, images held out", "soft, tested on images it has not seen", held_out=0.1
        ),
        _hard(
            "hard-held-out",
            "Hard, images held out",
            "reinforce",
            "hard by REINFORCE, tested on images it has not seen",
            held_out=0.1,
        ),
    ),
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
            "all 154 images, an arm in some minutes on a CPU core",
        ),
    ),
    caveats=_caveats,
    before="To know of these numbers:",
    setting={"dropout": 0.1, "evaluate_every": 5},
    columns=(
        Column("test_bleu", "Test BLEU", 2),
        Column("train_loss", "Loss in training, last epoch"),
    ),
    costs=True,
)
"""Arms that differ in how an image enters a word."""
