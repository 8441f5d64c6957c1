"""Queries that show what the numbers of a head mean, and the weights that are kept of them."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any

import torch
from torch import Tensor

from fenchel.auditing.heads import HeadKey, split_key, with_key
from fenchel.io.storage import STRICT, Field, Mismatch, NonNegativeInt, PositiveInt, Shown, check_json


class Packing(Enum):
    """How a weight w in [0, 1] becomes a whole number; the value is the number of bytes."""

    ROUGH = 1
    """round(255 √w): small weights keep their digits, and none is off by more than 0.004."""
    FINE = 2
    """round(65535 w), the low byte first."""


def packed(weights: Tensor, packing: Packing) -> str:
    """Weights in [0, 1], row after row, as a text.

    Example:
        >>> import torch
        >>> packed(torch.tensor([0.0, 1.0]), Packing.FINE)
        'AAD//w=='
    """
    weights = weights.detach().double().clamp(0, 1).cpu()
    rough = packing is Packing.ROUGH
    numbers = (weights.sqrt() * 255 if rough else weights * 65535).round().numpy()
    return base64.b64encode(numbers.astype("u1" if rough else "<u2").tobytes()).decode()


def unpacked(text: str, packing: Packing) -> list[float]:
    """The weights of a text.

    Example:
        >>> import torch
        >>> [round(w, 6) for w in unpacked(packed(torch.tensor([0.25, 1e-4]), Packing.ROUGH), Packing.ROUGH)]
        [0.251965, 0.000138]
    """
    numbers = base64.b64decode(text, validate=True)
    if packing is Packing.ROUGH:
        return [(number / 255) ** 2 for number in numbers]
    return [(low + 256 * high) / 65535 for low, high in zip(numbers[::2], numbers[1::2], strict=True)]


def _check_sides(weights: Any, count: int, where: str, packing: Packing) -> None:
    """See that there are so many weights under either answer.

    Raises:
        Mismatch: If there are not.
    """
    for name in ("first_order", "exact"):
        text = getattr(weights, name)
        try:
            size = len(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError) as error:
            raise Mismatch(f"{where}.{name}", text, "base64") from error
        if size != count * packing.value:
            expected = f"{packing.value} for each of {count} weights"
            raise Mismatch(f"{where}.{name}", Shown(f"{size} bytes"), expected)


_Image = Annotated[str, Field(pattern=r"^data:image/(jpeg|png);base64,[A-Za-z0-9+/=]+\z")]


@dataclass(frozen=True)
class Picture:
    """The image that a query is of, and the weight of every position in 16 bits.

    Attributes:
        image: The image as the model saw it, small, a data URI.
        rows: Patches from top to bottom.
        columns: Patches from left to right.
        extra: Positions before the patches, such as that of a class token.
        first_order: Attention's weight on each position, as :func:`fenchel.auditing.examples.packed` writes it.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    image: _Image
    rows: PositiveInt
    columns: PositiveInt
    extra: NonNegativeInt
    first_order: str
    exact: str

    def check(self) -> None:
        """See that there is a weight for every position.

        Raises:
            Mismatch: If there is not.
        """
        positions = self.extra + self.rows * self.columns
        if positions > 2**24:
            raise Mismatch("picture", positions, "at most 16,777,216 positions")
        _check_sides(self, positions, "picture", Packing.FINE)


MOST_PATTERNS = 5

"""Of how many patterns the farthest query of a head is kept."""

MOST_WINDOWS = 4

"""Of how many windows the farthest query of a head is kept."""

LEAST_SHARE = 0.5

"""How far a query has to be to be kept, next to the head's farthest."""

_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]


Rank = tuple[float, int, int, int]

"""What the queries of a head are ordered by: how far apart their answers are, and of equals the earlier in the text.

The numbers of document, window and position are negative; no two queries have the same.
"""


Pattern = tuple[str, str, str]

"""What a query is, what most of the moved weight leaves, and what it reaches."""


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

    position: PositiveInt
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
        first_order: Attention's weight on each token, as :func:`fenchel.auditing.examples.packed` writes it.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    first_position: PositiveInt
    window_tokens: PositiveInt
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
    document: PositiveInt
    window: PositiveInt
    position: PositiveInt
    token: str
    templates: tuple[TemplateWeight, ...]
    context: str
    pattern: Pattern
    context_token: tuple[NonNegativeInt, NonNegativeInt] | None
    passage: Passage | None
    picture: Picture | None = None

    @property
    def rank(self) -> Rank:
        """What the queries of a head are ordered by; no two have the same."""
        return self.total_variation, -self.document, -self.window, -self.position

    @property
    def largest_weight(self) -> float:
        """The largest weight of a template under either answer."""
        return max((max(one.first_order, one.exact) for one in self.templates), default=0.0)

    @property
    def position_among_templates(self) -> int | None:
        """Where the query stands among the templates; None in cross-attention, where these are of another text."""
        return None if self.key.kind == "cross" else self.position

    @property
    def context_parts(self) -> tuple[str, str, str]:
        """The sentence before the query's token, the token, and what follows; nothing is there twice."""
        if self.context_token is None:
            return self.context, "", ""
        start, end = self.context_token
        return self.context[:start], self.context[start:end], self.context[end:]

    def to_json(self) -> dict[str, Any]:
        """The example as JSON values; an infinite deviation is null."""
        known = self.relative_deviation if math.isfinite(self.relative_deviation) else None
        return with_key(self) | {"relative_deviation": known}

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
            _check_sides(passage, len(passage.pieces), "example.passage", Packing.FINE)
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
    result: dict[HeadKey, list[HeadExample]] = {}
    for example in others:
        result.setdefault(example.key, []).append(example)
    for key, examples in result.items():
        by_rank = {example.rank: example for example in (*kept.get(key, ()), *examples)}
        chosen = farthest({rank: example.pattern for rank, example in by_rank.items()})
        kept[key] = tuple(by_rank[rank] for rank in chosen)


def is_full(kept: tuple[HeadExample, ...]) -> bool:
    """Whether a query that is not as far as the last of those kept cannot be kept."""
    patterns = {example.pattern for example in kept}
    windows = {(example.document, example.window) for example in kept}
    return len(patterns) >= MOST_PATTERNS and len(windows) >= MOST_WINDOWS


def least_variation(kept: tuple[HeadExample, ...]) -> float:
    """What the total variation of a query has to be for it to be kept beside these, at least."""
    if not kept:
        return 0.0
    nearest = kept[-1].total_variation if is_full(kept) else 0.0
    return max(LEAST_SHARE * kept[0].total_variation, nearest)


def farthest(queries: Mapping[Rank, Pattern]) -> list[Rank]:
    """Those of some queries of a head that are kept, farthest first, by their ranks and patterns."""
    in_order = sorted(queries, reverse=True)
    patterns, windows = dict[Pattern, Rank](), dict[object, Rank]()
    for rank in in_order:
        if len(patterns) < MOST_PATTERNS:
            patterns.setdefault(queries[rank], rank)
        if len(windows) < MOST_WINDOWS:
            windows.setdefault(rank[1:3], rank)
    chosen = {*patterns.values(), *windows.values()}
    return [rank for rank in in_order if rank in chosen and rank[0] >= LEAST_SHARE * in_order[0][0]]


def examples_from_json(records: Iterable[Mapping[str, Any]]) -> FarQueries:
    """The queries of every head from records of single ones.

    Raises:
        Mismatch: If they are none that are kept together.
    """
    read = [HeadExample.from_json(record) for record in records]
    kept: FarQueries = {}
    keep_the_farthest(kept, read)
    for key, examples in kept.items():
        saved = [example for example in read if example.key == key]
        if list(examples) != saved:
            shown = Shown(f"{len(saved)} of {key.kind} layer {key.layer} head {key.head}")
            raise Mismatch("examples", shown, "those that are farthest, farthest first")
    return kept


MOST_TOKENS = 48

"""How many queries and how many keys of a window are kept at most."""

_Places = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=MOST_TOKENS)]

_Texts = Annotated[tuple[str, ...], Field(max_length=MOST_TOKENS)]


def matrix_rank(document: int, window: int, window_tokens: int) -> tuple[int, int, int]:
    """What matrices are chosen by; no two windows have the same."""
    return min(window_tokens, MOST_TOKENS), -document, -window


@dataclass(frozen=True)
class AttentionMatrix:
    """The weights of some queries on some keys of one window; the last column is the weight on all other keys.

    Attributes:
        key: The head.
        document: Number of the document, from 1.
        window: Number of the window within the document, from 1.
        window_tokens: How many queries the window has.
        query_positions: Positions of the queries in the window, from 1.
        key_positions: Positions of the keys, from 1.
        queries: The text of each query, with a space before it where a word begins.
        keys: The text of each key.
        first_order: Attention's weights, queries by keys and one, roughly, as :func:`fenchel.auditing.examples.packed`
            writes them.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    key: HeadKey
    document: PositiveInt
    window: PositiveInt
    window_tokens: PositiveInt
    query_positions: _Places
    key_positions: _Places
    queries: _Texts
    keys: _Texts
    first_order: str
    exact: str

    @classmethod
    def of(
        cls,
        key: HeadKey,
        place: tuple[int, int, int],
        first_order: Tensor,
        exact: Tensor,
        positions: tuple[Sequence[int], Sequence[int]],
        pieces: tuple[Sequence[str], Sequence[str]],
    ) -> AttentionMatrix:
        """Keep some keys of whole rows of weights.

        Args:
            key: The head.
            place: Numbers of the document and of the window, and how many queries that has.
            first_order: Attention's weights of the queries that are kept, (queries, n).
            exact: The exact ones, (queries, n).
            positions: Queries and keys that are kept, from 0.
            pieces: Texts of all positions of either side; empty where the input is not text.
        """
        keys = list(positions[1])

        def kept(weights: Tensor) -> str:
            shown = weights[:, keys]
            rest = (weights.sum(-1, keepdim=True) - shown.sum(-1, keepdim=True)).clamp(min=0)
            return packed(torch.cat((shown, rest), -1), Packing.ROUGH)

        of_queries, of_keys = (tuple(position + 1 for position in side) for side in positions)
        queries, texts = (
            tuple(text[position] for position in side) if text else ()
            for text, side in zip(pieces, positions, strict=True)
        )
        return cls(key, *place, of_queries, of_keys, queries, texts, kept(first_order), kept(exact))

    @property
    def rank(self) -> tuple[int, int, int]:
        """What a head's matrix is chosen by: the earliest of the windows that fill one, or the longest."""
        return matrix_rank(self.document, self.window, self.window_tokens)

    def to_json(self) -> dict[str, Any]:
        """The matrix as JSON values."""
        return with_key(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> AttentionMatrix:
        """What ``to_json`` gave.

        Raises:
            Mismatch: If it is something else, or not as many weights as queries and keys ask for.
        """
        made: AttentionMatrix = check_json(cls, split_key(record), "matrix")
        expected = len(made.query_positions) * (len(made.key_positions) + 1)
        _check_sides(made, expected, "matrix", Packing.ROUGH)
        for texts, places in ((made.queries, made.query_positions), (made.keys, made.key_positions)):
            if texts and len(texts) != len(places):
                raise Mismatch("matrix", Shown(f"with {len(texts)} texts"), f"{len(places)} or none")
        return made


def keep_the_longest(kept: dict[HeadKey, AttentionMatrix], others: Iterable[AttentionMatrix]) -> None:
    """Put into ``kept`` those of ``others`` that show more of a sentence, or as much of an earlier one."""
    for matrix in others:
        if matrix.key not in kept or matrix.rank > kept[matrix.key].rank:
            kept[matrix.key] = matrix
