"""One model's attention on a batch, measured site by site."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from torch import nn

from fenchel.auditing.attention_call import AttentionCall
from fenchel.auditing.capturing import capture_of
from fenchel.auditing.measure import Measures, measure
from fenchel.auditing.sampling import QuerySample
from fenchel.auditing.sites import AttentionSite
from fenchel.auditing.table import query_rows
from fenchel.auditing.token_classes import TokenClassifier
from fenchel.io.batches import Batch
from fenchel.loading import on_device
from fenchel.options import AuditOptions

if TYPE_CHECKING:
    import polars

__all__ = ["MeasuredSite", "SiteMeasures"]


@dataclass(frozen=True)
class MeasuredSite:
    """One site's queries in the batch under way.

    Attributes:
        call: What the site attended with.
        heads: Numbers of the heads that were measured, from 1.
        measures: What was measured of them.
    """

    call: AttentionCall
    heads: tuple[int, ...]
    measures: Measures


class SiteMeasures:
    """Runs a model on batches and measures every attention call; a context manager, as ``Capture`` is.

    Args:
        model: The model, in eval mode.
        options: What to measure, and how.
        tokens: What the tokens of the batch are.
    """

    def __init__(self, model: nn.Module, options: AuditOptions, tokens: TokenClassifier) -> None:
        self.model = model
        self.rows: list[polars.DataFrame] = []
        """The rows of the batch that was read last."""
        self.longest: int | None = None
        """How many queries the longest window of that batch has; None where nothing was measured."""
        self._options, self._tokens = options, tokens
        self._heads = None if options.heads is None else frozenset(options.heads)
        self._sample = None if options.queries is None else QuerySample(options.queries, options.seed)
        self._capture = capture_of(
            model,
            space=options.space,
            consume=self._consume,
            layers=options.layers,
            any_estimator=options.loader is not None,
        )
        self._batch: Batch | None = None

    def __enter__(self) -> Self:
        self._capture.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._capture.__exit__(*error)  # pyright: ignore[reportArgumentType]

    @property
    def sites(self) -> tuple[AttentionSite, ...]:
        """The places where the model attends."""
        return self._capture.sites

    @property
    def batch(self) -> Batch:
        """The batch under way."""
        assert self._batch is not None  # noqa: S101 -- calls are measured while a batch is read
        return self._batch

    def read(self, batch: Batch) -> None:
        """Measure a batch; the rows of an earlier one are held no longer."""
        self._batch, self.rows, self.longest = batch, [], None
        if self._sample is not None:
            self._sample.begin_batch(batch)
        self._capture.run(
            on_device(batch.inputs, self.model), counted=batch.counted, counted_decoder=batch.counted_decoder
        )

    def beginning(self, call: AttentionCall, heads: tuple[int, ...]) -> tuple[int, int] | None:
        """A row of the batch and how many of its first queries are to be kept with their weights, if any."""
        del call, heads
        return None

    def found(self, site: MeasuredSite) -> None:
        """Look at a site while its tensors are there; the batch may yet fail."""

    def _consume(self, call: AttentionCall) -> None:
        options, site = self._options, call.site
        heads = tuple(
            head for head in range(1, site.num_heads + 1) if self._heads is None or head in self._heads
        )
        if not heads or not bool(call.counted.any()):
            return
        drawn = None if self._sample is None else self._sample.of(call)
        tokens = self._tokens.of(call)
        measures = measure(
            call if drawn is None else drawn.of_call(call),
            space=options.space,
            closeness=options.measured_closeness,
            alpha=options.alpha,
            tol=options.tol,
            memory_budget=options.memory_budget,
            heads=None if len(heads) == site.num_heads else heads,
            tokens=tokens if drawn is None else drawn.of_tokens(tokens),
            beginning=self.beginning(call, heads),
        )
        if drawn is not None:
            # Whoever looks at the site sees a window in which these queries alone count.
            measures, call = drawn.put_back(measures), replace(call, counted=drawn.counted)
        self.found(MeasuredSite(call, heads, measures))
        self.longest = max(self.longest or 0, call.counted.shape[1])
        self.rows.append(
            query_rows(
                call,
                heads,
                measures,
                self.batch.of_sequences(len(call.query)),
                classes=tokens,
                texts=self._tokens.texts,
                population=None if drawn is None else drawn.population,
            )
        )
