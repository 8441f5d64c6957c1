"""Swap the inference of a model's attention, and measure what that changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fenchel.arguments import checked
from fenchel.errors import InputError
from fenchel.runs.extras import require_packages
from fenchel.runs.lock import claimed
from fenchel.runs.manifest import versions
from fenchel.runs.model import device_and_dtype
from fenchel.runs.progress import ReadingObserver
from fenchel.storage import check_writable, removed_if_empty
from fenchel.swap.arms import Arm, make_arms
from fenchel.swap.bootstrap import Bootstrap
from fenchel.swap.examples import ExampleTask, Measure
from fenchel.swap.folder import SWAP, open_state
from fenchel.swap.language import LanguageTask
from fenchel.swap.loop import SwapRun, check_room
from fenchel.swap.options import DEFAULT_ALPHAS, DEFAULT_COLUMNS, DEFAULT_ESTIMATORS, SwapOptions
from fenchel.swap.pairs import PairColumns
from fenchel.swap.report import FILES, SwapReport
from fenchel.swap.results import Pairings, tabulated
from fenchel.swap.sentences import SentenceTask
from fenchel.swap.site import sites_of
from fenchel.swap.state import SCHEMA, SwapState
from fenchel.swap.subject import Given, Subject

__all__ = ["Readable", "swap"]

Batched = Mapping[str, Tensor] | Tensor | tuple[Any, Any]
"""A batch that is ready for a model: its inputs, or these and a target."""

Readable = str | Path | Iterable[str] | Iterable[Batched]
"""What a model can be given to read."""


def swap(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: Readable | None = None,
    *,
    images: str | Path | None = None,
    loss: Measure | None = None,
    score: Measure | None = None,
    pairs: str | Path | Iterable[Sequence[object]] | None = None,
    estimators: Sequence[str] = DEFAULT_ESTIMATORS,
    alphas: Sequence[float] = DEFAULT_ALPHAS,
    per_layer: bool = False,
    per_head: bool = False,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    max_length: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    max_pairs: int | None = None,
    sample_pairs: int = 10_000,
    mask_probability: float = 0.15,
    bootstrap: int = 2000,
    tol: float | None = None,
    device: str | None = None,
    dtype: Any = None,
    revision: str | None = None,
    whole_file: bool = False,
    text_column: str | None = None,
    target_column: str | None = None,
    columns: PairColumns = DEFAULT_COLUMNS,
    seed: int = 0,
    observer: ReadingObserver | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
    loader: str | Path | None = None,
) -> SwapReport:
    """What does a trained model compute when its attention infers otherwise, and is that more than smoothing?

    The weights stay as they are. Every batch is read once by the model itself, once under first order at each α of the
    control, and once under each estimator; nothing else differs between these arms, masked tokens included. In all of
    them templates are keys times the model's scaling and the evidence is the query (space ``key`` of an audit).

    A model with a language-model head is measured by its loss per token and the change of its hidden states; a model
    without one, or one that is given pairs, by the change of its sentence embeddings (mean over tokens, length 1), of
    the ranking of their similarities and, with scored pairs, by Spearman's correlation with the scores.

    A module with attention layers of :mod:`fenchel.nn` reads batches, and is measured by the change of its output and,
    where they are given, by a loss and a score of each example. Its layers keep their own preference, evidence and α,
    which the control multiplies; what each layer is asked is what it asks itself.

    Args:
        model: A transformers model, or the name or folder of one (``demo`` is the bundled encoder, without a head); or
            a module with attention layers of :mod:`fenchel.nn`; or, with ``loader``, the folder of a run.
        tokenizer: Its tokenizer; None to load the one of a named model. In its place, an image processor.
        texts: A path (plain text, jsonl, parquet), a name of the datasets library, or strings. Also batches: each the
            inputs by name, or a tensor for the first of them; or a pair of these and what ``loss`` and ``score`` are to
            know besides; or a mapping with these under ``inputs`` and a ``loss`` and ``score`` of its own, as on the
            page on capture.
        images: In the place of texts, for a model that reads images: a folder of them, or one.
        loss: From what the model returns for B examples, and their target (the inputs, where none came with
            them), to (B,) numbers; lower is better.
        score: Likewise; higher is better.
        pairs: Scored pairs of sentences: a table with tabs, or (sentence, sentence, score) each.
        estimators: What is swapped in, of ``second_order`` and ``exact``.
        alphas: The α of the control.
        per_layer: Also swap one layer at a time, with every control.
        per_head: Also swap one head at a time, with three controls.
        layers: Numbers from 1 of the layers to swap alone, in the order of the model's attention modules.
        heads: Numbers from 1 of the heads to swap alone.
        max_length: Tokens in a window or sentence. Default: what tokenizer and model can take, at most 512.
        stride: Tokens from the start of one window's text to that of the next. Default: no overlap.
        batch_size: Windows or sentences in a batch.
        max_tokens: Stop when this many tokens have been counted.
        max_pairs: Take only the first so many of the scored pairs.
        sample_pairs: Pairs of texts whose similarities are ranked: all of them, or a seeded sample of this size.
        mask_probability: Share of the tokens that are hidden from a masked language model.
        bootstrap: Resamples for the intervals.
        tol: Relative tolerance of the exact estimator. Default: that of ``fenchel.functional.attention``.
        device: Where to run; a loaded model is moved there. Default: where it is, ``cpu`` for a named one.
        dtype: What to run the model in. Default: what it is in, ``float32`` for a named one.
        revision: Revision of a named model.
        whole_file: Take a plain text file for one document instead of one a line.
        text_column: Column of the texts in jsonl, parquet and datasets.
        target_column: Column of what an encoder-decoder model is to write for each text.
        columns: Names of the columns of a table of pairs.
        seed: Of the hidden tokens, the sampled pairs, the split into halves and the resamples.
        observer: Who is told about the progress.
        directory: Where to write the files and to save as it goes on. Default: nothing is written.
        resume: Go on with the interrupted swap that the folder holds.
        overwrite: Start anew whatever the folder holds.
        checkpoint_seconds: Least time between two savings.
        loader: A Python file with ``load(folder) -> (model, batches)``, which is run to load the folder ``model``, in
            the place of texts, images and pairs. A model that was trained with another estimator is swapped from its
            first-order form, which the report says.

    Returns:
        What was found.

    Raises:
        InputError: If an option, the text, the pairs or the folder cannot be used.
        ModelError: If the model cannot be loaded or swapped.
        ConvergenceError: If an exact solve does not reach ``tol``.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    given = Given(model, tokenizer, texts, pairs, images, loss, score, checked("loader", loader))
    options = SwapOptions.checked(
        estimators=estimators,
        alphas=alphas,
        per_layer=per_layer,
        per_head=per_head,
        layers=layers,
        heads=heads,
        max_length=max_length,
        stride=stride,
        batch_size=batch_size,
        max_tokens=max_tokens,
        max_pairs=max_pairs,
        sample_pairs=sample_pairs,
        mask_probability=mask_probability,
        bootstrap=bootstrap,
        tol=tol,
        device=device,
        dtype=dtype,
        revision=revision,
        whole_file=whole_file,
        text_column=text_column,
        target_column=target_column,
        columns=columns,
        seed=seed,
        observer=observer,
        directory=directory,
        resume=resume,
        overwrite=overwrite,
        checkpoint_seconds=checkpoint_seconds,
    )
    require_packages("report", "scipy")
    folder, opened = options.directory, given.opened(options)
    with removed_if_empty(folder), claimed(folder, extra="report"):
        if folder is not None:
            require_packages("report", "matplotlib", "jinja2")
            check_writable(folder)
            SWAP.refuse_occupied(folder, resume=options.resume, overwrite=options.overwrite)
        subject = given.subject(opened, options)
        swapped, task = subject.model, subject.task
        arms = make_arms(
            sites_of(swapped),
            estimators=options.estimators,
            alphas=options.alphas,
            per_layer=options.per_layer,
            per_head=options.per_head,
            layers=options.layers,
            heads=options.heads,
        )
        if isinstance(task, SentenceTask):
            check_room(len(arms), task.count, int(getattr(swapped.config, "hidden_size", 0)))
        manifest = _described(subject, options)
        if folder is None:
            state = SwapState(dict(manifest))
        else:
            state = open_state(folder, manifest, len(arms), overwrite=options.overwrite)
        if not state.finished:
            SwapRun(
                swapped,
                task,
                arms,
                state,
                tol=options.tol,
                observer=options.told,
                directory=folder,
                seconds=options.checkpoint_seconds,
            ).run()
        report = _reported(arms, task, state, by_sentence=opened.documents is not None, options=options)
        if folder is not None and not (state.finished and all((folder / file).exists() for file in FILES)):
            report.save(folder)
            state.finished = True
            state.write(folder)
        return report


def _described(subject: Subject, options: SwapOptions) -> dict[str, Any]:
    """What a manifest says before the swap begins."""
    found, swapped = subject.found, subject.model
    device, dtype = device_and_dtype(swapped)
    return {
        **versions(SCHEMA),
        "model": found.name,
        "revision": found.revision,
        "model_class": type(swapped).__name__,
        "dtype": str(dtype).removeprefix("torch."),
        "device": str(device),
        "space": "key",
        "estimators": list(options.estimators),
        "alphas": list(options.alphas),
        "per_layer": options.per_layer,
        "per_head": options.per_head,
        "layers": None if options.layers is None else list(options.layers),
        "heads": None if options.heads is None else list(options.heads),
        "tol": options.tol,
        "bootstrap": options.bootstrap,
        "batch_size": options.batch_size,
        "seed": options.seed,
        **{key: value for key, value in options.of_text.items() if value not in (None, False)},
        **subject.task.description(),
    }


def _reported(
    arms: Sequence[Arm],
    task: LanguageTask | SentenceTask | ExampleTask,
    state: SwapState,
    *,
    by_sentence: bool,
    options: SwapOptions,
) -> SwapReport:
    """The tables of what was measured."""
    measured = state.measured()
    if isinstance(task, LanguageTask) and (not measured or not float(measured["labels"].sum())):
        raise InputError(
            f"{state.manifest['texts']} has no token to predict: its windows are too short. Give longer texts."
        )
    pairings = None
    if isinstance(task, SentenceTask) and task.ranked is not None:
        pairings = Pairings(task.ranked, task.scored, task.scores, by_sentence=by_sentence)
    bootstrap = Bootstrap(options.bootstrap, options.seed)
    return SwapReport(
        state.manifest,
        tabulated(
            arms,
            measured,
            state.manifest["stacks"],
            pairings,
            bootstrap,
            unit=task.unit if isinstance(task, ExampleTask) else "windows",
        ),
    )
