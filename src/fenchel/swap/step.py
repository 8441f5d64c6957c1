"""What a swap does at once: one batch, read by the model once for every arm."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from fenchel.swap.observation import Observation

__all__ = ["Place", "Step", "Task"]

Place = dict[str, int]
"""Where the next step starts; plain integers, for JSON."""


@dataclass(frozen=True)
class Step:
    """One batch.

    Attributes:
        inputs: The model's keyword arguments, on the CPU.
        counted: (B, n) bool, tokens whose states count; None: all of them.
        counted_decoder: (B, m) bool, the same for a decoder beside an encoder; None without one.
        labels: (B, n) or (B, m), see ``observe``; None for embeddings.
        units: (B,) numbers of the units (windows or sentences), from 0.
        after: Where the next step starts.
        documents: Documents read up to the end of the step.
        tokens: Tokens counted up to the end of the step.
        fraction: Share of the source read at the end of the step, if known.
        target: What losses and scores of examples are worked out from, besides the output.
        by_example: Whether a row is an example, with one loss.
    """

    inputs: dict[str, Tensor]
    counted: Tensor | None
    counted_decoder: Tensor | None
    labels: Tensor | None
    units: Tensor
    after: Place
    documents: int
    tokens: int
    fraction: float | None
    target: Any = None
    by_example: bool = False

    @property
    def label_counts(self) -> Tensor:
        """(B,) float64, how many labels each row has: one where it is an example, else zeros without labels."""
        if self.labels is None:
            return torch.full((len(self.units),), float(self.by_example), dtype=torch.float64)
        return (self.labels >= 0).sum(-1).double()


class Task(Protocol):
    """What the model is asked to do, as steps that are the same at every pass."""

    def steps(self, place: Place) -> Iterator[Step]:
        """The steps from a place on; an empty place is the beginning."""
        ...

    def observed(self, model: Any, step: Step, inputs: dict[str, Tensor]) -> Observation:
        """Run the model once on a step; ``inputs`` are the step's, where the model is."""
        ...

    def description(self) -> dict[str, Any]:
        """What of it belongs in the manifest: JSON values."""
        ...
