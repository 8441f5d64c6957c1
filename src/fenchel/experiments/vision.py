"""ViT against OT-ViT, as tables 1 and 2 of the paper have it: arms, budgets, and in what our runs differ."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.arm import Arm, arms_by_name
from fenchel.experiments.budget import Budget, budgets_by_name
from fenchel.experiments.comparison import Comparison
from fenchel.experiments.paper import UNSAID, reported
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord, machines
from fenchel.train.vision import ImageClassification

__all__ = ["ARMS", "BUDGETS", "IMAGES"]

_OF_TRANSPORT = frozenset({"cost", "gamma", "alpha"})

ARMS = arms_by_name(
    Arm(
        "vit",
        "ViT",
        {"model": "vit", "extra_preference": "none"},
        "softmax attention, the image's own templates",
        leaves=_OF_TRANSPORT,
    ),
    Arm(
        "ot-vit",
        "OT-ViT",
        {"model": "ot-vit", "extra_preference": "zero"},
        "optimal-transport attention; the other image's templates have no preference and are reached through the "
        "transport only",
    ),
    Arm(
        "ot-vit-shared",
        "OT-ViT, shared u",
        {"model": "ot-vit", "extra_preference": "shared"},
        "optimal-transport attention; u gives the other image's templates the same weight as the image's own",
    ),
    Arm(
        "ot-vit-alone",
        "OT-ViT, no extras",
        {"model": "ot-vit", "extra_preference": "none"},
        "optimal-transport attention over the image's own templates, no other image",
    ),
    Arm(
        "vit-extra",
        "ViT with extras",
        {"model": "vit", "extra_preference": "shared"},
        "softmax attention over the templates of both images, no transport",
        leaves=_OF_TRANSPORT,
    ),
)
"""All arms by name. What u gives to the templates of another image of the class in training is ``zero``, ``shared``, or
``none`` where there are no such templates; a model without transport takes no option of it."""

BUDGETS = budgets_by_name(
    Budget(
        "smoke",
        {"train_images": 2_000, "test_images": 1_000, "epochs": 2},
        "minutes on two CPU cores: shows that everything works, and no more",
    ),
    Budget(
        "desk",
        {"train_images": 10_000, "test_images": 5_000, "epochs": 4},
        "five arms in an hour or so on two CPU cores: a first comparison",
    ),
    Budget("paper", {"train_images": None, "test_images": None, "epochs": 100}, "all images, for a GPU"),
)
"""All budgets by name."""


def _not_as_in_the_paper(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
    """What a reader must know before setting our numbers beside the paper's.

    Args:
        plan: What was to be run.
        records: What has been.

    Returns:
        Sentences, the weightiest first.
    """
    setting = plan.setting
    epochs = setting["epochs"]
    said = [
        f"Ours were trained for {epochs} epoch{'' if epochs == 1 else 's'}; the paper does not say how many.",
        *_images(plan),
    ]
    said += [
        f"{data.name}: {data.summary.note.rstrip('.')}." for data in plan.descriptions if data.summary.note
    ]
    said += _sizes(plan)
    if setting.get("recipe", "paper") != "paper":
        said.append(
            f"Recipe {setting['recipe']}, with augmentation and regularisation that the paper does not mention."
        )
    said.append(
        f"The paper does not give: {UNSAID}. Ours: AdamW, warm-up and cosine, batches of {setting['batch_size']}, "
        f"recipe {setting.get('recipe', 'paper')}, {plan.seeds} seed{'' if plan.seeds == 1 else 's'}; test accuracy "
        "after the last epoch."
    )
    if any(arm.options["extra_preference"] != "none" for arm in plan.chosen):
        said.append(
            "Whether u gives the other image's templates weight is not said in the paper; its OT-ViT stands beside "
            "whichever reading was run."
        )
    if plan.seeds > 1:
        said.append(
            "Our intervals are Student's t over seeds (weights, order of images, dropout, joining); the images are "
            "the same in all of them. What the paper's ±0.01 covers is not said."
        )
    if records:
        said.append(f"Trained on: {'; '.join(machines(records))}.")
    return tuple(said)


def _images(plan: Plan) -> list[str]:
    found: list[str] = []
    for data in plan.descriptions:
        parts = [
            f"{min(asked, there):,} of {there:,} {kind} images"
            for kind, asked, there in (
                ("training", plan.setting.get("train_images"), data.summary.train),
                ("test", plan.setting.get("test_images"), data.summary.test),
            )
            if asked is not None and asked < there
        ]
        if parts:
            found.append(f"{data.name}: only {' and '.join(parts)} were used; the paper used all, it seems.")
    return found


_PAPER_MODEL = {
    "width": 256,
    "depth": 6,
    "mlp_width": 512,
    "dropout": 0.2,
    "patch_size": 4,
    "join_probability": 0.5,
}


def _sizes(plan: Plan) -> list[str]:
    other = [
        f"{name.replace('_', ' ')} {plan.setting[name]} for {value}"
        for name, value in _PAPER_MODEL.items()
        if plan.setting.get(name, value) != value
    ]
    return [f"Another model than the paper's: {', '.join(other)}."] if other else []


IMAGES = Comparison(
    task=ImageClassification,
    arms=ARMS,
    baseline="vit",
    budgets=BUDGETS,
    caveats=_not_as_in_the_paper,
    before="Before setting ours beside the paper's:",
    reported=reported,
    undecided=frozenset(
        {"flip", "gamma"}
    ),  # whether images may be mirrored depends on the data, γ on the model
)
"""What tables 1 and 2 and the ablation have in common."""
