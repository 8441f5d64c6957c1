"""One query a head that shows what its numbers mean: the one at which the two answers are farthest apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from fenchel.auditing.heads import KINDS, HeadKey, Kind
from fenchel.data.batch import Batch
from fenchel.storage.schema import listing, number, optional, record, text, whole

__all__ = ["EXAMPLE_SCHEMA", "HeadExample", "TemplateWeight", "keep_the_worse", "reads_decoder"]

EXAMPLE_SCHEMA = record(
    {
        "kind": text(among=KINDS),
        "layer": whole(1),
        "head": whole(1),
        "total_variation": number(least=0),
        "relative_deviation": optional(number(least=0)),
        "document": whole(1),
        "window": whole(1),
        "position": whole(1),
        "token": text(),
        "templates": listing(
            record(
                {
                    "position": whole(1),
                    "token": text(),
                    "first_order": number(least=0),
                    "exact": number(least=0),
                }
            )
        ),
        "context": text(),
    }
)
"""What ``HeadExample.to_json`` gives."""


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
