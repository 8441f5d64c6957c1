"""One model's attention on a batch, measured site by site and held back until the batch is complete."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor, nn

from fenchel.auditing.attention_call import AttentionCall
from fenchel.auditing.capturing import capture_of
from fenchel.auditing.measure import Measures, measure
from fenchel.auditing.sampling import QuerySample
from fenchel.auditing.sites import AttentionSite
from fenchel.auditing.statistics import AuditStatistics
from fenchel.auditing.token_classes import TokenClassifier
from fenchel.data.batch import Batch
from fenchel.options import AuditOptions
from fenchel.runs.model import on_device

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


@dataclass(frozen=True)
class _Held:
    """What is counted of a site once its batch is complete, on the CPU."""

    site: AttentionSite
    heads: tuple[int, ...]
    measures: Measures
    counted: Tensor
    population: Tensor | None


class SiteMeasures:
    """Runs a model on batches and measures every attention call; a context manager, as ``Capture`` is.

    Args:
        model: The model, in eval mode.
        options: What to measure, and how.
        tokens: What the tokens of the batch are.
    """

    def __init__(self, model: nn.Module, options: AuditOptions, tokens: TokenClassifier) -> None:
        self.model = model
        self.keeps_queries = False
        """Whether single queries are written, for which more is measured."""
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
        self._held: list[_Held] = []

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
    def longest(self) -> int | None:
        """How many queries the longest window of the batch has; None where nothing is held."""
        return max((held.counted.shape[1] for held in self._held), default=None)

    def read(self, batch: Batch) -> None:
        """Measure a batch; nothing of an earlier one is held any longer."""
        self._held = []
        if self._sample is not None:
            self._sample.begin_batch(batch)
        self._capture.run(
            on_device(batch.inputs, self.model), counted=batch.counted, counted_decoder=batch.counted_decoder
        )

    def count(self, statistics: AuditStatistics) -> None:
        """Count what is held."""
        for held in self._held:
            site = held.site
            statistics.add(site.kind, site.layer, held.heads, held.measures, held.counted, held.population)

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
            moves=self.keeps_queries,
            beginning=self.beginning(call, heads),
        )
        if drawn is not None:
            # Whoever looks at the site sees a window in which these queries alone count.
            measures, call = drawn.put_back(measures), replace(call, counted=drawn.counted)
        self.found(MeasuredSite(call, heads, measures))
        population = None if drawn is None else drawn.population
        self._held.append(_Held(site, heads, measures.cpu(), call.counted.cpu(), population))
