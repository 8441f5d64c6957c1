"""What moves in a head: from which kind of key to which, and which tokens get too much or too little."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from fenchel.auditing.heads import HeadKey
from fenchel.auditing.pattern import KEY_CLASSES, TOKEN_TYPES
from fenchel.auditing.pattern_counts import UNIT, PatternCounts

__all__ = [
    "GROUPS",
    "LARGE_SHARE",
    "STILL",
    "ClassMove",
    "HeadPattern",
    "TokenMove",
    "TypeMoves",
    "head_patterns",
]

GROUPS: dict[str, tuple[str, ...]] = {
    "sinks": ("first", "special"),
    "itself": ("itself",),
    "neighbours": ("neighbour",),
    "punctuation": ("punctuation",),
    "rest": ("rest",),
}
"""The classes of keys as patterns speak of them."""

STILL = 0.02
"""Below this mean total variation a head is ``still``: what moves is too little to say what it does."""

LARGE_SHARE = 0.4
"""Share of the moved weight from which on it is said to leave, or to reach, a group of keys."""

MOST_NAMED = 8
_LEAST_NAMED = 1e-4  # of a query's weight


@dataclass(frozen=True)
class ClassMove:
    """Means over queries, as shares of a query's weight.

    Attributes:
        attention: On keys of the class, in the model.
        leaves: What of it would leave them.
        reaches: What would reach them.
    """

    attention: float
    leaves: float
    reaches: float

    @property
    def exact(self) -> float:
        """On keys of the class, in the exact answer."""
        return self.attention - self.leaves + self.reaches

    @property
    def net(self) -> float:
        """What they gain."""
        return self.reaches - self.leaves


@dataclass(frozen=True)
class TypeMoves:
    """The queries of one type.

    Attributes:
        queries: How many there are.
        moved: Share of their weight that would move: their mean total variation.
        classes: By class of key, means over these queries.
    """

    queries: int
    moved: float
    classes: Mapping[str, ClassMove]


@dataclass(frozen=True)
class TokenMove:
    """One token as a key; sums over all its occurrences, as shares of the weight of all queries.

    Attributes:
        id: Its number in the vocabulary.
        token: Its text.
        leaves: What leaves it.
        reaches: What reaches it.
    """

    id: int
    token: str
    leaves: float
    reaches: float

    @property
    def net(self) -> float:
        """What it gains."""
        return self.reaches - self.leaves


@dataclass(frozen=True)
class HeadPattern:
    """What moves in one head between attention and the exact answer.

    Attributes:
        key: The head.
        queries: How many queries were looked at.
        moved: Share of their weight that would move: their mean total variation.
        classes: By class of key (``KEY_CLASSES``), means over all queries.
        types: By type of query (``TOKEN_TYPES``), those that occurred.
        too_much: Tokens that attention gives too much: those that lose most, most first.
        too_little: Tokens that it gives too little.
    """

    key: HeadKey
    queries: int
    moved: float
    classes: Mapping[str, ClassMove]
    types: Mapping[str, TypeMoves]
    too_much: tuple[TokenMove, ...]
    too_little: tuple[TokenMove, ...]

    def share(self, group: str, direction: str) -> float:
        """Share of the moved weight that leaves or reaches (``direction``) a group of keys, of ``GROUPS``."""
        total = sum(getattr(move, direction) for move in self.classes.values())
        part = sum(getattr(self.classes[name], direction) for name in GROUPS[group])
        return part / total if total > 0 else 0.0

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The patterns that the head shows.

        ``still`` below ``STILL``; else ``leaves_X`` and ``reaches_X`` for every group X of ``GROUPS`` but the rest with
        at least ``LARGE_SHARE`` of the moved weight; ``among_the_rest`` where both ends are ordinary tokens for that
        share, and nothing else is; ``mixed`` where there is none.
        """
        if self.moved < STILL:
            return ("still",)
        found = [
            f"{direction}_{group}"
            for direction in ("leaves", "reaches")
            for group in GROUPS
            if group != "rest" and self.share(group, direction) >= LARGE_SHARE
        ]
        if not found and all(self.share("rest", side) >= LARGE_SHARE for side in ("leaves", "reaches")):
            found = ["among_the_rest"]
        return tuple(found or ["mixed"])

    def to_json(self) -> dict[str, Any]:
        """The entry of ``patterns.json``."""
        shares = {
            f"{group}_{direction}_share": self.share(group, direction)
            for group in GROUPS
            for direction in ("leaves", "reaches")
        }
        return {
            **self.key._asdict(),
            "queries": self.queries,
            "moved": self.moved,
            "patterns": list(self.names),
            **shares,
            "classes": {name: asdict(move) for name, move in self.classes.items()},
            "types": {name: asdict(moves) for name, moves in self.types.items()},
            "too_much": [asdict(token) for token in self.too_much],
            "too_little": [asdict(token) for token in self.too_little],
        }


def head_patterns(
    kind: str, layer: int, heads: Sequence[int], counts: PatternCounts, words: Mapping[int, str]
) -> list[HeadPattern]:
    """What moves in the heads of a layer.

    Args:
        kind: How the layer attends.
        layer: Its number.
        heads: Numbers of its heads, in the order of the counts.
        counts: What was counted.
        words: Text of tokens by id.

    Returns:
        One for each head by number; empty where nothing was counted.
    """
    queries = int(counts.type_queries.sum())
    if not queries:
        return []
    found = [
        _head_pattern(HeadKey(kind, layer, head), counts, index, queries, words)  # pyright: ignore[reportArgumentType]
        for index, head in enumerate(heads)
    ]
    return sorted(found, key=lambda pattern: pattern.key.head)


def _head_pattern(
    key: HeadKey, counts: PatternCounts, index: int, queries: int, words: Mapping[int, str]
) -> HeadPattern:
    sums = counts.class_sums[index]
    classes = _moves(sums.sum(0), queries)
    types = {
        name: TypeMoves(count, _moved(moves := _moves(sums[number], count)), moves)
        for number, name in enumerate(TOKEN_TYPES)
        if (count := int(counts.type_queries[number]))
    }
    return HeadPattern(key, queries, _moved(classes), classes, types, *_tokens(counts, index, queries, words))


def _moves(sums: Tensor, queries: int) -> dict[str, ClassMove]:
    rows = (sums.double() * (UNIT / queries)).tolist()
    return {name: ClassMove(*row) for name, row in zip(KEY_CLASSES, rows, strict=True)}


def _moved(classes: Mapping[str, ClassMove]) -> float:
    # Either side sums to the total variation but for rounding.
    return sum(move.leaves + move.reaches for move in classes.values()) / 2


def _tokens(
    counts: PatternCounts, index: int, queries: int, words: Mapping[int, str]
) -> tuple[tuple[TokenMove, ...], tuple[TokenMove, ...]]:
    """The tokens that get too much, and those that get too little."""
    moves = counts.token_moves[index]
    net = moves[:, 1] - moves[:, 0]
    order = net.argsort(stable=True)
    unit = UNIT / queries

    def token(place: int) -> TokenMove:
        number = int(counts.token_ids[place])
        leaves, reaches = (int(part) * unit for part in moves[place])
        return TokenMove(number, words.get(number, str(number)), leaves, reaches)

    lowest, highest = order[:MOST_NAMED].tolist(), net.neg().argsort(stable=True)[:MOST_NAMED].tolist()
    too_much = tuple(found for place in lowest if (found := token(place)).net < -_LEAST_NAMED)
    too_little = tuple(found for place in highest if (found := token(place)).net > _LEAST_NAMED)
    return too_much, too_little
