"""``fenchel audit``: how far each head of a model is from the problem that it approximates, on a text."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fenchel.arguments import checked
from fenchel.cli.failure import Interrupted
from fenchel.cli.insisting import insisting
from fenchel.cli.interruption import what_was_saved
from fenchel.cli.numbers import numbers
from fenchel.cli.options import (
    CheckpointSeconds,
    DeviceName,
    Dtype,
    DtypeName,
    Heads,
    Images,
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
from fenchel.cli.result import Swap, beside_swap, require_swap, show_result

__all__ = ["EXAMPLE", "HELP", "NAME", "SUMMARY", "run"]

NAME = "audit"
SUMMARY = "Measure a model's attention on a text and write a report."
HELP = (
    "Measure, head by head, how far a trained transformer's attention is from the inference problem that it "
    "approximates, on a text or on images, and write a report. MODEL is a name on the Hugging Face hub, a local "
    "folder, 'demo' for a small encoder that comes with fenchel's extra of that name, or with --loader the folder of a "
    "run of an example."
)
EXAMPLE = (
    "Example: fenchel audit demo --text demo --out audit --layers 1,3-5. "
    "Then open audit/report.html in a browser."
)


class Baseline(StrEnum):
    """Whether the model's untrained twin is audited beside it."""

    auto = "auto"
    twin = "twin"
    none = "none"


class Space(StrEnum):
    """What the templates are."""

    input = "input"
    key = "key"


def run(
    model: ModelName,
    out: Out,
    text: MaybeText = None,
    images: Images = None,
    loader: Loader = None,
    whole_file: WholeFile = False,
    text_column: TextColumn = None,
    target_column: TargetColumn = None,
    max_tokens: MaxTokens = None,
    batch_size: WindowBatchSize = 8,
    max_length: MaxLength = None,
    stride: Stride = None,
    queries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Measure a seeded sample of N queries of each window, with standard errors.  [default: all]",
        ),
    ] = None,
    layers: Layers = None,
    heads: Heads = None,
    space: Annotated[
        Space | None,
        typer.Option(
            help="Templates: the inputs of the key map, or the keys (works for every model).  [default: input, and key "
            "with --loader]"
        ),
    ] = None,
    closeness: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For models that attend so: tsallis:ORDER, sparsemax or entmax15.  [default: softmax]",
        ),
    ] = None,
    even_so: Annotated[
        bool, typer.Option("--even-so", help="Measure under --closeness a model that attends otherwise.")
    ] = False,
    alpha: Annotated[float, typer.Option(metavar="X", help="Reliability of the evidence, above 0.")] = 1.0,
    tol: Annotated[float, typer.Option(metavar="X", help="Relative tolerance of the exact solver.")] = 2e-4,
    memory_budget: Annotated[
        int,
        typer.Option(
            min=1, max=1 << 30, metavar="MB", help="Megabytes of working memory of the exact solver."
        ),
    ] = 512,
    baseline: Annotated[
        Baseline,
        typer.Option(
            help="Audit the model's untrained twin beside it: if that takes less than a minute, in any case, or not."
        ),
    ] = Baseline.auto,
    device: DeviceName = None,
    dtype: DtypeName = Dtype.float32,
    revision: Revision = None,
    seed: Seed = 0,
    shard: Annotated[
        str | None,
        typer.Option(
            metavar="I/N",
            help="Audit share I (from 0) of the N of the documents.  [default: RANK/WORLD_SIZE, else 0/1]",
        ),
    ] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
    keep_queries: Annotated[
        bool, typer.Option("--keep-queries", help="Also write every query, to queries-*.parquet.")
    ] = False,
    checkpoint_seconds: CheckpointSeconds = 60.0,
    swap: Swap = None,
) -> None:
    """Wires the options to ``fenchel.audit``."""
    chosen_layers, chosen_heads = numbers(layers, "--layers"), numbers(heads, "--heads")

    from fenchel.auditing.checkpoint import AUDIT
    from fenchel.auditing.run import audit, shard_directory
    from fenchel.closeness.tsallis import closeness_name
    from fenchel.data.shard import Shard
    from fenchel.data.text.documents import open_documents

    closeness_name(closeness)  # a mistake in it shows before anything is read
    part = Shard.from_environment() if shard is None else Shard.parse(shard)
    if text is None and images is None and loader is None:
        raise typer.BadParameter(
            "Missing option '--text', '--images' or '--loader': there is nothing to read."
        )
    # A mistake in the text shows before the model, which can take minutes, is loaded.
    if text is not None:
        open_documents(text, whole_file=whole_file, text_column=text_column, target_column=target_column)
    place: Path = checked("folder", out, name="out")
    folder = shard_directory(place, part)
    require_swap(swap, model)
    try:
        with insisting(observer_of_standard_error()) as observer:
            report = audit(
                model,
                None,
                text,
                images=images,
                loader=loader,
                space=None if space is None else space.value,
                closeness=closeness,
                even_so=even_so,
                alpha=alpha,
                tol=tol,
                memory_budget=memory_budget * 2**20,
                max_length=max_length,
                stride=stride,
                batch_size=batch_size,
                max_tokens=max_tokens,
                queries=queries,
                layers=chosen_layers,
                heads=chosen_heads,
                baseline=baseline.value,
                device=best_device() if device is None else device,
                dtype=dtype.value,
                revision=revision,
                whole_file=whole_file,
                text_column=text_column,
                target_column=target_column,
                shard=part,
                seed=seed,
                observer=observer,
                directory=place,
                resume=resume,
                overwrite=overwrite,
                keep_queries=keep_queries,
                checkpoint_seconds=checkpoint_seconds,
            )
    except KeyboardInterrupt:
        raise Interrupted(what_was_saved(AUDIT, folder)) from None
    if swap is not None:
        report = beside_swap(report, swap)
        report.write_files(folder)
    show_result(report, folder)
    if part.count > 1:
        typer.echo(f"This is share {part}. When all are there: fenchel merge {shlex.quote(str(place))}")
