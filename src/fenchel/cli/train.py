"""``fenchel train``: a vision transformer on images, or a classifier of sentences."""

from __future__ import annotations

import dataclasses
import os
from enum import Enum, StrEnum
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
from fenchel.cli.train_help import OF_THE_RUN, Command, options_of_the_command
from fenchel.cli.training import observer_of_training
from fenchel.errors import InputError

if TYPE_CHECKING:
    from fenchel.train import LoopOptions

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "Command", "run"]

NAME = "train"
SUMMARY = "Train a model on images, sentences, translations, captions or blanks."
HELP = (
    "Train a vision transformer whose last layer is optimal-transport attention (OT-ViT), or the same without (ViT); "
    "or one of the papers' running examples and the textbook's models. fenchel train --model NAME --help lists the "
    "options of one model with its defaults. A training can be stopped and resumed at any time. Under torchrun, "
    "several processes share each batch."
)
EXAMPLE = (
    "Example: fenchel train --data fashion-mnist --model ot-vit --epochs 5 --out runs/ot-vit. Then look at "
    "runs/ot-vit/curves.png."
)


class ExtraPreference(StrEnum):
    """What the preference gives the templates of another image."""

    zero = "zero"
    shared = "shared"
    none = "none"


class Cost(StrEnum):
    """A transport cost between templates."""

    dot = "dot"
    squared_euclidean = "squared_euclidean"
    cosine = "cosine"


class Estimator(StrEnum):
    """How a problem is answered."""

    first_order = "first_order"
    second_order = "second_order"
    exact = "exact"


class RecipeName(StrEnum):
    """A recipe."""

    paper = "paper"
    strong = "strong"


class Answer(StrEnum):
    """Whether to do something."""

    yes = "yes"
    no = "no"


_DEFAULT = "ot-vit"


@first_process_speaks()
def run(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="One of fashion-mnist, cifar10, cifar100; for sentences trec, sst2, sst5; for pairs of them sick, "
            "cad-nli[:PART]; for captions coco-mini; for translation multi30k; for blanks wikitext2 or "
            "multi30k (found in FENCHEL_DATA); a path, or hf:NAME[:CONFIG].",
            show_default=False,
        ),
    ],
    out: Out,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="What to train: vit or ot-vit on images; attention-pooling, mean-pooling or "
            "classifier on sentences; pairs on pairs of sentences; captioner on captions; translator; "
            "cloze on running text or pairs, and cloze-classifier on sentences.",
        ),
    ] = _DEFAULT,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Another option of the model; each has its own, listed below."
        ),
    ] = None,
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
        typer.Option(metavar="X", help="Reliability of the evidence, wherever the model attends."),
    ] = 1.0,
    estimator: Annotated[
        Estimator | None,
        typer.Option(help="How attention answers, in models of text and captions.  [default: first_order]"),
    ] = None,
    preference: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What is believed before looking, as the model has it: uniform, position, context, relative, "
            "gaussian.  [default: the model's]",
        ),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How a query meets a key, as the model has it: dot, general, additive.  [default: the model's]",
        ),
    ] = None,
    closeness: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What keeps the answer near the preference, such as tsallis:1.5 or sparsemax.  [default: softmax]",
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
    epochs: Annotated[
        int,
        typer.Option(
            metavar="N", help="How often each example is seen.  [default: the model's]", show_default=False
        ),
    ] = 20,
    batch_size: TrainBatchSize = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest learning rate.  [default: the model's]"),
    ] = None,
    recipe: Annotated[
        RecipeName,
        typer.Option(help="Regularisation and augmentation; paper: none of the latter, strong: the usual."),
    ] = RecipeName.paper,
    weight_decay: Annotated[
        float | None, typer.Option(metavar="X", help="Decay of matrices.  [default: the model's]")
    ] = None,
    warmup_fraction: Annotated[
        float | None,
        typer.Option(metavar="X", help="Share of steps to warm up in.  [default: the model's]"),
    ] = None,
    label_smoothing: Annotated[
        float | None, typer.Option(metavar="X", help="Label smoothing.  [default: the model's]")
    ] = None,
    gradient_clip: Annotated[
        float | None,
        typer.Option(metavar="X", help="Largest norm of the gradient, 0: no limit.  [default: the model's]"),
    ] = None,
    flip: Annotated[
        Answer | None,
        typer.Option(
            help="Mirror images at random.  [default: yes with recipe strong on fashion-mnist, cifar10 and cifar100]"
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(metavar="N", help="Hidden size.  [default: the model's]")
    ] = None,
    depth: Annotated[
        int, typer.Option(metavar="N", help="Layers.  [default: the model's]", show_default=False)
    ] = 6,
    heads: Annotated[
        int | None,
        typer.Option(metavar="N", help="Heads of a layer, or of attention pooling.  [default: the model's]"),
    ] = None,
    mlp_width: Annotated[
        int,
        typer.Option(
            metavar="N", help="Hidden size of the MLPs.  [default: the model's]", show_default=False
        ),
    ] = 512,
    dropout: Annotated[
        float | None,
        typer.Option(metavar="X", help="Dropout rate.  [default: the model's]"),
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
    measured = task.headline.replace("_", " ")
    typer.echo(
        f"Test {measured} {result.headline:.4f} after {_counted(len(result.epochs), 'epoch')} of "
        f"{result.description['data'][f'train_{task.unit}']:,} {task.unit}, {result.parameters:,} parameters."
    )
    for note in result.description["notes"]:
        typer.echo(f"Note: {note}")
    typer.echo(f"Curves: {place / 'curves.png'}")


def _options(context: typer.Context, model: str) -> LoopOptions:
    """What is asked of the training: what was written on the command line, the rest as the model's options have it."""
    from fenchel.train.registry import task_of_model
    from fenchel.train.settings import parsed_settings, settings_of

    kind = task_of_model(model).options_type
    known = {field.name for field in dataclasses.fields(kind)}
    apart = settings_of(kind, without=options_of_the_command(context))
    given: dict[str, Any] = {"model": model, **parsed_settings(context.params["settings"] or (), apart)}
    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name in OF_THE_RUN or source is None or source.name != "COMMANDLINE":
            continue
        if name not in known:
            raise InputError(
                f"--{name.replace('_', '-')} is no option of the model {model!r}. Leave it out, or choose "
                "another model."
            )
        given[name] = (
            value is Answer.yes if name == "flip" else value.value if isinstance(value, Enum) else value
        )
    return kind(**given)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
