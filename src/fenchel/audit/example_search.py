"""Finds the query that is kept for each head while batches go by, and solves for its weights later.

A head's worst query changes often at the beginning of an audit, and a solve for one query costs about as much
as one for hundreds that share a matrix. So only what a solve needs is kept of each worst query, and it is
solved for when the audit is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fenchel.audit.batch import Batch
from fenchel.audit.examples import HeadExample, TemplateWeight, keep_the_worse, reads_decoder
from fenchel.audit.heads import HeadKey

if TYPE_CHECKING:
    from fenchel.audit.capture import AttentionCall
    from fenchel.audit.measure import Measures

__all__ = ["ExampleSearch", "Weigh"]

NUM_TEMPLATES = 12
_MOST_WAITING_BYTES = 128 << 20

Weigh = Callable[["AttentionCall"], "tuple[Tensor, Tensor]"]
"""First-order and exact weights (n,) of the only query of a call."""


@dataclass(frozen=True)
class _Waiting:
    """A query whose weights are not known yet: the example without them, and what they follow from."""

    example: HeadExample
    row: int
    call: AttentionCall
    batch: Batch

    @property
    def num_bytes(self) -> int:
        """What it holds on to, but for the model's own weights."""
        held = (self.call.query, self.call.key, self.call.inputs, self.call.log_preference)
        return sum(tensor.numel() * tensor.element_size() for tensor in held if tensor is not None)


class ExampleSearch:
    """Keeps, for each head, the counted query with the largest total variation; of equals, the earliest.

    Args:
        examples: What was kept before; changed by ``solve`` alone.
        weigh: Solves for the weights of one query.
    """

    def __init__(self, examples: dict[HeadKey, HeadExample], weigh: Weigh) -> None:
        self.examples = examples
        self._weigh = weigh
        self._found: list[_Waiting] = []
        self._waiting: dict[HeadKey, _Waiting] = {}

    def begin_batch(self) -> None:
        """Forget what was found in a batch that did not come to its end."""
        self._found = []

    def look(self, call: AttentionCall, heads: Sequence[int], measures: Measures, batch: Batch) -> None:
        """Find the queries of one attention call that are worse than those kept.

        Args:
            call: The attention call.
            heads: Numbers of the heads that were measured, from 1.
            measures: What was measured of them.
            batch: The batch that the model was called with.
        """
        inputs: dict[int, Tensor | None] = {}
        for column, (row, position, variation) in enumerate(_largest(measures, call.counted, batch)):
            key = HeadKey(call.site.kind, call.site.layer, heads[column])
            if variation < 0:  # no query is counted
                continue
            example = HeadExample(
                key=key,
                total_variation=variation,
                relative_deviation=float(
                    measures.values["relative_deviation"][row, column, position].float()
                ),
                document=batch.documents[row],
                window=batch.windows[row],
                position=position + 1,
                token="",
                templates=(),
                context="",
            )
            waiting = self._waiting.get(key)
            if example.worse_than(self.examples.get(key) if waiting is None else waiting.example):
                if row not in inputs:
                    inputs[row] = None if call.inputs is None else call.inputs[row : row + 1].clone()
                single = _single_query(call, row, heads[column] - 1, position, inputs[row])
                self._found.append(_Waiting(example, row, single, batch))

    def end_batch(self) -> None:
        """Keep what was found in the batch."""
        self._waiting.update((waiting.example.key, waiting) for waiting in self._found)
        self._found = []
        if sum(waiting.num_bytes for waiting in self._waiting.values()) > _MOST_WAITING_BYTES:
            self.solve()

    def solve(self) -> None:
        """Solve for the weights of every query kept."""
        while self._waiting:
            key, waiting = next(iter(self._waiting.items()))
            first_order, exact = (weights.detach().float().cpu() for weights in self._weigh(waiting.call))
            keep_the_worse(self.examples, [_with_words(waiting, first_order, exact)])
            del self._waiting[key]


def _largest(measures: Measures, counted: Tensor, batch: Batch) -> list[tuple[int, int, float]]:
    """Row, position and value of the largest total variation of each head, the earliest where equal."""
    variation = measures.values["total_variation"].detach().float().cpu()
    variation = variation.masked_fill(~counted.cpu()[:, None, :], -1.0)
    order = sorted(range(variation.shape[0]), key=lambda row: (batch.documents[row], batch.windows[row]))
    by_head = variation[order].transpose(0, 1).flatten(1)
    places = by_head.argmax(dim=1)  # the first, where several are equal
    values = by_head.gather(1, places[:, None]).flatten().tolist()
    width = variation.shape[2]
    return [
        (order[place // width], place % width, value)
        for place, value in zip(places.tolist(), values, strict=True)
    ]


def _single_query(
    call: AttentionCall, row: int, head: int, position: int, inputs: Tensor | None
) -> AttentionCall:
    """The part of a call that one query of one head attends with; a copy, so that the batch can go."""
    key_head = head * call.key.shape[1] // call.query.shape[1]
    preference = call.log_preference
    if preference is not None:
        for dim, index in enumerate((row, head, position)):
            preference = preference.narrow(dim, index if preference.shape[dim] > 1 else 0, 1)
        preference = preference.clone()
    return replace(
        call,
        query=call.query[row : row + 1, head : head + 1, position : position + 1].clone(),
        key=call.key[row : row + 1, key_head : key_head + 1].clone(),
        log_preference=preference,
        counted=torch.ones(1, 1, dtype=torch.bool, device=call.counted.device),
        inputs=inputs,
        key_weight=None if call.key_weight is None else call.key_weight[key_head : key_head + 1],
        key_bias=None if call.key_bias is None else call.key_bias[key_head : key_head + 1],
    )


def _with_words(waiting: _Waiting, first_order: Tensor, exact: Tensor) -> HeadExample:
    example, row, batch = waiting.example, waiting.row, waiting.batch
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
