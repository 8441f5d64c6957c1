"""``fenchel train``: a vision transformer, with optimal-transport attention or without, on real images."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked
from fenchel.cli.failure import Interrupted
from fenchel.cli.interruption import what_was_saved
from fenchel.cli.options import CheckpointSeconds, DeviceName, ImageBatchSize, Out, Overwrite, Resume
from fenchel.cli.speaking import first_process_speaks
from fenchel.cli.stopping import stopping_at_a_step
from fenchel.cli.training import observer_of_training

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "train"
SUMMARY = "Train a ViT or an OT-ViT on images."
HELP = (
    "Train a vision transformer whose last layer is optimal-transport attention (OT-ViT), or the same without (ViT). "
    "It can be stopped and resumed at any time. Under torchrun, several processes share each batch."
)
EXAMPLE = (
    "Example: fenchel train --data fashion-mnist --model ot-vit --epochs 5 --out runs/ot-vit. Then look at "
    "runs/ot-vit/curves.png."
)


class Model(str, Enum):
    """What to train."""

    vit = "vit"
    ot_vit = "ot-vit"


class ExtraPreference(str, Enum):
    """What the preference gives the templates of another image."""

    zero = "zero"
    shared = "shared"
    none = "none"


class Cost(str, Enum):
    """A transport cost between templates."""

    dot = "dot"
    squared_euclidean = "squared_euclidean"
    cosine = "cosine"


class RecipeName(str, Enum):
    """A recipe."""

    paper = "paper"
    strong = "strong"


class Answer(str, Enum):
    """Whether to do something."""

    yes = "yes"
    no = "no"


class Precision(str, Enum):
    """What to multiply in."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


@first_process_speaks()
def run(
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One of fashion-mnist, cifar10, cifar100 (found in FENCHEL_DATA), a path, or hf:NAME[:CONFIG].",
            show_default=False,
        ),
    ],
    out: Out,
    model: Annotated[Model, typer.Option(help="What to train.")] = Model.ot_vit,
    extra_preference: Annotated[
        ExtraPreference | None,
        typer.Option(
            help="Weight that the preference gives the templates of another image of the class; none: there are no "
            "such templates.  [default: zero for ot-vit, none for vit]"
        ),
    ] = None,
    join_probability: Annotated[
        float, typer.Option(metavar="X", help="How often another image's templates join, in training.")
    ] = 0.5,
    cost: Annotated[Cost, typer.Option(help="Transport cost of ot-vit.")] = Cost.dot,
    gamma: Annotated[
        float | None,
        typer.Option(metavar="X", help="Entropic regularisation of ot-vit.  [default: sqrt(width)]"),
    ] = None,
    alpha: Annotated[
        float, typer.Option(metavar="X", help="Reliability of the evidence in ot-vit's last layer.")
    ] = 1.0,
    train_images: Annotated[
        int | None, typer.Option(metavar="N", help="Train on N images, balanced by class.  [default: all]")
    ] = None,
    test_images: Annotated[
        int | None, typer.Option(metavar="N", help="Test on N images, balanced by class.  [default: all]")
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", help="How often each image is seen.")] = 20,
    batch_size: ImageBatchSize = 128,
    learning_rate: Annotated[float, typer.Option(metavar="X", help="Largest learning rate.")] = 3e-4,
    recipe: Annotated[
        RecipeName,
        typer.Option(help="Regularisation and augmentation; paper: none of the latter, strong: the usual."),
    ] = RecipeName.paper,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="X", help="Decay of matrices.  [default: the recipe's]")
    ] = None,
    warmup_fraction: Annotated[
        float | None, typer.Option(metavar="X", help="Share of steps to warm up in.  [default: the recipe's]")
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(metavar="X", help="Label smoothing.  [default: the recipe's]")
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest norm of the gradient, 0: no limit.  [default: the recipe's]"),
    ] = None,
    flip: Annotated[
        Answer | None,
        typer.Option(
            help="Mirror images at random.  [default: yes with recipe strong on fashion-mnist, cifar10 and cifar100]"
        ),
    ] = None,
    width: Annotated[int, typer.Option(metavar="N", help="Hidden size.")] = 256,
    depth: Annotated[int, typer.Option(metavar="N", help="Layers.")] = 6,
    heads: Annotated[int, typer.Option(metavar="N", help="Heads of a layer.")] = 8,
    mlp_width: Annotated[int, typer.Option(metavar="N", help="Hidden size of the MLPs.")] = 512,
    dropout: Annotated[float, typer.Option(metavar="X", help="Dropout rate.")] = 0.2,
    patch_size: Annotated[int, typer.Option(metavar="N", help="Side of a patch, in pixels.")] = 4,
    precision: Annotated[
        Precision, typer.Option(help="What to multiply in; auto: bfloat16 where the hardware is fast in it.")
    ] = Precision.auto,
    device: DeviceName = None,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seed of weights, batches, augmentation, dropout and joining.")
    ] = 0,
    evaluate_every: Annotated[
        int, typer.Option(metavar="N", help="Test after every N epochs, and after the last.")
    ] = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
) -> None:
    """Wires the options to ``fenchel.train.train``."""
    from fenchel.train import TrainOptions, train
    from fenchel.train.folder import TRAINING

    place: Path = checked("folder", out, name="out")
    options = TrainOptions(
        data=data,
        model=model.value,
        extra_preference=None if extra_preference is None else extra_preference.value,
        join_probability=join_probability,
        cost=cost.value,
        gamma=gamma,
        alpha=alpha,
        train_images=train_images,
        test_images=test_images,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        warmup_fraction=warmup_fraction,
        label_smoothing=label_smoothing,
        gradient_clip=gradient_clip,
        flip=None if flip is None else flip is Answer.yes,
        recipe=recipe.value,
        precision=precision.value,
        seed=seed,
        width=width,
        depth=depth,
        heads=heads,
        mlp_width=mlp_width,
        dropout=dropout,
        patch_size=patch_size,
        evaluate_every=evaluate_every,
    )
    try:
        with stopping_at_a_step() as stop:
            result = train(
                options,
                place,
                resume=resume,
                overwrite=overwrite,
                observer=observer_of_training(),
                device=device,
                checkpoint_seconds=checkpoint_seconds,
                stop=stop,
            )
    except KeyboardInterrupt:
        raise Interrupted(what_was_saved(TRAINING, place)) from None
    if os.environ.get("RANK", "0") != "0":
        return
    typer.echo(
        f"Test accuracy {result.test_accuracy:.4f} after {_counted(len(result.epochs), 'epoch')} of "
        f"{result.description['data']['train_images']:,} images, {result.parameters:,} parameters."
    )
    typer.echo(f"Curves: {place / 'curves.png'}")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
