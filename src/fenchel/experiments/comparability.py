"""In what our runs differ from the paper's, in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from fenchel.experiments.arm import ARMS
from fenchel.experiments.paper import UNSAID
from fenchel.experiments.plan import Plan
from fenchel.experiments.record import RunRecord

__all__ = ["not_as_in_the_paper"]


def not_as_in_the_paper(plan: Plan, records: Sequence[RunRecord]) -> tuple[str, ...]:
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
    said += [f"{data.name}: {data.note.rstrip('.')}." for data in plan.descriptions if data.note]
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
    if any(ARMS[name].extra_preference != "none" for name in plan.arms):
        said.append(
            "Whether u gives the other image's templates weight is not said in the paper; its OT-ViT stands beside "
            "whichever reading was run."
        )
    if plan.seeds > 1:
        said.append(
            "Our intervals are Student's t over seeds (weights, order of images, dropout, joining); the images are "
            "the same in all of them. What the paper's ±0.01 covers is not said."
        )
    machines = dict.fromkeys(_machine(record) for record in records)
    if machines:
        said.append(f"Trained on: {'; '.join(machines)}.")
    return tuple(said)


def _images(plan: Plan) -> list[str]:
    found: list[str] = []
    for data in plan.descriptions:
        parts = [
            f"{min(asked, there):,} of {there:,} {kind} images"
            for kind, asked, there in (
                ("training", plan.setting.get("train_images"), data.train_images),
                ("test", plan.setting.get("test_images"), data.test_images),
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


def _machine(record: RunRecord) -> str:
    machine = record.machine
    device = str(machine.get("device", "an unknown device"))
    processes, threads = machine.get("processes", 1), machine.get("threads")
    parts = [device if device == "cpu" else f"{machine.get('device_name', device)}"]
    if device == "cpu" and threads is not None:
        parts.append(f"{threads} thread{'' if threads == 1 else 's'}")
    if processes != 1:
        parts.append(f"{processes} processes")
    return ", ".join([*parts, str(machine.get("precision", "unknown precision"))])
