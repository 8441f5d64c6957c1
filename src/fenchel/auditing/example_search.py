"""Finds the query that is kept for each head while batches go by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fenchel.auditing.examples import HeadExample, TemplateWeight, keep_the_worse, reads_decoder
from fenchel.auditing.heads import HeadKey
from fenchel.data.batch import Batch

if TYPE_CHECKING:
    from fenchel.auditing.capture import AttentionCall
    from fenchel.auditing.measure import Measures

__all__ = ["ExampleSearch"]

NUM_TEMPLATES = 12


class ExampleSearch:
    """Keeps, for each head, the counted query with the largest total variation; of equals, the earliest.

    Args:
        examples: What was kept before; changed at the end of a batch alone.
    """

    def __init__(self, examples: dict[HeadKey, HeadExample]) -> None:
        self.examples = examples
        self._found: list[HeadExample] = []

    def begin_batch(self) -> None:
        """Forget what was found in a batch that did not come to its end."""
        self._found = []

    def look(self, call: AttentionCall, heads: Sequence[int], measures: Measures, batch: Batch) -> None:
        """Find the queries of one attention call that are worse than those kept.

        Args:
            call: The attention call.
            heads: Numbers of the heads that were measured, from 1.
            measures: What was measured of them, with the worst queries.
            batch: The batch that the model was called with.
        """
        worst = measures.worst
        if worst is None:
            return
        variation, deviation = (
            measures.values[name].detach().float().cpu() for name in ("total_variation", "relative_deviation")
        )
        positions = worst.position.tolist()
        in_order = sorted(range(len(positions)), key=lambda row: (batch.documents[row], batch.windows[row]))
        for column, head in enumerate(heads):
            rows = [row for row in in_order if positions[row][column] >= 0]
            if not rows:
                continue
            row = max(rows, key=lambda row: float(variation[row, column, positions[row][column]]))
            position = positions[row][column]
            example = HeadExample(
                key=HeadKey(call.site.kind, call.site.layer, head),
                total_variation=float(variation[row, column, position]),
                relative_deviation=float(deviation[row, column, position]),
                document=batch.documents[row],
                window=batch.windows[row],
                position=position + 1,
                token="",
                templates=(),
                context="",
            )
            if example.worse_than(self.examples.get(example.key)):
                weights = (worst.first_order[row, column], worst.exact[row, column])
                first_order, exact = (part.detach().float().cpu() for part in weights)
                self._found.append(_with_words(example, batch, row, first_order, exact))

    def end_batch(self) -> None:
        """Keep what was found in the batch."""
        keep_the_worse(self.examples, self._found)
        self._found = []


def _with_words(
    example: HeadExample, batch: Batch, row: int, first_order: Tensor, exact: Tensor
) -> HeadExample:
    """The example with its tokens and the heaviest templates under either answer."""
    queries_decoder = reads_decoder(example.key.kind, batch)
    templates_decoder = queries_decoder and example.key.kind != "cross"
    heaviest = torch.maximum(first_order, exact)
    positions = torch.argsort(heaviest, descending=True, stable=True)[:NUM_TEMPLATES].tolist()
    return replace(
        example,
        token=batch.token(row, example.position - 1, decoder=queries_decoder),
        templates=tuple(
            TemplateWeight(
                position=position + 1,
                token=batch.token(row, position, decoder=templates_decoder),
                first_order=float(first_order[position]),
                exact=float(exact[position]),
            )
            for position in positions
            if heaviest[position] > 0
        ),
        context=batch.context(row, example.position - 1, decoder=queries_decoder),
    )
