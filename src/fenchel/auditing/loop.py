"""The loop of an audit: batches in, counts out, and no batch is ever half counted."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor, nn

from fenchel.auditing.capture import AttentionCall, Capture
from fenchel.auditing.checkpoint import Checkpoints
from fenchel.auditing.example_search import ExampleSearch
from fenchel.auditing.heads import KINDS, AttentionModule
from fenchel.auditing.measure import Measures, measure
from fenchel.auditing.queries import query_columns
from fenchel.auditing.sites import AttentionSite
from fenchel.auditing.state import AuditState
from fenchel.auditing.token_classes import TokenClassifier
from fenchel.data.batch import Batch, Cursor
from fenchel.errors import InputError, OutputError
from fenchel.runs.model import evaluating, on_device, seeded
from fenchel.runs.progress import ProgressClock, ReadingObserver

__all__ = ["AuditRun", "Batches"]


class Batches(Protocol):
    """Gives the same batches at every pass, from any place between two of them."""

    @property
    def description(self) -> str:
        """The source as it was given."""
        ...

    def batches(self, start: Cursor = ...) -> Iterator[Batch]:
        """The batches from a place on."""
        ...


@dataclass(frozen=True)
class _Measured:
    """One site's queries in the batch under way, on the CPU."""

    site: AttentionSite
    heads: tuple[int, ...]
    measures: Measures
    counted: Tensor


class AuditRun:
    """An audit under way.

    What a batch adds to the state is held back until the whole batch is measured: whatever interrupts the
    audit, the state is that between two batches, and so can be saved.

    Args:
        model: The loaded model.
        batches: What it is to read.
        state: What to start from, and what is added to.
        space: ``input`` or ``key``.
        alpha: Reliability of the evidence.
        tol: Relative tolerance of the exact solver.
        memory_budget: Bytes of working memory of the exact solver.
        layers: Layers to audit, None for all.
        heads: Heads to audit, None for all.
        seed: Seed of torch's random numbers while the model runs.
        observer: Who is told about the progress.
        checkpoints: Where to save, or None to keep everything in memory.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        state: AuditState,
        *,
        space: Literal["input", "key"],
        alpha: float,
        tol: float,
        memory_budget: int,
        layers: Collection[int] | None,
        heads: Collection[int] | None,
        seed: int,
        observer: ReadingObserver,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.model = model
        self.batches = batches
        self.state = state
        self.space: Literal["input", "key"] = space
        self.alpha = alpha
        self.tol = tol
        self.memory_budget = memory_budget
        self.layers = layers
        self.heads = None if heads is None else frozenset(heads)
        self.seed = seed
        self.observer = observer
        self.checkpoints = checkpoints
        self._batch: Batch | None = None
        self._measured: list[_Measured] = []
        self._examples = ExampleSearch(state.examples)
        self._queries: list[dict[str, Any]] = []
        self._counting = False
        self._tokens = TokenClassifier()

    def run(self) -> None:
        """Count every batch that the state has not counted.

        Whatever stops it, what complete batches gave is saved first, if there is a folder to save it in.

        Raises:
            InputError: If no batch has a token, or a head that was asked for does not exist.
        """
        self.observer.started(self.state.manifest)
        try:
            with evaluating(self.model), seeded(self.seed, self.model):
                self._run()
        except BaseException as error:
            self._save_what_is_complete(error)
            raise
        finally:
            self.observer.finished()

    def _run(self) -> None:
        clock = ProgressClock(self.state.cursor.tokens)
        with Capture(self.model, space=self.space, consume=self._consume, layers=self.layers) as capture:
            for batch in self.batches.batches(self.state.cursor):
                self._begin(batch)
                capture.run(
                    on_device(batch.inputs, self.model),
                    counted=batch.counted,
                    counted_decoder=batch.counted_decoder,
                )
                self._check_heads(capture.sites)
                self._name_modules(capture.sites)
                if self.checkpoints is not None:
                    self.checkpoints.begin()
                self._count(batch)
                cursor = self.state.cursor
                self.observer.advanced(clock.progress(cursor.documents, cursor.tokens, batch.fraction))
                if self.checkpoints is not None and self.checkpoints.pace.due:
                    self.checkpoints.save()

    def _begin(self, batch: Batch) -> None:
        self._batch = batch
        self._measured, self._queries = [], []
        self._examples.begin_batch()
        self._tokens.begin_batch(batch)

    def _consume(self, call: AttentionCall) -> None:
        batch, site = self._batch, call.site
        heads = tuple(
            head for head in range(1, site.num_heads + 1) if self.heads is None or head in self.heads
        )
        if batch is None or not heads or not bool(call.counted.any()):
            return
        measures = measure(
            call,
            space=self.space,
            alpha=self.alpha,
            tol=self.tol,
            memory_budget=self.memory_budget,
            heads=None if len(heads) == site.num_heads else heads,
            tokens=self._tokens.of(call),
        )
        self._examples.look(call, heads, measures, batch)
        measures = Measures(
            values={name: values.cpu() for name, values in measures.values.items()},
            newton_steps=measures.newton_steps.cpu(),
            converged=measures.converged.cpu(),
            patterns=None if measures.patterns is None else measures.patterns.cpu(),
        )
        self._measured.append(_Measured(site, heads, measures, call.counted.cpu()))
        if self.checkpoints is not None and self.checkpoints.queries is not None:
            self._queries.append(query_columns(call, heads, measures, batch))

    def _count(self, batch: Batch) -> None:
        self._counting = True
        for part in self._measured:
            self.state.statistics.add(
                part.site.kind, part.site.layer, part.heads, part.measures, part.counted
            )
        self.state.statistics.words |= self._tokens.texts
        self._examples.end_batch()
        if self.checkpoints is not None and self.checkpoints.queries is not None:
            self.checkpoints.queries.add(self._queries)
        self.state.cursor = batch.after
        self._counting = False

    def _check_heads(self, sites: tuple[AttentionSite, ...]) -> None:
        existing = max(site.num_heads for site in sites)
        missing = sorted(head for head in self.heads or () if head > existing)
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
        used = {site.name for site in sites}
        numbers = {
            name: number
            for number, name in enumerate((n for n, _ in self.model.named_modules() if n in used), 1)
        }
        self.state.modules = {
            (site.kind, site.layer): AttentionModule(site.name, numbers[site.name]) for site in sites
        }

    def _save_what_is_complete(self, error: BaseException) -> None:
        # Where saving is what failed, or a batch is half counted, the last checkpoint is what stands.
        if self.checkpoints is None or self._counting or isinstance(error, OutputError):
            return
        with contextlib.suppress(Exception):  # the first error is the one to be told
            self.checkpoints.save()
