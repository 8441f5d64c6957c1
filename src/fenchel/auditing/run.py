"""Audit a model: how far each head's attention is from the inference problem that it approximates."""

from __future__ import annotations

from typing import Any

from torch import nn

from fenchel.auditing.audit_report import AuditReport, require_extras
from fenchel.auditing.checkpoint import AUDIT, Checkpoints, open_state
from fenchel.auditing.closeness import check_model_closeness
from fenchel.auditing.inputs import Batches, Texts, opened_batches, opened_documents
from fenchel.auditing.loop import AuditRun
from fenchel.auditing.manifest import describe
from fenchel.auditing.sampling import require_fewer
from fenchel.auditing.state import AuditState
from fenchel.errors import InputError
from fenchel.io.folder import claimed
from fenchel.io.storage import check_writable, removed_if_empty
from fenchel.loading import RunModel, load_run, refuse_beside_loader
from fenchel.options import AuditOptions, takes

__all__ = ["audit"]


@takes(AuditOptions)
def audit(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: Texts | None = None,
    **options: Any,
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
        **options: The options of :class:`fenchel.options.AuditOptions`.

    Returns:
        What was found.

    Raises:
        InputError: If an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded or audited, or its twin was asked for and cannot be built.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    asked = AuditOptions.checked(**options)
    refuse_beside_loader(asked.loader, tokenizer=tokenizer)
    folder = asked.folder
    documents = opened_documents(asked, texts, model if isinstance(model, str) else tokenizer)
    with removed_if_empty(folder), claimed(folder, extra="report"):
        if folder is not None:
            require_extras()
            check_writable(folder)
            AUDIT.refuse_occupied(folder, resume=asked.resume, overwrite=asked.overwrite)
        where = {"device": asked.device, "dtype": asked.dtype, "revision": asked.revision}
        run = None if asked.loader is None else load_run(asked.loader, model)
        found = RunModel.of(model, tokenizer, **where) if run is None else RunModel.of_run(run, **where)
        check_model_closeness(found.model, asked.closeness, even_so=asked.even_so)
        batches = opened_batches(asked, texts, documents, found, run)
        require_fewer(asked.queries, batches.max_length)
        manifest = describe(found, batches, asked, run)
        if folder is None:
            return _audited(found, batches, AuditState(manifest), asked, None)
        state = open_state(folder, manifest, overwrite=asked.overwrite)
        if not state.finished:
            checkpoints = Checkpoints(folder, state, seconds=asked.checkpoint_seconds)
            return _audited(found, batches, state, asked, checkpoints)
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
    state.table.write()
    if state.twin is not None:
        state.twin.write()
    state.manifest.update(documents=state.cursor.documents, tokens=state.cursor.tokens)
    return AuditReport.of(state)
