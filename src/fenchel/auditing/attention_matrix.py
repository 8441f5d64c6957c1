"""All of one head's attention in a sentence, queries by keys, under both answers, in 8 bits a weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from fenchel.auditing.heads import HeadKey, split_key
from fenchel.auditing.packed import Packing, check_packed, packed
from fenchel.io.schema import STRICT, Field, Mismatch, Place, Shown, check_json

__all__ = ["MOST_TOKENS", "AttentionMatrix", "keep_the_longest", "matrix_rank"]

MOST_TOKENS = 48
"""How many queries and how many keys of a window are kept at most."""

_Places = Annotated[tuple[Place, ...], Field(min_length=1, max_length=MOST_TOKENS)]
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
        first_order: Attention's weights, queries by keys and one, roughly, as :func:`fenchel.auditing.packed.packed`
            writes them.
        exact: The exact weights, likewise.
    """

    __pydantic_config__ = STRICT

    key: HeadKey
    document: Place
    window: Place
    window_tokens: Place
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
        queries, keys = positions

        def kept(weights: Tensor) -> str:
            chosen = weights[:, list(keys)]
            rest = (weights.sum(-1, keepdim=True) - chosen.sum(-1, keepdim=True)).clamp(min=0)
            return packed(torch.cat((chosen, rest), -1), Packing.ROUGH)

        def texts(side: Sequence[str], places: Sequence[int]) -> tuple[str, ...]:
            return tuple(side[position] for position in places) if side else ()

        return cls(
            key,
            *place,
            tuple(position + 1 for position in queries),
            tuple(position + 1 for position in keys),
            texts(pieces[0], queries),
            texts(pieces[1], keys),
            kept(first_order),
            kept(exact),
        )

    @property
    def rank(self) -> tuple[int, int, int]:
        """What a head's matrix is chosen by: the earliest of the windows that fill one, or the longest."""
        return matrix_rank(self.document, self.window, self.window_tokens)

    def to_json(self) -> dict[str, Any]:
        """The matrix as JSON values."""
        fields = {name: value for name, value in vars(self).items() if name != "key"}
        return self.key._asdict() | {
            name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> AttentionMatrix:
        """What ``to_json`` gave.

        Raises:
            Mismatch: If it is something else, or not as many weights as queries and keys ask for.
        """
        made: AttentionMatrix = check_json(cls, split_key(record), "matrix")
        expected = len(made.query_positions) * (len(made.key_positions) + 1)
        for name, weights in (("first_order", made.first_order), ("exact", made.exact)):
            check_packed(weights, expected, f"matrix.{name}", Packing.ROUGH)
        for texts, places in ((made.queries, made.query_positions), (made.keys, made.key_positions)):
            if texts and len(texts) != len(places):
                raise Mismatch("matrix", Shown(f"with {len(texts)} texts"), f"{len(places)} or none")
        return made


def keep_the_longest(kept: dict[HeadKey, AttentionMatrix], others: Iterable[AttentionMatrix]) -> None:
    """Put into ``kept`` those of ``others`` that show more of a sentence, or as much of an earlier one."""
    for matrix in others:
        if matrix.key not in kept or matrix.rank > kept[matrix.key].rank:
            kept[matrix.key] = matrix
