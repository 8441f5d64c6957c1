"""Example queries and attention matrices of each head, with their packed weights."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Annotated, Any, TypeVar

import torch
from pydantic import BeforeValidator
from torch import Tensor

from fenchel.auditing.heads import HeadKey, OfHead
from fenchel.io.storage import STRICT, Field, NonNegativeInt, PositiveInt


class Packing(Enum):
    """Quantization of a weight w in [0, 1]; the value is the number of bytes."""

    # round(255 √w): small weights keep their digits; the error is at most 0.004.
    ROUGH = 1
    # round(65535 w), little-endian.
    FINE = 2


def packed(weights: Tensor, packing: Packing) -> str:
    """Encode weights in [0, 1] in base64, row by row.

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
    """Decode the weights that ``packed`` encoded.

    Example:
        >>> import torch
        >>> [round(w, 6) for w in unpacked(packed(torch.tensor([0.25, 1e-4]), Packing.ROUGH), Packing.ROUGH)]
        [0.251965, 0.000138]
    """
    numbers = base64.b64decode(text, validate=True)
    if packing is Packing.ROUGH:
        return [(number / 255) ** 2 for number in numbers]
    return [(low + 256 * high) / 65535 for low, high in zip(numbers[::2], numbers[1::2], strict=True)]


_Image = Annotated[str, Field(pattern=r"^data:image/(jpeg|png);base64,[A-Za-z0-9+/=]+\z")]


@dataclass(frozen=True)
class Picture:
    """The image of a query and the weight of every position in 16 bits.

    Attributes:
        image: Thumbnail of the image as the model saw it, a data URI.
        rows: Number of rows of patches.
        columns: Number of columns.
        extra: Number of positions before the patches, such as a class token.
        first_order: Attention's weight on each position, as :func:`fenchel.auditing.examples.packed` encodes it.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    image: _Image
    rows: PositiveInt
    columns: PositiveInt
    extra: NonNegativeInt
    first_order: str
    exact: str


# Maximum number of patterns whose farthest query is kept, per head.
MOST_PATTERNS = 5

# Maximum number of windows whose farthest query is kept, per head.
MOST_WINDOWS = 4

# Least total variation of a kept query, as a share of the head's largest.
LEAST_SHARE = 0.5

_Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Infinity is null in JSON.
_Deviation = Annotated[
    float, Field(ge=0), BeforeValidator(lambda value: math.inf if value is None else value)
]


# Sort key of the queries of a head: total variation, then negative document, window and position.
#
# Among equal total variations the earliest query has the highest rank; ranks are unique.
Rank = tuple[float, int, int, int]


# Class of the query, class that loses most weight, and class that gains most.
Pattern = tuple[str, str, str]


@dataclass(frozen=True)
class TemplateWeight:
    """Weights of one template.

    Attributes:
        position: Its position in the window, from 1.
        token: Its text.
        first_order: Its weight in the model's attention.
        exact: Its weight in the exact solution.
    """

    __pydantic_config__ = STRICT

    position: PositiveInt
    token: str
    first_order: _Weight
    exact: _Weight


@dataclass(frozen=True)
class Passage:
    """The sentence that contains the templates, with the weights of every token in 16 bits.

    Attributes:
        first_position: Position of its first token in the window, from 1.
        window_tokens: Number of tokens in the window.
        pieces: The text of each token, with a space before it where a word begins; empty where the input is no text.
        first_order: Attention's weight on each token, as :func:`fenchel.auditing.examples.packed` encodes it.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    first_position: PositiveInt
    window_tokens: PositiveInt
    pieces: tuple[str, ...]
    first_order: str
    exact: str


@dataclass(frozen=True)
class FarQuery(OfHead):
    """A query of one head with a large total variation.

    Attributes:
        total_variation: Distance between the first-order and the exact weights.
        relative_deviation: Relative deviation of the query, possibly infinite.
        document: Number of the document, from 1.
        window: Number of the window within the document, from 1.
        position: Position in the window, from 1.
        pattern: See ``Pattern``.
    """

    total_variation: _Weight
    relative_deviation: _Deviation
    document: PositiveInt
    window: PositiveInt
    position: PositiveInt
    pattern: Pattern

    @property
    def rank(self) -> Rank:
        """Sort key among the queries of a head; unique."""
        return self.total_variation, -self.document, -self.window, -self.position


@dataclass(frozen=True)
class HeadExample(FarQuery):
    """An example query of one head: its total variation is the largest of the head for its pattern or in its window.

    Attributes:
        token: The query's token.
        templates: The heaviest by attention's or by the exact weights, heaviest first.
        context: The sentence that contains the query, with "…" where text is left out.
        context_token: Start and end of the query's token in ``context``; None where it is not shown.
        passage: The sentence that contains the templates, with all weights.
        picture: The image whose patches are the templates, with all weights.
    """

    token: str
    templates: tuple[TemplateWeight, ...]
    context: str
    context_token: tuple[NonNegativeInt, NonNegativeInt] | None
    passage: Passage | None
    picture: Picture | None = None

    @property
    def largest_weight(self) -> float:
        """The largest weight of a template, attention's or exact."""
        return max((max(one.first_order, one.exact) for one in self.templates), default=0.0)

    @property
    def position_among_templates(self) -> int | None:
        """Position of the query among the templates; None in cross-attention, whose templates are of another text."""
        return None if self.key.kind == "cross" else self.position

    @property
    def context_parts(self) -> tuple[str, str, str]:
        """The context before the query's token, the token, and the context after it."""
        if self.context_token is None:
            return self.context, "", ""
        start, end = self.context_token
        return self.context[:start], self.context[start:end], self.context[end:]

    def to_json(self) -> dict[str, Any]:
        """The example as JSON values; an infinite deviation is null."""
        known = self.relative_deviation if math.isfinite(self.relative_deviation) else None
        return asdict(self) | {"relative_deviation": known}


_Query = TypeVar("_Query", bound=FarQuery)

# Kept queries of every head, farthest first: the farthest of each pattern and of each window.
#
# At most ``MOST_PATTERNS`` patterns and ``MOST_WINDOWS`` windows; total variations are at least ``LEAST_SHARE`` of the
# largest.
FarQueries = dict[HeadKey, tuple[HeadExample, ...]]


def keep_the_farthest(kept: dict[HeadKey, tuple[_Query, ...]], others: Iterable[_Query]) -> None:
    """Update ``kept`` with those of ``others`` that are farther; the result does not depend on order or grouping.

    A query that is not among the farthest of some queries, by pattern or window, is not among the farthest of all.
    """
    by_head: dict[HeadKey, list[_Query]] = {}
    for example in others:
        by_head.setdefault(example.key, []).append(example)
    for key, examples in by_head.items():
        kept[key] = tuple(farthest([*kept.get(key, ()), *examples]))


def is_full(kept: Sequence[FarQuery]) -> bool:
    """Whether queries nearer than the last of those kept cannot be kept."""
    patterns = {example.pattern for example in kept}
    windows = {(example.document, example.window) for example in kept}
    return len(patterns) >= MOST_PATTERNS and len(windows) >= MOST_WINDOWS


def least_variation(kept: Sequence[FarQuery]) -> float:
    """Least total variation with which a query can be kept beside these."""
    if not kept:
        return 0.0
    nearest = kept[-1].total_variation if is_full(kept) else 0.0
    return max(LEAST_SHARE * kept[0].total_variation, nearest)


def farthest(queries: Iterable[_Query]) -> list[_Query]:
    """Select the queries of a head that are kept, farthest first."""
    by_rank = {query.rank: query for query in queries}
    in_order = [by_rank[rank] for rank in sorted(by_rank, reverse=True)]
    patterns, windows = dict[Pattern, Rank](), dict[object, Rank]()
    for query in in_order:
        if len(patterns) < MOST_PATTERNS:
            patterns.setdefault(query.pattern, query.rank)
        if len(windows) < MOST_WINDOWS:
            windows.setdefault((query.document, query.window), query.rank)
    chosen, least = {*patterns.values(), *windows.values()}, LEAST_SHARE * in_order[0].total_variation
    return [query for query in in_order if query.rank in chosen and query.total_variation >= least]


# Maximum number of queries, and of keys, in a matrix.
MOST_TOKENS = 48

_Places = Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=MOST_TOKENS)]

_Texts = Annotated[tuple[str, ...], Field(max_length=MOST_TOKENS)]


def matrix_rank(document: int, window: int, window_tokens: int) -> tuple[int, int, int]:
    """Sort key by which the window of a matrix is chosen; unique."""
    return min(window_tokens, MOST_TOKENS), -document, -window


@dataclass(frozen=True)
class AttentionMatrix(OfHead):
    """Weights of the first queries on the first keys of a window; the last column is the weight on all other keys.

    Attributes:
        document: Number of the document, from 1.
        window: Number of the window within the document, from 1.
        window_tokens: Number of queries in the window.
        query_positions: Positions of the queries in the window, from 1.
        key_positions: Positions of the keys, from 1.
        queries: The text of each query, with a space before it where a word begins.
        keys: The text of each key.
        first_order: Attention's weights, (queries, keys + 1), as :func:`fenchel.auditing.examples.packed` encodes them
            in 8 bits.
        exact: The exact weights, likewise.
    """

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
        """Select queries and keys from rows of weights.

        Args:
            key: The head.
            place: Numbers of document and window, and the number of queries in the window.
            first_order: Attention's weights of the selected queries, (queries, n).
            exact: The exact ones, (queries, n).
            positions: Selected queries and keys, from 0.
            pieces: Texts of all queries and of all keys; empty where the input is not text.
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
        return cls(*key, *place, of_queries, of_keys, queries, texts, kept(first_order), kept(exact))

    @property
    def rank(self) -> tuple[int, int, int]:
        """Sort key by which a head's matrix is chosen: the earliest window that fills it, or the longest."""
        return matrix_rank(self.document, self.window, self.window_tokens)


def keep_the_longest(kept: dict[HeadKey, AttentionMatrix], others: Iterable[AttentionMatrix]) -> None:
    """Update ``kept`` with those of ``others`` that show more of a sentence, or as much of an earlier one."""
    for matrix in others:
        if matrix.key not in kept or matrix.rank > kept[matrix.key].rank:
            kept[matrix.key] = matrix
