"""Audit a model batch by batch; a batch is counted as a whole or not at all."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fenchel.auditing.audit_report import AUDIT, AuditReport
from fenchel.auditing.example_search import ExampleSearch
from fenchel.auditing.heads import AttentionModule
from fenchel.auditing.inputs import (
    Batches,
    RunModel,
    Texts,
    load_run,
    on_device,
    opened_batches,
    opened_documents,
    refuse_beside_loader,
    refuse_texts_as_tokenizer,
    running,
    seeded,
)
from fenchel.auditing.manifest import check_model_closeness, describe, in_order
from fenchel.auditing.measure import MeasuredCall, measure, require_fewer, sample_size, sampled_queries
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.table import QUERIES, query_columns, query_rows
from fenchel.auditing.twin import AUDITED, NOT_AUDITED, NOT_BUILT, TwinCost, too_large, untrained_twin
from fenchel.auditing.weight_moves import TokenClassifier
from fenchel.errors import InputError, ModelError, require_packages
from fenchel.integrations.capture import Capture
from fenchel.integrations.registry import attending_modules
from fenchel.integrations.sites import AttentionCall, AttentionSite
from fenchel.integrations.transformers import swaps_whole_model
from fenchel.io.batches import Batch
from fenchel.io.runs import Progress, ProgressClock
from fenchel.io.storage import ParquetTable
from fenchel.run_options import AuditOptions, takes

if TYPE_CHECKING:
    import polars


class SiteMeasures:
    """Runs a model on batches within its ``capture`` and measures every attention call.

    Args:
        model: The model, in eval mode.
        options: Options of the audit.
        tokens: Classifier of the tokens of the batch.
        examples: Search for the farthest queries of each head; None to keep none.
    """

    def __init__(
        self,
        model: nn.Module,
        options: AuditOptions,
        tokens: TokenClassifier,
        examples: ExampleSearch | None = None,
    ) -> None:
        self.model = model
        # Rows of the last batch.
        self.rows: list[polars.DataFrame] = []
        # Number of queries of the longest window of that batch; None where nothing was measured.
        self.longest: int | None = None
        self._options, self._tokens, self._examples = options, tokens, examples
        self.capture = Capture(
            model,
            space=options.space,
            consume=self._consume,
            layers=options.layers,
            any_estimator=options.loader is not None,
        )

    def read(self, batch: Batch) -> None:
        """Measure a batch; the rows of the one before are discarded."""
        self._batch, self._columns, self.rows, self.longest = batch, list[dict[str, Tensor]](), [], None
        if self._examples is not None:
            self._examples.begin_batch()
        self.capture.run(
            on_device(batch.inputs, self.model), counted=batch.counted, counted_decoder=batch.counted_decoder
        )
        if self._columns:
            self.rows = [query_rows(self._columns, {} if batch.tokenizer is None else self._tokens.texts)]

    def _consume(self, call: AttentionCall) -> None:
        options, site = self._options, call.site
        every = range(1, site.num_heads + 1)
        heads = tuple(head for head in every if options.heads is None or head in options.heads)
        if not heads or not bool(call.counted.any()):
            return
        if options.template_scale == "sqrt_d":
            call = replace(call, scaling=call.query.shape[-1] ** -0.5)
        batch = self._batch.of_sequences(len(call.query))
        tokens, queries = self._tokens.of(call, batch), call
        drawn = sampled_queries(call, batch, options.queries, seed=options.seed)
        if isinstance(options.queries, int):
            tokens, queries = drawn.of_tokens(tokens), drawn.of_call(call)
        chosen = None if len(heads) == site.num_heads else heads
        measures = measure(queries, options, heads=chosen, tokens=tokens)
        measured = MeasuredCall(call, heads, batch, tokens, measures, drawn)
        if self._examples is not None:
            self._examples.look(measured)
        self.longest = max(self.longest or 0, call.counted.shape[1])
        self._columns.append(query_columns(measured))


@dataclass
class AuditRun:
    """A running audit.

    A batch is added to the state only when the model and its twin have been measured on all of it: whenever the audit
    is interrupted, the state is one between two batches and can be saved.

    Attributes:
        model: The loaded model.
        batches: The batches that it reads.
        state: The state to start from; changed.
        options: The options of the audit, with the folder in which the state is saved.
    """

    model: nn.Module
    batches: Batches
    state: AuditReport
    options: AuditOptions

    def __post_init__(self) -> None:
        state, self._saved = self.state, self.state.cursor
        self._saved_at = time.monotonic()
        self._tokens = TokenClassifier()
        self._examples = ExampleSearch(state.far_queries, state.matrices, self.options)
        self._cost = TwinCost()
        self._counting = False

    def run(self) -> None:
        """Measure the batches from the cursor of the state on.

        If it is interrupted, complete batches are saved first, if there is a folder.

        Raises:
            InputError: If no batch has a token, or a requested head does not exist.
            ModelError: If the twin was requested and cannot be built.
        """
        twin = self._twin()
        with running(self.model, self.options, self.state.manifest, self._save_what_is_complete):
            self._run(twin)

    def _twin(self) -> nn.Module | None:
        """Build the untrained twin if it is to be audited; otherwise the manifest says why not."""
        state, control = self.state, self.options.control
        if state.manifest["twin"] not in (None, AUDITED):
            return None
        reason = too_large(self.model) if control == "auto" else None
        outcome = NOT_AUDITED if reason is None else f"{NOT_AUDITED}: {reason}"
        if control != "none" and reason is None:
            try:
                twin = untrained_twin(self.model, self.options.seed)
            except ModelError as error:
                if control == "twin":
                    raise ModelError(f"{error}. Leave --baseline out, or give --baseline none.") from error
                outcome = f"{NOT_BUILT}: {error}"
            else:
                state.twin = state.twin or state.new_twin()
                return twin
        state.manifest["twin"] = outcome
        return None

    def _run(self, twin: nn.Module | None) -> None:
        clock, before = ProgressClock(self.state.cursor.tokens), self.state.manifest.get("seconds", 0.0)
        own = SiteMeasures(self.model, self.options, self._tokens, self._examples)
        beside = None if twin is None else SiteMeasures(twin, self.options, self._tokens)
        with own.capture, contextlib.nullcontext() if beside is None else beside.capture:
            for batch in self.batches.batches(self.state.cursor):
                self._tokens.begin_batch(batch)
                own.read(batch)
                self._check_sample(own)
                self._check_heads(own.capture.sites)
                if beside is not None and self.state.twin is not None:
                    with self._cost, seeded(self.options.seed, self.model):
                        beside.read(batch)
                self._name_modules(own.capture.sites)
                self._count(batch, own, beside)
                cursor = self.state.cursor
                progress = clock.progress(cursor.documents, cursor.tokens, batch.fraction)
                self._report_total_time(before, progress)
                self.options.progress_observer.advanced(progress)
                self.save_if_due()
        if self.state.twin is not None:
            self.state.manifest["twin"] = AUDITED

    def save_if_due(self) -> None:
        """Save everything counted so far if a part of a table is full, or enough time has passed."""
        is_due = time.monotonic() - self._saved_at >= self.options.checkpoint_seconds
        if any(table.full for table in self.state.tables) or (self.options.folder and is_due):
            self._save()

    def _save(self) -> None:
        """Save everything counted so far, unless it is saved already: the rows as a part, then the state."""
        cursor = self.state.cursor
        if cursor != self._saved:
            for table in self.state.tables:
                table.write()
            self.state.manifest.update(documents=cursor.documents, tokens=cursor.tokens)
            if self.options.folder is not None:
                self.state.write(self.options.folder)
            self._saved = cursor
        self._saved_at = time.monotonic()

    def finish(self) -> AuditReport:
        """Write every file of the audit, and mark it as finished when all are there."""
        self._save()
        if self.options.folder is not None:
            self.state.write_files(self.options.folder)
            self.state.finished = True
            self.state.write(self.options.folder)
        return self.state

    def _report_total_time(self, before: float, progress: Progress) -> None:
        """Record in the manifest the time so far, and the estimate of the total after the first batch."""
        manifest = self.state.manifest
        manifest["seconds"] = round(before + progress.seconds, 1)
        if "estimated_seconds" not in manifest and progress.seconds_left is not None:
            expected = round(before + progress.seconds + progress.seconds_left, 1)
            self.state.manifest = in_order({**manifest, "estimated_seconds": expected})

    def _count(self, batch: Batch, own: SiteMeasures, beside: SiteMeasures | None) -> None:
        state = self.state
        self._counting = True
        state.statistics.table.add(own.rows)
        state.statistics.words.update(self._tokens.texts)
        self._examples.end_batch()
        if beside is not None and state.twin is not None:
            state.twin.table.add(beside.rows)
            if self.options.control == "auto" and (reason := self._cost.too_much(batch.fraction)) is not None:
                state.twin, state.manifest["twin"] = None, f"{NOT_AUDITED}: {reason}"
        state.cursor = batch.after
        self._counting = False

    def _check_sample(self, own: SiteMeasures) -> None:
        # The length of ready-made inputs is not known beforehand.
        if self.batches.max_length is None and self.state.cursor.tokens == 0:
            asked = self.options.queries
            require_fewer(asked if isinstance(asked, int) else None, own.longest)

    def _check_heads(self, sites: tuple[AttentionSite, ...]) -> None:
        most = max(site.num_heads for site in sites)
        if missing := sorted(head for head in self.options.heads or () if head > most):
            raise InputError(
                f"heads {missing} do not exist in {type(self.model).__name__}, which has heads 1 to {most}."
            )

    def _name_modules(self, sites: tuple[AttentionSite, ...]) -> None:
        if self.state.modules:
            return
        numbers = {name: number for number, name in enumerate(attending_modules(self.model), start=1)}
        whole = self.options.loader is not None or swaps_whole_model(self.model)
        self.state.modules = {
            (site.kind, site.layer): AttentionModule(
                site.kind,
                site.layer,
                site.name,
                numbers[site.name] if whole or site.kind == "encoder_self" else 0,
            )
            for site in sites
        }

    def _save_what_is_complete(self) -> None:
        # If a batch is half counted, the last checkpoint remains.
        if self.options.folder is not None and not self._counting:
            self._save()


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
        texts: A path (plain text, csv, jsonl, parquet), a name of the datasets library, strings, or mappings of
            ready-made model inputs such as ``{"pixel_values": tensor}``, or of these under ``inputs`` with other
            entries, as on the page on capture.
        **options: The options of :class:`fenchel.run_options.AuditOptions`.

    Returns:
        The report of the audit.

    Raises:
        InputError: If an option, the text or the folder cannot be used.
        ModelError: If the model cannot be loaded or audited, or its twin was requested and cannot be built.
        OutputError: If the folder cannot be written to.
        MissingExtraError: If an optional package is missing.
    """
    asked = AuditOptions.checked(**options)
    refuse_beside_loader(asked.loader, tokenizer=tokenizer)
    refuse_texts_as_tokenizer(tokenizer)
    folder = asked.folder
    documents = opened_documents(asked, texts, model if isinstance(model, str) else tokenizer)
    require_packages("hf", "polars")
    with AUDIT.claimed(folder, resume=asked.resume, overwrite=asked.overwrite):
        loaded = None if asked.loader is None else load_run(asked.loader, model)
        result = RunModel.of_run(loaded, asked) if loaded else RunModel.of(model, tokenizer, asked)
        check_model_closeness(result.model, asked.closeness, even_so=asked.even_so)
        batches = opened_batches(asked, texts, documents, result, loaded)
        size = sample_size(
            asked.queries, result.model, length=batches.max_length, max_tokens=asked.max_tokens
        )
        require_fewer(size, batches.max_length)
        asked = asked.model_copy(update={"queries": size or "all"})
        manifest = describe(result, batches, asked, loaded)
        state: AuditReport | None = AUDIT.resumed(folder, manifest, overwrite=asked.overwrite)
        if state is None:
            table = None if folder is None else ParquetTable(folder / QUERIES)
            state = AuditReport(manifest, AuditStatistics(table))
        if folder is not None and state.finished:
            if not state.is_written(folder):
                state.write_files(folder)
            return state
        run = AuditRun(result.model, batches, state, asked)
        run.run()
        if state.cursor.tokens == 0 and asked.shard.count == 1:
            raise InputError(f"{batches.description} has no token to audit. Give a text with words.")
        return run.finish()
