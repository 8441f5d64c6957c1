"""What an audit keeps of one layer of one kind of attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.heads import METRICS
from fenchel.auditing.histogram import FloatHistograms
from fenchel.auditing.pattern import PatternSums
from fenchel.auditing.pattern_counts import PATTERN_SCHEMA, PatternCounts
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
    """

    heads: tuple[int, ...]
    histograms: FloatHistograms
    queries: Tensor
    newton_steps: Tensor
    not_converged: Tensor
    patterns: PatternCounts

    @classmethod
    def empty(cls, heads: tuple[int, ...]) -> LayerStatistics:
        """Nothing counted yet."""

        def zeros() -> Tensor:
            return torch.zeros(len(heads), dtype=torch.int64)

        histograms = FloatHistograms(len(METRICS) * len(heads))
        return cls(heads, histograms, zeros(), zeros(), zeros(), PatternCounts(len(heads)))

    def add(
        self, values: Sequence[Tensor], steps: Tensor, converged: Tensor, patterns: PatternSums | None
    ) -> None:
        """Count the queries of one attention call.

        Args:
            values: Each of ``METRICS``, checked, (heads, N).
            steps: Steps of the solver, (heads, N).
            converged: Whether each was certified, (heads, N).
            patterns: What moved; None where that was not looked at.
        """
        for number, numbers in enumerate(values):
            self.histograms.add(numbers, number * len(self.heads))
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

    def to_state(self) -> dict[str, Tensor]:
        """Everything that was counted, by name."""
        return {
            **self.histograms.to_state(),
            **self.patterns.to_state(),
            "queries": self.queries.clone(),
            "newton_steps": self.newton_steps.clone(),
            "not_converged": self.not_converged.clone(),
        }

    @classmethod
    def from_state(cls, heads: tuple[int, ...], parts: dict[str, Tensor]) -> LayerStatistics:
        """Rebuild what ``to_state`` gave.

        Raises:
            Mismatch: If the tensors are none that an audit can have given.
        """
        of_patterns = {name: tensor for name, tensor in parts.items() if name in PATTERN_SCHEMA}
        others = {name: tensor for name, tensor in parts.items() if name not in PATTERN_SCHEMA}
        queries, newton_steps, not_converged = (tensor.clone() for tensor in check_layer(len(heads), others))
        histograms = FloatHistograms.from_state(
            len(METRICS) * len(heads), {name: others[name] for name in HISTOGRAM_SCHEMA}
        )
        patterns = PatternCounts.from_state(queries, of_patterns)
        return cls(heads, histograms, queries, newton_steps, not_converged, patterns)
