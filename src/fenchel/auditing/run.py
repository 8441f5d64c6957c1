"""Audit a model: how far each head's attention is from the inference problem that it approximates."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import nn

from fenchel.auditing.audit_report import AuditReport, require_extras
from fenchel.auditing.checkpoint import AUDIT, Checkpoints, open_state
from fenchel.auditing.closeness import check_model_closeness
from fenchel.auditing.loop import AuditRun
from fenchel.auditing.manifest import describe
from fenchel.auditing.options import AuditOptions, Baseline, Batches, Texts, shard_directory
from fenchel.auditing.sampling import require_fewer
from fenchel.auditing.state import AuditState
from fenchel.closeness import AbstractCloseness
from fenchel.data.shard import Shard
from fenchel.errors import InputError
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.runs.loader import load_run, refuse_beside_loader
from fenchel.runs.lock import claimed
from fenchel.runs.model import RunModel
from fenchel.runs.progress import ReadingObserver
from fenchel.storage import check_writable, removed_if_empty

__all__ = ["audit", "shard_directory"]


def audit(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: Texts | None = None,
    *,
    images: str | Path | None = None,
    space: Literal["input", "key"] | None = None,
    closeness: str | AbstractCloseness | None = None,
    even_so: bool = False,
    alpha: float = 1.0,
    tol: float = 2e-4,
    max_length: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    baseline: Baseline | None = None,
    device: str | None = None,
    dtype: Any = None,
    revision: str | None = None,
    whole_file: bool = False,
    text_column: str | None = None,
    target_column: str | None = None,
    shard: Shard | str | Sequence[int] = (0, 1),
    seed: int = 0,
    observer: ReadingObserver | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    keep_queries: bool = False,
    checkpoint_seconds: float = 60.0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    queries: int | None = None,
    loader: str | Path | None = None,
) -> AuditReport:
    """Measure every head of a trained transformer on texts.

    Args:
        model: A transformers model, or the name or folder of one (``demo`` is the bundled encoder); or a module with
            attention layers of :mod:`fenchel.nn`, whose own α and preference are audited; or, with ``loader``, the
            folder of a run.
        tokenizer: Its tokenizer; None to load the one of a named model, or if ``texts`` are ready-made
            inputs.
        texts: A path (plain text, jsonl, parquet), a name of the datasets library, strings, or mappings of
            ready-made model inputs such as ``{"pixel_values": tensor}``, or of these under ``inputs`` with what else is
            known of a batch, as on the page on capture.
        images: In the place of texts: a folder of images, or one image, for a vision model. They go through its own
            image processor, which is loaded with a named model and else given in the place of the tokenizer.
        space: What the templates are: ``input``, the inputs of the key map as in the papers, or ``key``, the
            keys, which works for every model. Default: ``input``, and ``key`` with a loader.
        closeness: How weights are kept near the preference, for models that attend so: ``tsallis:1.5`` and the like,
            ``sparsemax``, ``entmax15``, or a :class:`fenchel.Tsallis` of one order. Default: softmax.
        even_so: Measure under that closeness a model that attends under another, which computes what it computes; what
            is then called attention is what it would be.
        alpha: Reliability of the evidence.
        tol: Relative tolerance of the exact solver.
        max_length: Tokens in a window. Default: what tokenizer and model can take, at most 512.
        stride: Tokens from the start of one window's text to that of the next. Default: no overlap.
        batch_size: Windows in a batch.
        max_tokens: Stop when this many tokens have been counted, over all shards.
        layers: Numbers from 1 of the layers to audit, within each kind. Default: all.
        heads: Numbers from 1 of the heads to audit, in every layer that has them. Default: all.
        baseline: Whether the model's untrained twin, the same configuration with random weights, is audited beside it
            on the same text: ``twin``, ``none``, or ``auto``, which is ``twin`` where that costs less than a minute.
            Default: ``auto`` where a report is written, ``none`` without a ``directory``.
        device: Where to run; a loaded model is moved there. Default: where it is, ``cpu`` for a named one.
        dtype: What to run the model in; a loaded model is converted. Default: what it is in, ``float32`` for
            a named one.
        revision: Revision of a named model.
        whole_file: Take a plain text file for one document instead of one a line.
        text_column: Column of the texts in jsonl, parquet and datasets.
        target_column: Column of what an encoder-decoder model is to write for each text.
        shard: (i, n): audit the i-th share (from 0) of the documents in n.
        seed: Seed of torch's random numbers while the model runs, and of samples.
        observer: Who is told about the progress.
        directory: Where to write the audit's files and to save it as it goes on; ``shard-i-of-n`` below it if
            there are several shards. Default: nothing is written.
        resume: Go on with the interrupted audit that the folder holds.
        overwrite: Start anew whatever the folder holds.
        keep_queries: Also write every single query, into ``queries-*.parquet``.
        checkpoint_seconds: Least time between two savings.
        memory_budget: Bytes of working memory of the exact solver.
        queries: Measure a sample of this many queries of each window, drawn by ``seed``; every mean then comes with its
            standard error. Default: all queries.
        loader: A Python file with ``load(folder) -> (model, batches)``, which is run to load the folder ``model``, in
            the place of texts and images.

    Returns:
        What was found.

    Raises:
        InputError: If an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded or audited, or its twin was asked for and cannot be built.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    options = AuditOptions.checked(
        space=space,
        closeness=closeness,
        even_so=even_so,
        alpha=alpha,
        tol=tol,
        max_length=max_length,
        stride=stride,
        batch_size=batch_size,
        max_tokens=max_tokens,
        layers=layers,
        heads=heads,
        baseline=baseline,
        device=device,
        dtype=dtype,
        revision=revision,
        whole_file=whole_file,
        text_column=text_column,
        target_column=target_column,
        shard=shard,
        seed=seed,
        observer=observer,
        directory=directory,
        resume=resume,
        overwrite=overwrite,
        keep_queries=keep_queries,
        checkpoint_seconds=checkpoint_seconds,
        memory_budget=memory_budget,
        queries=queries,
        loader=loader,
    )
    refuse_beside_loader(options.loader, tokenizer=tokenizer)
    folder = options.folder
    documents = options.documents(texts, model if isinstance(model, str) else tokenizer, images)
    with removed_if_empty(folder), claimed(folder, extra="report"):
        if folder is not None:
            require_extras()
            check_writable(folder)
            AUDIT.refuse_occupied(folder, resume=options.resume, overwrite=options.overwrite)
        where = {"device": options.device, "dtype": options.dtype, "revision": options.revision}
        run = None if options.loader is None else load_run(options.loader, model)
        found = RunModel.of(model, tokenizer, **where) if run is None else RunModel.of_run(run, **where)
        check_model_closeness(found.model, options.closeness, even_so=options.even_so)
        batches = options.batches(texts, documents, found, run)
        require_fewer(options.queries, batches.max_length)
        manifest = describe(found, batches, options, run)
        if folder is None:
            return _audited(found, batches, AuditState(manifest), options, None)
        state = open_state(folder, manifest, overwrite=options.overwrite, keep_queries=options.keep_queries)
        if not state.finished:
            checkpoints = Checkpoints(folder, state, seconds=options.checkpoint_seconds)
            return _audited(found, batches, state, options, checkpoints)
        report = AuditReport.of(state)
        if not report.is_written(folder):
            report.write_files(folder)
        return report


def _audited(
    found: RunModel,
    batches: Batches,
    state: AuditState,
    options: AuditOptions,
    checkpoints: Checkpoints | None,
) -> AuditReport:
    """Count all that is left to count."""
    AuditRun(found.model, batches, state, options, checkpoints).run()
    if state.cursor.tokens == 0 and options.shard.count == 1:
        raise InputError(f"{batches.description} has no token to audit. Give a text with words.")
    if checkpoints is not None:
        return checkpoints.finish()
    state.manifest.update(documents=state.cursor.documents, tokens=state.cursor.tokens)
    return AuditReport.of(state)
