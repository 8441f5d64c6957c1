"""What an audit keeps of one layer of one kind of attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.heads import METRICS
from fenchel.auditing.histogram import FloatHistograms
from fenchel.auditing.pattern import PatternSums
from fenchel.auditing.pattern_counts import PATTERN_SCHEMA, PatternCounts
from fenchel.auditing.sampled_means import PREFIX, SampledMeans
from fenchel.auditing.saved_statistics import HISTOGRAM_SCHEMA, check_layer

__all__ = ["LayerStatistics"]


@dataclass
class LayerStatistics:
    """One layer of one kind.

    Attributes:
        heads: Numbers of its heads, from 1.
        histograms: Row metric * len(heads) + head.
        queries: How many were counted, (heads,) int64.
        newton_steps: Theirs together, likewise.
        not_converged: How many of them were not certified, likewise.
        patterns: What moved between which tokens.
        sampled: Means over all queries, where those that were counted are a sample; else None.
    """

    heads: tuple[int, ...]
    histograms: FloatHistograms
    queries: Tensor
    newton_steps: Tensor
    not_converged: Tensor
    patterns: PatternCounts
    sampled: SampledMeans | None = None

    @classmethod
    def empty(cls, heads: tuple[int, ...], *, sampled: bool = False) -> LayerStatistics:
        """Nothing counted yet."""

        def zeros() -> Tensor:
            return torch.zeros(len(heads), dtype=torch.int64)

        histograms = FloatHistograms(len(METRICS) * len(heads))
        means = SampledMeans(len(METRICS), len(heads)) if sampled else None
        return cls(heads, histograms, zeros(), zeros(), zeros(), PatternCounts(len(heads)), means)

    def add(self, values: Tensor, steps: Tensor, converged: Tensor, patterns: PatternSums | None) -> None:
        """Count the queries of one attention call.

        Args:
            values: Each of ``METRICS``, checked, (metrics, heads, N).
            steps: Steps of the solver, (heads, N).
            converged: Whether each was certified, (heads, N).
            patterns: What moved; None where that was not looked at.
        """
        self.histograms.add(values.flatten(0, 1))
        self.queries += steps.shape[1]
        self.newton_steps += steps.sum(dim=1, dtype=torch.int64)
        self.not_converged += (~converged).sum(dim=1, dtype=torch.int64)
        if patterns is not None:
            self.patterns.add(patterns)

    def merge(self, other: LayerStatistics) -> None:
        """Count everything that ``other`` counted."""
        self.histograms.merge(other.histograms)
        self.queries += other.queries
        self.newton_steps += other.newton_steps
        self.not_converged += other.not_converged
        self.patterns.merge(other.patterns)
        if self.sampled is not None and other.sampled is not None:
            self.sampled.merge(other.sampled)

    def to_state(self) -> dict[str, Tensor]:
        """Everything that was counted, by name."""
        return {
            **self.histograms.to_state(),
            **self.patterns.to_state(),
            "queries": self.queries.clone(),
            "newton_steps": self.newton_steps.clone(),
            "not_converged": self.not_converged.clone(),
            **({} if self.sampled is None else self.sampled.to_state()),
        }

    @classmethod
    def from_state(cls, heads: tuple[int, ...], parts: dict[str, Tensor]) -> LayerStatistics:
        """Rebuild what ``to_state`` gave.

        Raises:
            Mismatch: If the tensors are none that an audit can have given.
        """
        of_patterns = {name: tensor for name, tensor in parts.items() if name in PATTERN_SCHEMA}
        of_sample = {name: tensor for name, tensor in parts.items() if name.startswith(PREFIX)}
        others = {
            name: tensor
            for name, tensor in parts.items()
            if name not in PATTERN_SCHEMA and name not in of_sample
        }
        queries, newton_steps, not_converged = (tensor.clone() for tensor in check_layer(len(heads), others))
        histograms = FloatHistograms.from_state(
            len(METRICS) * len(heads), {name: others[name] for name in HISTOGRAM_SCHEMA}
        )
        patterns = PatternCounts.from_state(queries, of_patterns)
        sampled = SampledMeans.from_state(len(METRICS), queries, of_sample) if of_sample else None
        return cls(heads, histograms, queries, newton_steps, not_converged, patterns, sampled)
