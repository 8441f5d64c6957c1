"""One query a head that shows what its numbers mean: the one at which the two answers are farthest apart."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fenchel.audit.batch import Batch
from fenchel.audit.heads import HeadKey, Kind

if TYPE_CHECKING:
    from fenchel.audit.capture import AttentionCall
    from fenchel.audit.measure import Measures

__all__ = ["HeadExample", "TemplateWeight", "Weigh", "keep_the_worse", "reads_decoder", "worst_queries"]

NUM_TEMPLATES = 12

Weigh = Callable[[list[tuple[int, int, int]]], tuple[Tensor, Tensor]]
"""First-order and exact weights, (rows, n) each, of queries given as (row of the batch, head from 0, position
from 0)."""


@dataclass(frozen=True)
class TemplateWeight:
    """What the two answers give to one template.

    Attributes:
        position: Its position in the window, from 1.
        token: Its text.
        first_order: Its weight in the model's attention.
        exact: Its weight in the exact answer.
    """

    position: int
    token: str
    first_order: float
    exact: float


@dataclass(frozen=True)
class HeadExample:
    """A query of one head.

    Attributes:
        key: The head.
        total_variation: Distance between the first-order and the exact weights; the largest that the head
            showed.
        relative_deviation: The same query's relative deviation, possibly infinite.
        document: Number of the document, from 1.
        window: Number of the window within the document, from 1.
        position: Position in the window, from 1.
        token: The query's token.
        templates: The heaviest under either answer, heaviest first.
        context: The text around the query.
    """

    key: HeadKey
    total_variation: float
    relative_deviation: float
    document: int
    window: int
    position: int
    token: str
    templates: tuple[TemplateWeight, ...]
    context: str

    def worse_than(self, other: HeadExample | None) -> bool:
        """Whether this one is to be kept: farther apart, or as far and earlier in the text."""
        return other is None or self._rank() > other._rank()

    def _rank(self) -> tuple[float, int, int, int]:
        return self.total_variation, -self.document, -self.window, -self.position

    def to_json(self) -> dict[str, Any]:
        """The example as JSON values; an infinite deviation is null."""
        record = asdict(self) | self.key._asdict()
        del record["key"]
        record["relative_deviation"] = (
            self.relative_deviation if math.isfinite(self.relative_deviation) else None
        )
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> HeadExample:
        """What ``to_json`` gave."""
        fields = dict(record)
        key = HeadKey(fields.pop("kind"), fields.pop("layer"), fields.pop("head"))
        deviation = fields.pop("relative_deviation")
        templates = tuple(TemplateWeight(**template) for template in fields.pop("templates"))
        return cls(
            key=key,
            relative_deviation=math.inf if deviation is None else deviation,
            templates=templates,
            **fields,
        )


def keep_the_worse(examples: dict[HeadKey, HeadExample], others: Iterable[HeadExample]) -> None:
    """Put into ``examples`` those of ``others`` that are worse; their order does not matter."""
    for example in others:
        if example.worse_than(examples.get(example.key)):
            examples[example.key] = example


def reads_decoder(kind: Kind, batch: Batch) -> bool:
    """Whether queries of this kind are tokens of the decoder's own input."""
    return kind != "encoder_self" and "decoder_input_ids" in batch.inputs


def worst_queries(
    call: AttentionCall,
    heads: Sequence[int],
    measures: Measures,
    batch: Batch,
    weigh: Weigh,
    kept: dict[HeadKey, HeadExample],
) -> list[HeadExample]:
    """The examples of one attention call that are worse than those kept, at most one a head.

    Args:
        call: The attention call.
        heads: Numbers of the heads that were measured, from 1.
        measures: What was measured of them.
        batch: The batch that the model was called with.
        weigh: Solves for the weights of a few queries; called once, and only if something is worse.
        kept: What has been kept so far; not changed.

    Returns:
        New examples.
    """
    kind, layer = call.site.kind, call.site.layer
    rows: list[tuple[int, int, int]] = []
    found: list[HeadExample] = []
    for column, (row, position, variation) in enumerate(_largest(measures, call.counted, batch)):
        if variation < 0:
            continue
        example = HeadExample(
            key=HeadKey(kind, layer, heads[column]),
            total_variation=variation,
            relative_deviation=float(measures.values["relative_deviation"][row, column, position]),
            document=batch.documents[row],
            window=batch.windows[row],
            position=position + 1,
            token="",
            templates=(),
            context="",
        )
        if example.worse_than(kept.get(example.key)):
            rows.append((row, heads[column] - 1, position))
            found.append(example)
    if not found:
        return []
    first_order, exact = (weights.detach().float().cpu() for weights in weigh(rows))
    return [
        _with_words(example, row, first, best, batch)
        for example, (row, _, _), first, best in zip(found, rows, first_order, exact, strict=True)
    ]


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


def _with_words(
    example: HeadExample, row: int, first_order: Tensor, exact: Tensor, batch: Batch
) -> HeadExample:
    kind = example.key.kind
    queries_decoder = reads_decoder(kind, batch)
    templates_decoder = queries_decoder and kind != "cross"
    heaviest = torch.maximum(first_order, exact)
    positions = torch.argsort(heaviest, descending=True, stable=True)[:NUM_TEMPLATES].tolist()
    templates = tuple(
        TemplateWeight(
            position=position + 1,
            token=batch.token(row, position, decoder=templates_decoder),
            first_order=float(first_order[position]),
            exact=float(exact[position]),
        )
        for position in positions
        if heaviest[position] > 0
    )
    return HeadExample(
        key=example.key,
        total_variation=example.total_variation,
        relative_deviation=example.relative_deviation,
        document=example.document,
        window=example.window,
        position=example.position,
        token=batch.token(row, example.position - 1, decoder=queries_decoder),
        templates=templates,
        context=batch.context(row, example.position - 1, decoder=queries_decoder),
    )
