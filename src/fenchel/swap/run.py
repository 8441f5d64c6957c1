"""Swap the inference of a model's attention, and measure what that changes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fenchel.arguments import checked, shown
from fenchel.data.text.documents import Documents, open_documents
from fenchel.data.text.windows import TokenWindows
from fenchel.errors import InputError
from fenchel.runs.extras import require_packages
from fenchel.runs.lock import claimed
from fenchel.runs.manifest import versions
from fenchel.runs.model import RunModel
from fenchel.runs.observer import SilentObserver
from fenchel.runs.occupied import refuse_without_folder
from fenchel.runs.progress import ReadingObserver
from fenchel.storage import check_writable, removed_if_empty
from fenchel.swap.arms import make_arms, sites_of
from fenchel.swap.bootstrap import Bootstrap
from fenchel.swap.folder import SWAP, open_state
from fenchel.swap.language import LanguageTask
from fenchel.swap.loop import SwapRun, check_room
from fenchel.swap.options import (
    DEFAULT_ALPHAS,
    DEFAULT_ESTIMATORS,
    checked_alphas,
    checked_estimators,
)
from fenchel.swap.pairs import PairColumns, ScoredPairs, read_pairs, scored_pairs
from fenchel.swap.report import FILES, SwapReport
from fenchel.swap.results import Pairings, tabulated
from fenchel.swap.sentences import SentenceTask
from fenchel.swap.state import SCHEMA, SwapState

__all__ = ["swap"]

_COLUMNS = PairColumns()


def swap(
    model: str | nn.Module,
    tokenizer: Any = None,
    texts: str | Path | Iterable[str] | None = None,
    *,
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
    columns: PairColumns = _COLUMNS,
    seed: int = 0,
    observer: ReadingObserver | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    checkpoint_seconds: float = 60.0,
) -> SwapReport:
    """What does a trained model compute when its attention infers otherwise, and is that more than smoothing?

    The weights stay as they are. Every batch is read once by the model itself, once under first order at each α of the
    control, and once under each estimator; nothing else differs between these arms, masked tokens included. In all of
    them templates are keys times the model's scaling and the evidence is the query (space ``key`` of an audit).

    A model with a language-model head is measured by its loss per token and the change of its hidden states; a model
    without one, or one that is given pairs, by the change of its sentence embeddings (mean over tokens, length 1), of
    the ranking of their similarities and, with scored pairs, by Spearman's correlation with the scores.

    Args:
        model: A transformers model, or the name or folder of one (``demo`` is the bundled encoder, without a head).
        tokenizer: Its tokenizer; None to load the one of a named model.
        texts: A path (plain text, jsonl, parquet), a name of the datasets library, or strings.
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

    Returns:
        What was found.

    Raises:
        InputError: If an option, the text, the pairs or the folder cannot be used.
        ModelError: If the model cannot be loaded or swapped.
        ConvergenceError: If an exact solve does not reach ``tol``.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    chosen, controls = checked_estimators(estimators), checked_alphas(alphas)
    mask_probability = checked("mask_probability", mask_probability)
    bootstrap, seed = checked("bootstrap", bootstrap), checked("seed", seed)
    tol = None if tol is None else checked("tol", tol)
    sample_pairs, max_pairs = checked("sample_pairs", sample_pairs), checked("max_pairs", max_pairs)
    batch_size, max_tokens = checked("batch_size", batch_size), checked("max_tokens", max_tokens)
    max_length, stride = checked("max_length", max_length), checked("stride", stride)
    layers, heads = checked("layers", layers), checked("heads", heads)
    device, folder = checked("device", device), checked("directory", directory)
    checkpoint_seconds = checked("checkpoint_seconds", checkpoint_seconds)
    resume, overwrite = checked("resume", resume), checked("overwrite", overwrite)
    per_layer, per_head = checked("per_layer", per_layer), checked("per_head", per_head)
    whole_file, observer = checked("whole_file", whole_file), checked("observer", observer)
    revision = checked("revision", revision)
    if not isinstance(columns, PairColumns):
        raise InputError(
            f"columns is {shown(columns)}; expected fenchel.swap.PairColumns(first, second, score)."
        )
    if texts is None and pairs is None:
        raise InputError(
            "there is nothing to read: give texts (--text FILE), scored pairs (--pairs FILE), or both."
        )
    refuse_without_folder(folder, resume=resume, overwrite=overwrite)
    require_packages("report", "scipy")
    documents = None
    text_options = {"whole_file": whole_file, "text_column": text_column, "target_column": target_column}
    if texts is not None:
        documents = open_documents(texts, **text_options)  # pyright: ignore[reportArgumentType]
    scored = _scored(pairs, columns, max_pairs)
    with removed_if_empty(folder), claimed(folder, extra="report"):
        if folder is not None:
            require_packages("report", "matplotlib", "jinja2")
            check_writable(folder)
            SWAP.refuse_occupied(folder, resume=resume, overwrite=overwrite)

        with_head = scored is None
        found = RunModel.of(
            model, tokenizer, device=device, dtype=dtype, revision=revision, with_head=with_head
        )
        loaded, task = _task(
            found.model,
            found.tokenizer,
            documents,
            scored,
            with_head=with_head,
            max_length=max_length,
            stride=stride,
            batch_size=batch_size,
            max_tokens=max_tokens,
            sample_pairs=sample_pairs,
            mask_probability=mask_probability,
            seed=seed,
        )
        arms = make_arms(
            sites_of(loaded),
            estimators=chosen,
            alphas=controls,
            per_layer=per_layer,
            per_head=per_head,
            layers=layers,
            heads=heads,
        )
        if isinstance(task, SentenceTask):
            check_room(len(arms), task.count, int(getattr(loaded.config, "hidden_size", 0)))
        manifest = {
            **versions(SCHEMA),
            "model": found.name,
            "revision": found.revision,
            "model_class": type(loaded).__name__,
            "dtype": str(loaded.dtype).removeprefix("torch."),
            "device": str(loaded.device),
            "space": "key",
            "estimators": list(chosen),
            "alphas": list(controls),
            "per_layer": per_layer,
            "per_head": per_head,
            "layers": None if layers is None else list(layers),
            "heads": None if heads is None else list(heads),
            "tol": tol,
            "bootstrap": bootstrap,
            "batch_size": batch_size,
            "seed": seed,
            **{key: value for key, value in text_options.items() if value not in (None, False)},
            **task.description(),
        }
        if folder is None:
            state = SwapState(dict(manifest))
        else:
            state = open_state(folder, manifest, len(arms), overwrite=overwrite)
        if not state.finished:
            SwapRun(
                loaded,
                task,
                arms,
                state,
                tol=tol,
                observer=observer or SilentObserver(),
                directory=folder,
                seconds=checkpoint_seconds,
            ).run()
        measured = state.measured()
        if isinstance(task, LanguageTask) and (not measured or not float(measured["labels"].sum())):
            raise InputError(
                f"{state.manifest['texts']} has no token to predict: its windows are too short. Give longer texts."
            )
        pairings = None
        if isinstance(task, SentenceTask) and task.ranked is not None:
            pairings = Pairings(task.ranked, task.scored, task.scores, by_sentence=documents is not None)
        report = SwapReport(
            state.manifest,
            tabulated(arms, measured, state.manifest["stacks"], pairings, Bootstrap(bootstrap, seed)),
        )
        if folder is not None and not (state.finished and all((folder / file).exists() for file in FILES)):
            report.save(folder)
            state.finished = True
            state.write(folder)
        return report


def _scored(
    pairs: str | Path | Iterable[Sequence[object]] | None, columns: PairColumns, max_pairs: int | None
) -> ScoredPairs | None:
    if pairs is None:
        if max_pairs is not None:
            raise InputError(
                f"max pairs is {max_pairs}, but no scored pairs were given. Add --pairs, or leave it out."
            )
        if columns != _COLUMNS:
            raise InputError("columns of pairs were named, but no scored pairs were given. Add --pairs FILE.")
        return None
    if isinstance(pairs, str | Path):
        return read_pairs(pairs, columns, max_pairs)
    found = scored_pairs(pairs)
    return replace(found, sentences=found.sentences[:max_pairs], scores=found.scores[:max_pairs])


def _task(
    model: Any,
    tokenizer: Any,
    documents: Documents | None,
    scored: ScoredPairs | None,
    *,
    with_head: bool,
    max_length: int | None,
    stride: int | None,
    batch_size: int,
    max_tokens: int | None,
    sample_pairs: int,
    mask_probability: float,
    seed: int,
) -> tuple[Any, LanguageTask | SentenceTask]:
    """The model that is run, and what it is asked to do."""
    from fenchel.integrations.transformers.language_head import language_head

    if tokenizer is None:
        raise InputError(
            f"{type(model).__name__} comes without a tokenizer, and texts need one. Give the tokenizer that it was "
            "trained with, or a model that reads text."
        )
    head = language_head(type(model).__name__) if with_head else None
    if head is not None and documents is not None:
        windows = TokenWindows(
            documents,
            tokenizer,
            config=model.config,
            max_length=max_length,
            stride=stride,
            batch_size=batch_size,
            max_tokens=max_tokens,
        )
        return model, LanguageTask(windows, head, mask_probability=mask_probability, seed=seed)
    if stride is not None:
        raise InputError(
            f"stride is {stride}, but sentences are embedded one by one and not cut into windows. Leave it out."
        )
    # A sentence is embedded by the encoder alone, where there is one, and never by a head.
    encoder = model.get_encoder() if getattr(model.config, "is_encoder_decoder", False) else model.base_model
    task = SentenceTask(
        documents,
        scored,
        tokenizer,
        config=encoder.config,
        max_length=max_length,
        batch_size=batch_size,
        max_tokens=max_tokens,
        sample_pairs=sample_pairs,
        seed=seed,
    )
    return encoder, task
