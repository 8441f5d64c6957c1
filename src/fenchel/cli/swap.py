"""``fenchel swap``: what a model computes when its attention infers with another estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked
from fenchel.cli.failure import Interrupted
from fenchel.cli.insisting import insisting
from fenchel.cli.interruption import what_was_saved
from fenchel.cli.numbers import decimals, numbers
from fenchel.cli.options import (
    CheckpointSeconds,
    DeviceName,
    Dtype,
    DtypeName,
    Heads,
    Layers,
    Loader,
    MaxLength,
    MaxTokens,
    MaybeText,
    ModelName,
    Out,
    Overwrite,
    Resume,
    Revision,
    Seed,
    Stride,
    TargetColumn,
    TextColumn,
    WholeFile,
    WindowBatchSize,
    best_device,
)
from fenchel.cli.progress import observer_of_standard_error

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "swap"
SUMMARY = "Swap a model's inference and measure what changes, against a control."
HELP = (
    "Measure what a trained model computes when its attention infers with another estimator, nothing retrained: its "
    "loss and hidden states, or for a model without a language-model head its sentence embeddings. The control, "
    "first order at other alphas, tells what is only smoothing. MODEL is a name on the Hugging Face hub, a local "
    "folder, 'demo', or with --loader the folder of a run of an example, of which the outputs are compared, and the "
    "loss and score of its batches."
)
EXAMPLE = "Example: fenchel swap demo --text demo --out swap --alphas 0.8,1.2. Then open swap/swap.html."


def run(
    model: ModelName,
    out: Out,
    text: MaybeText = None,
    images: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="In the place of a text, for a model that reads images: a folder of them, or one.",
            show_default=False,
        ),
    ] = None,
    loader: Loader = None,
    pairs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Scored pairs of sentences, columns parted by tabs.", show_default=False
        ),
    ] = None,
    first_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the pairs' first sentences.")
    ] = "sentence_A",
    second_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the pairs' second sentences.")
    ] = "sentence_B",
    score_column: Annotated[
        str, typer.Option(metavar="NAME", help="Column of the pairs' scores, higher for more similar.")
    ] = "relatedness_score",
    max_pairs: Annotated[
        int | None, typer.Option(metavar="N", help="Take only the first N pairs.  [default: all]")
    ] = None,
    sample_pairs: Annotated[
        int, typer.Option(metavar="N", help="Pairs of texts whose similarities are ranked, at most.")
    ] = 10_000,
    estimators: Annotated[
        str, typer.Option(metavar="LIST", help="What to swap in, of second_order and exact.")
    ] = "second_order,exact",
    alphas: Annotated[
        str, typer.Option(metavar="LIST", help="The alphas of the control, first order.")
    ] = "0.5,0.6,0.7,0.8,0.9,1.0,1.1,1.2,1.3",
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Also swap one layer at a time, with every control.")
    ] = False,
    per_head: Annotated[
        bool, typer.Option("--per-head", help="Also swap one head at a time, with three controls.")
    ] = False,
    layers: Layers = None,
    heads: Heads = None,
    mask_probability: Annotated[
        float, typer.Option(metavar="X", help="Share of tokens hidden from a masked language model.")
    ] = 0.15,
    bootstrap: Annotated[int, typer.Option(metavar="N", help="Resamples for the intervals.")] = 2000,
    tol: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Relative tolerance of the exact estimator.  [default: 1e-5, in float64 1e-10]",
        ),
    ] = None,
    whole_file: WholeFile = False,
    text_column: TextColumn = None,
    target_column: TargetColumn = None,
    max_tokens: MaxTokens = None,
    batch_size: WindowBatchSize = 8,
    max_length: MaxLength = None,
    stride: Stride = None,
    device: DeviceName = None,
    dtype: DtypeName = Dtype.float32,
    revision: Revision = None,
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
) -> None:
    """Wires the options to ``fenchel.swap``."""
    if text is None and pairs is None and images is None and loader is None:
        raise typer.BadParameter(
            "Missing option '--text', '--pairs', '--images' or '--loader': there is nothing to read."
        )
    chosen_layers, chosen_heads = numbers(layers, "--layers"), numbers(heads, "--heads")
    place: Path = checked("folder", out, name="out")
    chosen_alphas = decimals(alphas, "--alphas")

    from rich.console import Console

    from fenchel.swap import PairColumns, swap
    from fenchel.swap.folder import SWAP
    from fenchel.swap.table import terminal_table

    try:
        with insisting(observer_of_standard_error("swapping")) as observer:
            report = swap(
                model,
                None,
                text,
                images=images,
                loader=loader,
                pairs=pairs,
                estimators=[name.strip() for name in estimators.split(",")],
                alphas=chosen_alphas,
                per_layer=per_layer,
                per_head=per_head,
                layers=chosen_layers,
                heads=chosen_heads,
                max_length=max_length,
                stride=stride,
                batch_size=batch_size,
                max_tokens=max_tokens,
                max_pairs=max_pairs,
                sample_pairs=sample_pairs,
                mask_probability=mask_probability,
                bootstrap=bootstrap,
                tol=tol,
                device=best_device() if device is None else device,
                dtype=dtype.value,
                revision=revision,
                whole_file=whole_file,
                text_column=text_column,
                target_column=target_column,
                columns=PairColumns(first_column, second_column, score_column),
                seed=seed,
                observer=observer,
                directory=place,
                resume=resume,
                overwrite=overwrite,
                checkpoint_seconds=checkpoint_seconds,
            )
    except KeyboardInterrupt:
        raise Interrupted(what_was_saved(SWAP, place)) from None
    console = Console()
    console.print(terminal_table(report))
    console.print(report.finding, markup=False, highlight=False)
    typer.echo(f"Figure: {place / 'swap.png'}")
    typer.echo(f"Page: {place / 'swap.html'}")
