"""Queries that show what a head's numbers mean: those at which its two answers are farthest apart, by pattern."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Protocol, TypeVar

from fenchel.auditing.heads import HeadKey, Kind, split_key
from fenchel.auditing.packed import Packing, check_packed
from fenchel.auditing.picture import Picture
from fenchel.io.batches import Batch
from fenchel.io.schema import STRICT, Field, Mismatch, Place, Shown, Whole, check_json

__all__ = [
    "LEAST_SHARE",
    "MOST_PATTERNS",
    "MOST_WINDOWS",
    "FarQueries",
    "HeadExample",
    "Passage",
    "Rank",
    "TemplateWeight",
    "examples_from_json",
    "farthest",
    "is_full",
    "keep_the_farthest",
    "reads_decoder",
]

MOST_PATTERNS = 5
"""Of how many patterns the farthest query of a head is kept."""

MOST_WINDOWS = 4
"""Of how many windows the farthest query of a head is kept."""

LEAST_SHARE = 0.5
"""How far a query has to be to be kept, next to the head's farthest."""

_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


Rank = tuple[float, int, int, int]
"""What the queries of a head are ordered by: how far apart their answers are, and of equals the earlier in the text."""


class FarQuery(Protocol):
    """What decides whether a query is kept."""

    @property
    def rank(self) -> Rank:
        """Its place among the queries of its head; no two have the same."""
        ...

    @property
    def pattern(self) -> tuple[str, str, str]:
        """What it is, what most of the moved weight leaves, and what it reaches."""
        ...

    @property
    def document(self) -> int:
        """Number of its document."""
        ...

    @property
    def window(self) -> int:
        """Number of its window within the document."""
        ...


Q = TypeVar("Q", bound=FarQuery)


@dataclass(frozen=True)
class TemplateWeight:
    """What the two answers give to one template.

    Attributes:
        position: Its position in the window, from 1.
        token: Its text.
        first_order: Its weight in the model's attention.
        exact: Its weight in the exact answer.
    """

    __pydantic_config__ = STRICT

    position: Place
    token: str
    first_order: _Weight
    exact: _Weight


@dataclass(frozen=True)
class Passage:
    """The sentence that the templates stand in, with the weights of every token in 16 bits.

    Attributes:
        first_position: Position of its first token in the window, from 1.
        window_tokens: How many tokens the window has.
        pieces: The text of each token, with a space before it where a word begins; empty where the input is no text.
        first_order: Attention's weight on each token, as :func:`fenchel.auditing.packed.packed` writes it.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    first_position: Place
    window_tokens: Place
    pieces: tuple[str, ...]
    first_order: str
    exact: str


@dataclass(frozen=True)
class HeadExample:
    """A query of one head.

    Attributes:
        key: The head.
        total_variation: Distance between the first-order and the exact weights; the largest that the head showed with
            this pattern or in this window.
        relative_deviation: The same query's relative deviation, possibly infinite.
        document: Number of the document, from 1.
        window: Number of the window within the document, from 1.
        position: Position in the window, from 1.
        token: The query's token.
        templates: The heaviest under either answer, heaviest first.
        context: The sentence that the query stands in, with "…" where something is left out.
        pattern: What the query is, what most of the moved weight leaves, and what it reaches.
        context_token: Where in ``context`` the query's token starts and ends; None where it is not shown.
        passage: The sentence that the templates stand in, weight by weight.
        picture: The image that the templates are patches of, weight by weight.
    """

    __pydantic_config__ = STRICT

    key: HeadKey
    total_variation: _Weight
    relative_deviation: Annotated[float, Field(ge=0)]
    document: Place
    window: Place
    position: Place
    token: str
    templates: tuple[TemplateWeight, ...]
    context: str
    pattern: tuple[str, str, str]
    context_token: tuple[Whole, Whole] | None
    passage: Passage | None
    picture: Picture | None = None

    @property
    def rank(self) -> Rank:
        """What the queries of a head are ordered by; no two have the same."""
        return self.total_variation, -self.document, -self.window, -self.position

    def to_json(self) -> dict[str, Any]:
        """The example as JSON values; an infinite deviation is null."""
        record = asdict(self) | self.key._asdict()
        del record["key"]
        record["relative_deviation"] = (
            self.relative_deviation if math.isfinite(self.relative_deviation) else None
        )
        for name in ("pattern", "context_token"):
            record[name] = None if record[name] is None else list(record[name])
        if record["passage"] is not None:
            record["passage"]["pieces"] = list(record["passage"]["pieces"])
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> HeadExample:
        """What ``to_json`` gave.

        Raises:
            Mismatch: If it is something else, or parts of it do not fit together.
        """
        fields = split_key(record)
        if fields.get("relative_deviation", 0) is None:
            fields["relative_deviation"] = math.inf
        example: HeadExample = check_json(cls, fields, "example")
        if (passage := example.passage) is not None:
            for name, weights in (("first_order", passage.first_order), ("exact", passage.exact)):
                check_packed(weights, len(passage.pieces), f"example.passage.{name}", Packing.FINE)
        if example.picture is not None:
            example.picture.check()
        return example


FarQueries = dict[HeadKey, tuple[HeadExample, ...]]
"""What is kept of every head, farthest first: its farthest query of each pattern and of each window.

Of ``MOST_PATTERNS`` patterns and of ``MOST_WINDOWS`` windows, those with the farthest; none is nearer than
``LEAST_SHARE`` of the first.
"""


def keep_the_farthest(kept: FarQueries, others: Iterable[HeadExample]) -> None:
    """Put into ``kept`` those of ``others`` that are farther; neither their order nor how they are grouped matters.

    Whatever is not among the farthest of some queries, by pattern or by window, is not among those of all queries.
    """
    found: dict[HeadKey, list[HeadExample]] = {}
    for example in others:
        found.setdefault(example.key, []).append(example)
    for key, examples in found.items():
        kept[key] = farthest((*kept.get(key, ()), *examples))


def is_full(kept: tuple[HeadExample, ...]) -> bool:
    """Whether a query that is not as far as the last of those kept cannot be kept."""
    patterns = {example.pattern for example in kept}
    windows = {(example.document, example.window) for example in kept}
    return len(patterns) >= MOST_PATTERNS and len(windows) >= MOST_WINDOWS


def farthest(queries: Sequence[Q]) -> tuple[Q, ...]:
    """Those of some queries of a head that are kept, farthest first."""
    in_order = sorted({query.rank: query for query in queries}.items(), key=_of_pair, reverse=True)
    patterns, windows = dict[object, Rank](), dict[object, Rank]()
    for rank, query in in_order:
        if len(patterns) < MOST_PATTERNS:
            patterns.setdefault(query.pattern, rank)
        if len(windows) < MOST_WINDOWS:
            windows.setdefault((query.document, query.window), rank)
    chosen = {*patterns.values(), *windows.values()}
    least = LEAST_SHARE * in_order[0][0][0]
    return tuple(query for rank, query in in_order if rank in chosen and rank[0] >= least)


def _of_pair(pair: tuple[Rank, object]) -> Rank:
    return pair[0]


def examples_from_json(records: Iterable[Mapping[str, Any]]) -> FarQueries:
    """The queries of every head from records of single ones.

    Raises:
        Mismatch: If they are none that are kept together.
    """
    found: dict[HeadKey, list[HeadExample]] = {}
    for example in map(HeadExample.from_json, records):
        found.setdefault(example.key, []).append(example)
    kept = {key: tuple(examples) for key, examples in found.items()}
    for key, examples in kept.items():
        if farthest(examples) != examples:
            shown = Shown(f"{len(examples)} of {key.kind} layer {key.layer} head {key.head}")
            raise Mismatch("examples", shown, "those that are farthest, farthest first")
    return kept


def reads_decoder(kind: Kind, batch: Batch) -> bool:
    """Whether queries of this kind are tokens of the decoder's own input."""
    return kind != "encoder_self" and batch.has_decoder
