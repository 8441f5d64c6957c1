"""``fenchel train``: a vision transformer on images, or a classifier of sentences."""

from __future__ import annotations

import dataclasses
import os
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fenchel.arguments import checked
from fenchel.cli.failure import Interrupted
from fenchel.cli.interruption import what_was_saved
from fenchel.cli.options import (
    CheckpointSeconds,
    DeviceName,
    Out,
    Overwrite,
    Precision,
    PrecisionName,
    Resume,
    Seed,
    TrainBatchSize,
)
from fenchel.cli.speaking import first_process_speaks
from fenchel.cli.stopping import stopping_at_a_step
from fenchel.cli.training import observer_of_training
from fenchel.errors import InputError

if TYPE_CHECKING:
    from fenchel.train import LoopOptions

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "train"
SUMMARY = "Train a ViT or an OT-ViT on images, or a classifier of sentences."
HELP = (
    "Train a vision transformer whose last layer is optimal-transport attention (OT-ViT), or the same without (ViT); "
    "or a classifier of sentences, pooled by attention with a learned question or by their mean. It can be stopped "
    "and resumed at any time. Under torchrun, several processes share each batch."
)
EXAMPLE = (
    "Example: fenchel train --data fashion-mnist --model ot-vit --epochs 5 --out runs/ot-vit. Then look at "
    "runs/ot-vit/curves.png."
)


class Model(str, Enum):
    """What to train."""

    vit = "vit"
    ot_vit = "ot-vit"
    attention_pooling = "attention-pooling"
    mean_pooling = "mean-pooling"


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


class Estimator(str, Enum):
    """How a question is answered."""

    first_order = "first_order"
    second_order = "second_order"
    exact = "exact"


class Preference(str, Enum):
    """What is believed of a sentence's words before looking."""

    uniform = "uniform"
    position = "position"


class RecipeName(str, Enum):
    """A recipe."""

    paper = "paper"
    strong = "strong"


class Answer(str, Enum):
    """Whether to do something."""

    yes = "yes"
    no = "no"


_SENTENCES = frozenset({Model.attention_pooling, Model.mean_pooling})
_OF_THE_RUN = frozenset({"out", "device", "resume", "overwrite", "checkpoint_seconds"})


@first_process_speaks()
def run(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One of fashion-mnist, cifar10, cifar100, and for sentences trec (found in FENCHEL_DATA), a path, or "
            "hf:NAME[:CONFIG].",
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
        float,
        typer.Option(metavar="X", help="Reliability of the evidence, in ot-vit's last layer or in pooling."),
    ] = 1.0,
    estimator: Annotated[
        Estimator | None,
        typer.Option(help="How attention pooling answers its question.  [default: first_order]"),
    ] = None,
    preference: Annotated[
        Preference | None,
        typer.Option(
            help="What attention pooling believes before looking; position: a learned weight for each place.  "
            "[default: uniform]"
        ),
    ] = None,
    train_sentences: Annotated[
        int | None, typer.Option(metavar="N", help="Train on N sentences.  [default: all]")
    ] = None,
    train_images: Annotated[
        int | None, typer.Option(metavar="N", help="Train on N images, balanced by class.  [default: all]")
    ] = None,
    test_images: Annotated[
        int | None, typer.Option(metavar="N", help="Test on N images, balanced by class.  [default: all]")
    ] = None,
    epochs: Annotated[int, typer.Option(metavar="N", help="How often each example is seen.")] = 20,
    batch_size: TrainBatchSize = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest learning rate.  [default: 3e-4, and 3e-3 for sentences]"),
    ] = None,
    recipe: Annotated[
        RecipeName,
        typer.Option(help="Regularisation and augmentation; paper: none of the latter, strong: the usual."),
    ] = RecipeName.paper,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="X", help="Decay of matrices.  [default: the recipe's; 0.01]")
    ] = None,
    warmup_fraction: Annotated[
        float | None,
        typer.Option(metavar="X", help="Share of steps to warm up in.  [default: the recipe's; 0.05]"),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(metavar="X", help="Label smoothing.  [default: the recipe's]")
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Largest norm of the gradient, 0: no limit.  [default: the recipe's; 0]"
        ),
    ] = None,
    flip: Annotated[
        Answer | None,
        typer.Option(
            help="Mirror images at random.  [default: yes with recipe strong on fashion-mnist, cifar10 and cifar100]"
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="N", help="Hidden size.  [default: 256, and 64 for sentences]")
    ] = None,
    depth: Annotated[int, typer.Option(metavar="N", help="Layers.")] = 6,
    heads: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Heads of a layer, or of attention pooling.  [default: 8, and 4 for sentences]"
        ),
    ] = None,
    mlp_width: Annotated[int, typer.Option(metavar="N", help="Hidden size of the MLPs.")] = 512,
    dropout: Annotated[
        float | None,
        typer.Option(metavar="X", help="Dropout rate.  [default: 0.2, and 0.5 for sentences]"),
    ] = None,
    patch_size: Annotated[int, typer.Option(metavar="N", help="Side of a patch, in pixels.")] = 4,
    precision: PrecisionName = Precision.auto,
    device: DeviceName = None,
    seed: Seed = 0,
    evaluate_every: Annotated[
        int, typer.Option(metavar="N", help="Test after every N epochs, and after the last.")
    ] = 1,
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
) -> None:
    """Wires the options to ``fenchel.train.train``."""
    from fenchel.train import train
    from fenchel.train.folder import TRAINING

    place: Path = checked("folder", out, name="out")
    options = _options(context, model)
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
    task = result.task
    typer.echo(
        f"Test {task.headline} {result.headline:.4f} after {_counted(len(result.epochs), 'epoch')} of "
        f"{result.description['data'][f'train_{task.unit}']:,} {task.unit}, {result.parameters:,} parameters."
    )
    typer.echo(f"Curves: {place / 'curves.png'}")


def _options(context: typer.Context, model: Model) -> LoopOptions:
    """What is asked of the training: what was written on the command line, the rest as the model's options have it."""
    from fenchel.train import TextOptions, TrainOptions

    kind = TextOptions if model in _SENTENCES else TrainOptions
    known = {field.name for field in dataclasses.fields(kind)}
    given: dict[str, Any] = {"model": model.value}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in _OF_THE_RUN or source is None or source.name != "COMMANDLINE":
            continue
        if name not in known:
            raise InputError(
                f"--{name.replace('_', '-')} is no option of the model {model.value!r}. Leave it out, or choose "
                "another model."
            )
        given[name] = (
            value is Answer.yes if name == "flip" else value.value if isinstance(value, Enum) else value
        )
    return kind(**given)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
