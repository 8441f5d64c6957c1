"""What moved in the heads of a layer, as integers: added in any order, they give the same bits."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fenchel.auditing.pattern import KEY_CLASSES, MOVES, TOKEN_TYPES, PatternSums
from fenchel.errors import InputError
from fenchel.io.schema import Mismatch, Shown, TensorSchema, check_tensors

__all__ = ["MOST_TOKENS", "PATTERN_SCHEMA", "UNIT", "PatternCounts"]

UNIT = 2.0**-30
"""What one stands for; a sum over the queries of one sequence is rounded to it once."""

MOST_TOKENS = 1 << 14
"""Tokens that are counted one by one: those with the lowest ids of all that were seen. Others are counted together.

Which they are does not depend on the order: an id that has made room for lower ones would have to do so in the end,
too. Vocabularies list frequent tokens first.
"""

MOST_QUERIES = 1 << 32
"""Of one head: in units, the weight of twice as many fits 63 bits."""

PATTERN_SCHEMA: dict[str, TensorSchema] = {
    "class_sums": TensorSchema(
        (torch.int64,), ("heads", len(TOKEN_TYPES), len(KEY_CLASSES), len(MOVES)), least=0
    ),
    "type_queries": TensorSchema((torch.int64,), (len(TOKEN_TYPES),), least=0),
    "token_ids": TensorSchema((torch.int64,), ("tokens",), least=0, rising=True),
    "token_moves": TensorSchema((torch.int64,), ("heads", "tokens", 2), least=0),
    "rarer_moves": TensorSchema((torch.int64,), ("heads", 2), least=0),
}
"""The tensors that ``PatternCounts.to_state`` gives."""

_SLACK = 1e-3  # of what rounding to float32 and to the unit may do to sums that would be equal


class PatternCounts:
    """Sums of what is on, leaves and reaches keys, by type of query and class of key, and by token.

    Args:
        heads: Number of heads.

    Attributes:
        class_sums: int64, (heads, T, C, 3), in units of ``UNIT``.
        type_queries: int64, (T,), queries of each type.
        token_ids: int64, (U,), rising: tokens that are counted one by one.
        token_moves: int64, (heads, U, 2): what leaves and what reaches them.
        rarer_moves: int64, (heads, 2): the same of all others.
    """

    def __init__(self, heads: int) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int64)

        self.class_sums = zeros(heads, len(TOKEN_TYPES), len(KEY_CLASSES), len(MOVES))
        self.type_queries = zeros(len(TOKEN_TYPES))
        self.token_ids = zeros(0)
        self.token_moves = zeros(heads, 0, 2)
        self.rarer_moves = zeros(heads, 2)

    def add(self, sums: PatternSums) -> None:
        """Count what moved in an attention call, on the CPU."""
        self._make_room(sums.queries)
        self.class_sums += _in_units(sums.classes).sum(0)
        self.type_queries += sums.queries
        if sums.key_ids is None:
            return
        ids, places = torch.unique(sums.key_ids.flatten(), return_inverse=True)
        of_keys = _in_units(sums.columns).transpose(0, 1).flatten(1, 2)
        moves = of_keys.new_zeros(of_keys.shape[0], len(ids), 2).index_add_(1, places, of_keys)
        # Padding has an id and no weight.
        seen = moves.flatten(2).amax((0, 2)) > 0
        self._add_tokens(ids[seen], moves[:, seen])

    def merge(self, other: PatternCounts) -> None:
        """Count everything that ``other`` counted."""
        self._make_room(other.type_queries)
        self.class_sums += other.class_sums
        self.type_queries += other.type_queries
        self.rarer_moves += other.rarer_moves
        self._add_tokens(other.token_ids, other.token_moves)

    def _make_room(self, queries: Tensor) -> None:
        together = int(self.type_queries.sum() + queries.sum())
        if together > MOST_QUERIES:
            raise InputError(
                f"{together} queries of one head do not fit the sums of what moves, which hold {MOST_QUERIES}. "
                "Audit a part of the text, or keep the parts unmerged."
            )

    def _add_tokens(self, ids: Tensor, moves: Tensor) -> None:
        together = torch.unique(torch.cat([self.token_ids, ids]))
        if len(together) > len(self.token_ids):
            grown = moves.new_zeros(moves.shape[0], len(together), 2)
            grown[:, torch.searchsorted(together, self.token_ids)] = self.token_moves
            self.token_ids, self.token_moves = together, grown
        self.token_moves.index_add_(1, torch.searchsorted(self.token_ids, ids), moves)
        if len(self.token_ids) > MOST_TOKENS:
            self.rarer_moves += self.token_moves[:, MOST_TOKENS:].sum(1)
            self.token_ids = self.token_ids[:MOST_TOKENS].clone()
            self.token_moves = self.token_moves[:, :MOST_TOKENS].clone()

    def to_state(self) -> dict[str, Tensor]:
        """Everything that was counted; ``from_state`` inverts it exactly."""
        return {
            name: getattr(self, name).clone(memory_format=torch.contiguous_format) for name in PATTERN_SCHEMA
        }

    @classmethod
    def from_state(cls, queries: Tensor, parts: Mapping[str, Tensor]) -> PatternCounts:
        """Rebuild what ``to_state`` gave.

        Args:
            queries: Of each head, (heads,).
            parts: By name.

        Raises:
            Mismatch: If they are none that an audit can have given.
        """
        check_tensors(parts, PATTERN_SCHEMA, {"heads": len(queries)})
        _check(queries, parts)
        self = cls(len(queries))
        for name in PATTERN_SCHEMA:
            setattr(self, name, parts[name].clone())
        return self


def _in_units(sums: Tensor) -> Tensor:
    return (sums / UNIT).round().long()


def _check(queries: Tensor, parts: Mapping[str, Tensor]) -> None:
    sums, counted = parts["class_sums"].double(), parts["type_queries"].double()
    whole = counted / UNIT
    on, leaves, reaches = sums.unbind(-1)
    if not bool((counted.sum() <= queries).all()):
        raise Mismatch("tensor type_queries", Shown("above the number of queries"), "at most as many")
    if bool(((on.sum(-1) - whole).abs() > _SLACK * whole).any()):
        raise Mismatch(
            "tensor class_sums", Shown("not in keeping with type_queries"), "a weight of 1 a query"
        )
    if bool((leaves > on + _SLACK * whole[:, None]).any()) or bool(
        ((leaves.sum(-1) - reaches.sum(-1)).abs() > _SLACK * whole).any()
    ):
        raise Mismatch(
            "tensor class_sums",
            Shown("not a move"),
            "that as much leaves as reaches, and no more than is there",
        )
    if len(parts["token_ids"]) > MOST_TOKENS:
        raise Mismatch(
            "tensor token_ids", Shown(f"of length {len(parts['token_ids'])}"), f"at most {MOST_TOKENS}"
        )
    of_tokens = parts["token_moves"].double().sum(1) + parts["rarer_moves"].double()
    most = torch.stack([leaves.sum((1, 2)), reaches.sum((1, 2))], -1)
    if bool((of_tokens > most + _SLACK * whole.sum()).any()):
        raise Mismatch("tensor token_moves", Shown("above what moved"), "at most as much")
