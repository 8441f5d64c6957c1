"""The loop of an audit: batches in, counts out, and no batch is ever half counted."""

from __future__ import annotations

import contextlib

from torch import nn
from typing_extensions import override

from fenchel.auditing.answers import Solving
from fenchel.auditing.attention_call import AttentionCall
from fenchel.auditing.checkpoint import Checkpoints
from fenchel.auditing.example_search import ExampleSearch
from fenchel.auditing.heads import KINDS, AttentionModule
from fenchel.auditing.inputs import Batches
from fenchel.auditing.sampling import require_fewer
from fenchel.auditing.site_measures import MeasuredSite, SiteMeasures
from fenchel.auditing.sites import AttentionSite
from fenchel.auditing.state import AuditState
from fenchel.auditing.token_classes import TokenClassifier
from fenchel.auditing.twin import AUDITED, NOT_AUDITED, TwinCost, too_large, untrained_twin
from fenchel.errors import InputError, ModelError, OutputError
from fenchel.integrations.transformers.language_head import swaps_whole_model
from fenchel.io.batches import Batch
from fenchel.loading import evaluating, seeded
from fenchel.nn.inference import attention_layers
from fenchel.options import AuditOptions
from fenchel.progress import ProgressClock

__all__ = ["AuditRun"]


class AuditRun:
    """An audit under way.

    What a batch adds to the state is held back until the whole batch is measured, by the model and by its twin:
    whatever interrupts the audit, the state is that between two batches, and so can be saved.

    Args:
        model: The loaded model.
        batches: What it is to read.
        state: What to start from, and what is added to.
        options: What to measure, and how.
        checkpoints: Where to save, or None to keep everything in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        state: AuditState,
        options: AuditOptions,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.model = model
        self.batches = batches
        self.state = state
        self.options = options
        self.checkpoints = checkpoints
        self._tokens = TokenClassifier()
        solving = Solving(
            options.space, options.alpha, options.tol, options.memory_budget, options.measured_closeness
        )
        self._examples = ExampleSearch(state.far_queries, state.matrices, solving)
        self._cost = TwinCost()
        self._counting = False

    def run(self) -> None:
        """Count every batch that the state has not counted.

        Whatever stops it, what complete batches gave is saved first, if there is a folder to save it in.

        Raises:
            InputError: If no batch has a token, or a head that was asked for does not exist.
            ModelError: If the twin was asked for and cannot be built.
        """
        observer = self.options.told
        twin = self._twin()
        observer.started(self.state.manifest)
        try:
            with evaluating(self.model), seeded(self.options.seed, self.model):
                self._run(twin)
        except BaseException as error:
            self._save_what_is_complete(error)
            raise
        finally:
            observer.finished()

    def _twin(self) -> nn.Module | None:
        """The untrained twin, if it is to be audited; why not is in the manifest."""
        state, control = self.state, self.options.control
        if state.manifest["twin"] not in (None, AUDITED):
            return None
        reason = ""
        if control == "none":
            reason = NOT_AUDITED
        elif control == "auto" and (large := too_large(self.model)) is not None:
            reason = f"{NOT_AUDITED}: {large}"
        else:
            try:
                twin = untrained_twin(self.model, self.options.seed)
            except ModelError as error:
                if control == "twin":
                    raise ModelError(f"{error}. Leave --baseline out, or give --baseline none.") from error
                reason = f"{NOT_AUDITED}: {error}"
            else:
                state.twin = state.twin or state.new_twin()
                return twin
        state.manifest["twin"] = reason
        return None

    def _run(self, twin: nn.Module | None) -> None:
        clock = ProgressClock(self.state.cursor.tokens)
        with contextlib.ExitStack() as stack:
            own = stack.enter_context(_ModelMeasures(self.model, self.options, self._tokens, self._examples))
            beside = None
            if twin is not None:
                beside = stack.enter_context(SiteMeasures(twin, self.options, self._tokens))
            for batch in self.batches.batches(self.state.cursor):
                self._tokens.begin_batch(batch)
                own.read(batch)
                self._check_sample(own)
                self._check_heads(own.sites)
                if beside is not None and self.state.twin is not None:
                    with self._cost, seeded(self.options.seed, self.model):
                        beside.read(batch)
                if self.checkpoints is not None:
                    self.checkpoints.begin()
                self._name_modules(own.sites)
                self._count(batch, own, beside)
                cursor = self.state.cursor
                self.options.told.advanced(clock.progress(cursor.documents, cursor.tokens, batch.fraction))
                self._write_if_due()
        if self.state.twin is not None:
            self.state.manifest["twin"] = AUDITED

    def _count(self, batch: Batch, own: _ModelMeasures, beside: SiteMeasures | None) -> None:
        state = self.state
        self._counting = True
        state.table.add(own.rows)
        state.words |= self._tokens.texts
        self._examples.end_batch()
        if beside is not None and state.twin is not None:
            state.twin.add(beside.rows)
            if self.options.control == "auto" and (reason := self._cost.too_much(batch.fraction)) is not None:
                state.twin, state.manifest["twin"] = None, f"{NOT_AUDITED}: {reason}"
        state.cursor = batch.after
        self._counting = False

    def _write_if_due(self) -> None:
        tables = [table for table in (self.state.table, self.state.twin) if table is not None]
        full = any(table.full for table in tables)
        if self.checkpoints is None:
            for table in tables if full else ():
                table.write()
        elif full or self.checkpoints.pace.due:
            self.checkpoints.save()

    def _check_sample(self, own: _ModelMeasures) -> None:
        # Inputs that are ready do not say beforehand how long they are.
        if self.batches.max_length is None and self.state.cursor.tokens == 0:
            require_fewer(self.options.queries, own.longest)

    def _check_heads(self, sites: tuple[AttentionSite, ...]) -> None:
        existing = max(site.num_heads for site in sites)
        missing = sorted(head for head in self.options.heads or () if head > existing)
        if missing:
            counts = {
                kind: max(site.num_heads for site in sites if site.kind == kind)
                for kind in KINDS
                if any(site.kind == kind for site in sites)
            }
            exist = ", ".join(f"{kind} 1 to {count}" for kind, count in counts.items())
            raise InputError(
                f"heads {missing} do not exist in {type(self.model).__name__}, which has {exist}."
            )

    def _name_modules(self, sites: tuple[AttentionSite, ...]) -> None:
        if self.state.modules:
            return
        in_order = self._attention_modules({site.name for site in sites})
        numbers = {name: number for number, name in enumerate(in_order, start=1)}
        whole = self.options.loader is not None or swaps_whole_model(self.model)
        self.state.modules = {
            (site.kind, site.layer): AttentionModule(
                site.name, numbers[site.name] if whole or site.kind == "encoder_self" else 0
            )
            for site in sites
        }

    def _attention_modules(self, used: set[str]) -> list[str]:
        """Modules that attend, in the model's order: those that were called, or layers of ``fenchel.nn``."""
        own = attention_layers(self.model)
        named = ((name, name or type(module).__name__) for name, module in self.model.named_modules())
        return [called for name, called in named if (name in own if own else called in used)]

    def _save_what_is_complete(self, error: BaseException) -> None:
        # Where saving is what failed, or a batch is half counted, the last checkpoint is what stands.
        if self.checkpoints is None or self._counting or isinstance(error, OutputError):
            return
        with contextlib.suppress(Exception):  # the first error is the one to be told
            self.checkpoints.save()


class _ModelMeasures(SiteMeasures):
    """The model's own measures, with examples.

    Args:
        model: The model, in eval mode.
        options: What to measure, and how.
        tokens: What the tokens of the batch are.
        examples: Finds the query that is kept for each head.
    """

    def __init__(
        self, model: nn.Module, options: AuditOptions, tokens: TokenClassifier, examples: ExampleSearch
    ) -> None:
        super().__init__(model, options, tokens)
        self._examples = examples

    @override
    def read(self, batch: Batch) -> None:
        self._examples.begin_batch()
        super().read(batch)

    @override
    def beginning(self, call: AttentionCall, heads: tuple[int, ...]) -> tuple[int, int] | None:
        return self._examples.beginning(call, heads, self.batch)

    @override
    def found(self, site: MeasuredSite) -> None:
        self._examples.look(
            site.call, site.heads, site.measures, self.batch.of_sequences(len(site.call.query))
        )
