"""Audit a model: how far each head's attention is from the inference problem that it approximates."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from fenchel.arguments import checked
from fenchel.auditing.audit_report import AuditReport, require_extras
from fenchel.auditing.checkpoint import AUDIT, Checkpoints, open_state
from fenchel.auditing.loop import AuditRun
from fenchel.auditing.manifest import describe
from fenchel.auditing.state import AuditState
from fenchel.data.ready_batches import ReadyBatches, ready_made
from fenchel.data.shard import Shard
from fenchel.data.text.documents import open_documents
from fenchel.data.text.windows import TokenWindows
from fenchel.errors import InputError
from fenchel.layout import DEFAULT_MEMORY_BUDGET
from fenchel.runs.lock import claimed
from fenchel.runs.model import RunModel
from fenchel.runs.observer import SilentObserver
from fenchel.runs.occupied import refuse_without_folder
from fenchel.runs.progress import ReadingObserver
from fenchel.storage import check_writable, removed_if_empty

__all__ = ["audit", "shard_directory"]

Texts = str | Path | Iterable[str] | Iterable[Mapping[str, Tensor]]


def audit(
    model: str | nn.Module,
    tokenizer: Any,
    texts: Texts,
    *,
    space: Literal["input", "key"] = "input",
    alpha: float = 1.0,
    tol: float = 2e-5,
    max_length: int | None = None,
    stride: int | None = None,
    batch_size: int = 8,
    max_tokens: int | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
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
) -> AuditReport:
    """Measure every head of a trained transformer on texts.

    Args:
        model: A transformers model, or the name or folder of one (``demo`` is the bundled encoder).
        tokenizer: Its tokenizer; None to load the one of a named model, or if ``texts`` are ready-made
            inputs.
        texts: A path (plain text, jsonl, parquet), a name of the datasets library, strings, or mappings of
            ready-made model inputs such as ``{"pixel_values": tensor}``.
        space: What the templates are: ``input``, the inputs of the key map as in the papers, or ``key``, the
            keys, which works for every model.
        alpha: Reliability of the evidence.
        tol: Relative tolerance of the exact solver.
        max_length: Tokens in a window. Default: what tokenizer and model can take, at most 512.
        stride: Tokens from the start of one window's text to that of the next. Default: no overlap.
        batch_size: Windows in a batch.
        max_tokens: Stop when this many tokens have been counted, over all shards.
        layers: Numbers from 1 of the layers to audit, within each kind. Default: all.
        heads: Numbers from 1 of the heads to audit, in every layer that has them. Default: all.
        device: Where to run; a loaded model is moved there. Default: where it is, ``cpu`` for a named one.
        dtype: What to run the model in; a loaded model is converted. Default: what it is in, ``float32`` for
            a named one.
        revision: Revision of a named model.
        whole_file: Take a plain text file for one document instead of one a line.
        text_column: Column of the texts in jsonl, parquet and datasets.
        target_column: Column of what an encoder-decoder model is to write for each text.
        shard: (i, n): audit the i-th share (from 0) of the documents in n.
        seed: Seed of torch's random numbers while the model runs.
        observer: Who is told about the progress.
        directory: Where to write the audit's files and to save it as it goes on; ``shard-i-of-n`` below it if
            there are several shards. Default: nothing is written.
        resume: Go on with the interrupted audit that the folder holds.
        overwrite: Start anew whatever the folder holds.
        keep_queries: Also write every single query, into ``queries-*.parquet``.
        checkpoint_seconds: Least time between two savings.
        memory_budget: Bytes of working memory of the exact solver.

    Returns:
        What was found.

    Raises:
        InputError: If an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded or audited.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    space, alpha, tol = checked("space", space), checked("alpha", alpha), checked("tol", tol)
    memory_budget, seed = checked("memory_budget", memory_budget), checked("seed", seed)
    batch_size, max_tokens = checked("batch_size", batch_size), checked("max_tokens", max_tokens)
    max_length, stride = checked("max_length", max_length), checked("stride", stride)
    layers, heads = checked("layers", layers), checked("heads", heads)
    device, directory = checked("device", device), checked("directory", directory)
    checkpoint_seconds = checked("checkpoint_seconds", checkpoint_seconds)
    resume, overwrite = checked("resume", resume), checked("overwrite", overwrite)
    keep_queries, whole_file = checked("keep_queries", keep_queries), checked("whole_file", whole_file)
    observer, revision = checked("observer", observer), checked("revision", revision)
    part = Shard.of(shard)
    folder = None if directory is None else shard_directory(directory, part)
    refuse_without_folder(folder, resume=resume, overwrite=overwrite, keep_queries=keep_queries)
    text_options = {"whole_file": whole_file, "text_column": text_column, "target_column": target_column}
    documents = None
    if not ready_made(texts, model if isinstance(model, str) else tokenizer):
        documents = open_documents(texts, **text_options)  # pyright: ignore[reportArgumentType]
    with removed_if_empty(folder), claimed(folder, extra="report"):
        if folder is not None:
            require_extras()
            check_writable(folder)
            AUDIT.refuse_occupied(folder, resume=resume, overwrite=overwrite)

        found = RunModel.of(model, tokenizer, device=device, dtype=dtype, revision=revision)
        loaded, tokenizer = found.model, found.tokenizer
        if documents is not None and tokenizer is None:
            raise InputError(
                f"{type(loaded).__name__} was given texts without a tokenizer. Give its tokenizer, or ready-made "
                "inputs such as [{'pixel_values': tensor}]."
            )
        if documents is None:
            batches = ReadyBatches(texts, config=loaded.config, max_tokens=max_tokens, shard=part)  # pyright: ignore[reportArgumentType]
        else:
            batches = TokenWindows(
                documents,
                tokenizer,
                config=loaded.config,
                max_length=max_length,
                stride=stride,
                batch_size=batch_size,
                max_tokens=max_tokens,
                shard=part,
            )
        manifest = describe(
            loaded,
            name=found.name,
            revision=found.revision,
            space=space,
            alpha=alpha,
            tol=tol,
            max_length=batches.max_length,
            stride=batches.stride,
            batch_size=None if documents is None else batch_size,
            max_tokens=max_tokens,
            layers=layers,
            heads=heads,
            texts=batches.description,
            text_sha256=batches.text_sha256,
            text_options=text_options,
            shard=part,
            seed=seed,
        )

        checkpoints = None
        if folder is None:
            state = AuditState(manifest)
        else:
            state = open_state(folder, manifest, overwrite=overwrite, keep_queries=keep_queries)
            if state.finished:
                report = AuditReport.of(state)
                if not report.is_written(folder):
                    report.write_files(folder)
                return report
            checkpoints = Checkpoints(folder, state, seconds=checkpoint_seconds)
        AuditRun(
            loaded,
            batches,
            state,
            space=space,
            alpha=alpha,
            tol=tol,
            memory_budget=memory_budget,
            layers=layers,
            heads=heads,
            seed=seed,
            observer=observer or SilentObserver(),
            checkpoints=checkpoints,
        ).run()
        if state.cursor.tokens == 0 and part.count == 1:
            raise InputError(f"{batches.description} has no token to audit. Give a text with words.")
        if checkpoints is not None:
            return checkpoints.finish()
        manifest.update(documents=state.cursor.documents, tokens=state.cursor.tokens)
        return AuditReport.of(state)


def shard_directory(directory: str | Path, shard: Shard | str | Sequence[int]) -> Path:
    """The folder of one shard's files: ``directory`` itself where there is only one.

    Example:
        >>> shard_directory("out", (1, 4)).as_posix()
        'out/shard-1-of-4'
    """
    part = Shard.of(shard)
    folder: Path = checked("directory", directory)
    return folder if part.count == 1 else folder / f"shard-{part.index}-of-{part.count}"
