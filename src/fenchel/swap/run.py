"""Swap the inference of a model's attention, and measure what that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fenchel.errors import InputError
from fenchel.options import SwapOptions, takes
from fenchel.runs.extras import require_packages
from fenchel.runs.lock import claimed
from fenchel.runs.manifest import versions
from fenchel.runs.model import device_and_dtype
from fenchel.storage import check_writable, removed_if_empty
from fenchel.swap.arms import Arm, make_arms
from fenchel.swap.bootstrap import Bootstrap
from fenchel.swap.examples import ExampleTask, Measure
from fenchel.swap.folder import SWAP, open_state
from fenchel.swap.language import LanguageTask
from fenchel.swap.loop import SwapRun, check_room
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


@takes(SwapOptions)
def swap(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: Readable | None = None,
    *,
    loss: Measure | None = None,
    score: Measure | None = None,
    pairs: str | Path | Iterable[Sequence[object]] | None = None,
    **options: Any,
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
        loss: From what the model returns for B examples, and their target (the inputs, where none came with
            them), to (B,) numbers; lower is better.
        score: Likewise; higher is better.
        pairs: Scored pairs of sentences: a table with tabs, or (sentence, sentence, score) each.
        **options: The options of :class:`fenchel.options.SwapOptions`.

    Returns:
        What was found.

    Raises:
        InputError: If an option, the text, the pairs or the folder cannot be used.
        ModelError: If the model cannot be loaded or swapped.
        ConvergenceError: If an exact solve does not reach ``tol``.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    asked = SwapOptions.checked(**options)
    given = Given(model, tokenizer, texts, pairs, asked.images, loss, score, asked.loader)
    require_packages("report", "scipy")
    folder, opened = asked.directory, given.opened(asked)
    with removed_if_empty(folder), claimed(folder, extra="report"):
        if folder is not None:
            require_packages("report", "matplotlib", "jinja2")
            check_writable(folder)
            SWAP.refuse_occupied(folder, resume=asked.resume, overwrite=asked.overwrite)
        subject = given.subject(opened, asked)
        swapped, task = subject.model, subject.task
        arms = make_arms(
            sites_of(swapped),
            estimators=asked.estimators,
            alphas=asked.alphas,
            per_layer=asked.per_layer,
            per_head=asked.per_head,
            layers=asked.layers,
            heads=asked.heads,
        )
        if isinstance(task, SentenceTask):
            check_room(len(arms), task.count, int(getattr(swapped.config, "hidden_size", 0)))
        manifest = _described(subject, asked)
        if folder is None:
            state = SwapState(dict(manifest))
        else:
            state = open_state(folder, manifest, len(arms), overwrite=asked.overwrite)
        if not state.finished:
            SwapRun(
                swapped,
                task,
                arms,
                state,
                tol=asked.tol,
                observer=asked.told,
                directory=folder,
                seconds=asked.checkpoint_seconds,
            ).run()
        report = _reported(arms, task, state, by_sentence=opened.documents is not None, options=asked)
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
        "batch_size": options.batch_size,
        **options.recorded,
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
