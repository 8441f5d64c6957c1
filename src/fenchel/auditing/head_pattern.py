"""What moves in a head: from which kind of key to which, and which tokens get too much or too little."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from fenchel.auditing.heads import KINDS, HeadKey
from fenchel.auditing.moves import KEY_CLASSES, MOVES

if TYPE_CHECKING:
    import polars

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
    """One token where it is the key that loses, or gains, most of a query's weight, as shares of the weight of all.

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


def head_patterns(
    moves: polars.DataFrame, tokens: polars.DataFrame, words: Mapping[int, str]
) -> list[HeadPattern]:
    """What moves in every head.

    Args:
        moves: What :meth:`fenchel.auditing.statistics.AuditStatistics.moves` gives.
        tokens: What ``moved_tokens`` of it gives.
        words: Text of tokens by id.

    Returns:
        One for each head, ordered by kind, layer and number; empty where nothing was looked at.
    """
    rows: dict[HeadKey, list[dict[str, Any]]] = defaultdict(list)
    for row in moves.iter_rows(named=True):
        rows[HeadKey(row["kind"], row["layer"], row["head"])].append(row)
    of_tokens: dict[HeadKey, list[tuple[int, float, float]]] = defaultdict(list)
    for kind, layer, head, *token in tokens.iter_rows():
        of_tokens[HeadKey(kind, layer, head)].append(tuple(token))
    order = sorted(rows, key=lambda key: (KINDS.index(key.kind), key.layer, key.head))
    return [_head_pattern(key, rows[key], of_tokens[key], words) for key in order]


def _head_pattern(
    key: HeadKey,
    rows: list[dict[str, Any]],
    tokens: list[tuple[int, float, float]],
    words: Mapping[int, str],
) -> HeadPattern:
    weight = sum(row["weight"] for row in rows)
    classes = _moves(rows, weight)
    types = {
        row["type"]: TypeMoves(row["queries"], _moved(of_type := _moves([row], row["weight"])), of_type)
        for row in rows
    }
    return HeadPattern(
        key,
        sum(row["queries"] for row in rows),
        _moved(classes),
        classes,
        types,
        *_tokens(tokens, weight, words),
    )


def _moves(rows: list[dict[str, Any]], weight: float) -> dict[str, ClassMove]:
    return {
        name: ClassMove(
            *(sum(row["weight"] * row[f"{move}_{name}"] for row in rows) / weight for move in MOVES)
        )
        for name in KEY_CLASSES
    }


def _moved(classes: Mapping[str, ClassMove]) -> float:
    # Either side sums to the total variation but for rounding.
    return sum(move.leaves + move.reaches for move in classes.values()) / 2


def _tokens(
    tokens: list[tuple[int, float, float]], weight: float, words: Mapping[int, str]
) -> tuple[tuple[TokenMove, ...], tuple[TokenMove, ...]]:
    """The tokens that get too much, and those that get too little."""
    found = [
        TokenMove(number, words.get(number, str(number)), leaves / weight, reaches / weight)
        for number, leaves, reaches in tokens
    ]
    too_much = sorted((token for token in found if token.net < -_LEAST_NAMED), key=lambda token: token.net)
    too_little = sorted((token for token in found if token.net > _LEAST_NAMED), key=lambda token: -token.net)
    return tuple(too_much[:MOST_NAMED]), tuple(too_little[:MOST_NAMED])
