r"""Where weight moves between attention and the exact answer: on which kind of key, for which kind of query.

Of every query, :math:`\max(\hat p_i - p^\star_i, 0)` *leaves* key i and :math:`\max(p^\star_i - \hat p_i, 0)`
*reaches* it; either sums to the total variation. Every key is of one class, the first that fits:

===========  ===========================================================================================
first        the first token of the window, whatever it is
special      another special token: [CLS], [SEP], beginning or end of a text
itself       the query's own token (self-attention)
neighbour    the token before or after it (self-attention)
punctuation  a token without letter or digit
rest         any other
===========  ===========================================================================================

The sums are additive over blocks of queries and of keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.layer import LayerProblem

__all__ = [
    "KEY_CLASSES",
    "MOVES",
    "TOKEN_TYPES",
    "PatternSearch",
    "PatternSums",
    "TokenClasses",
    "pattern_sums",
]

TOKEN_TYPES: tuple[str, ...] = ("special", "punctuation", "number", "word", "piece", "other")
"""What a token is by itself: ``word`` begins a word, ``piece`` goes on with one, ``other`` is no text."""

KEY_CLASSES: tuple[str, ...] = ("first", "special", "itself", "neighbour", "punctuation", "rest")
"""What a key is to a query."""

MOVES: tuple[str, ...] = ("attention", "leaves", "reaches")
"""What is summed: attention's weight, what of it leaves, and what comes in the exact answer."""


@dataclass(frozen=True)
class TokenClasses:
    """What the queries and keys of an attention call are.

    Attributes:
        types: (B, T, m), 1 where a counted query is of a type of ``TOKEN_TYPES``.
        keys: (B, n, C), 1 where a key is of a class of ``KEY_CLASSES``, itself and neighbours aside.
        beside: (B, m, 3), the keys before, at and after each query; None between different texts.
        corrections: (B, m, 3, T, C), what such a key adds to its class: 1 to ``itself`` or ``neighbour`` and -1 to what
            it is in ``keys``, or nothing where it is a sink or not there; None as above.
        key_ids: (B, n), token ids of the keys, on the CPU; None where the input is not text.
    """

    types: Tensor
    keys: Tensor
    beside: Tensor | None
    corrections: Tensor | None
    key_ids: Tensor | None


@dataclass(frozen=True)
class PatternSums:
    """What moved in one attention call.

    Attributes:
        classes: Sums over the counted queries, float64, (B, H, T, C, 3), of ``MOVES``.
        columns: The same by key, float64, (B, H, n, 2): what leaves it and what reaches it.
        queries: (T,), counted queries of each type.
        key_ids: (B, n), token ids of the keys; None where the input is not text.
    """

    classes: Tensor
    columns: Tensor
    queries: Tensor
    key_ids: Tensor | None

    def cpu(self) -> PatternSums:
        """The same on the CPU."""
        return PatternSums(self.classes.cpu(), self.columns.cpu(), self.queries.cpu(), self.key_ids)


def pattern_sums(
    first: Tensor, exact: Tensor, classes: TokenClasses, *, first_key: int = 0
) -> tuple[Tensor, Tensor]:
    """Sums over queries of what is on, leaves and reaches keys; additive over blocks of queries and of keys.

    Args:
        first: Attention's weights of a block of queries on a block of keys, (g, h, q, n).
        exact: The exact ones.
        classes: Of the block's queries and keys, g in the place of B.
        first_key: Number of the block's first key among all keys, by which ``beside`` counts.

    Returns:
        By type of query and class of key (g, h, T, C, 3), and by key (g, h, n, 2) what leaves and what reaches.
    """
    types = classes.types.unsqueeze(1)
    moved = first - exact
    near = None
    if classes.beside is not None and classes.corrections is not None:
        near = _beside(first, moved, classes.beside - first_key, classes.corrections)
    net = types @ moved
    # In place: another array as large as the weights takes longer than all that is summed of it.
    leaving = types @ moved.clamp_(min=0)
    by_class = torch.stack([part @ classes.keys.unsqueeze(1) for part in (types @ first, leaving, net)])
    if near is not None:
        by_class += near
    on, leaves, gone = by_class
    of_columns = leaving.sum(-2)
    columns = torch.stack([of_columns, of_columns - net.sum(-2)], -1)
    return torch.stack([on, leaves, leaves - gone], -1), columns


def _beside(first: Tensor, moved: Tensor, beside: Tensor, corrections: Tensor) -> Tensor:
    """What keys at and beside their query add to classes, (3, g, h, T, C)."""
    g, h, q, n = first.shape
    here = (beside >= 0) & (beside < n)
    index = beside.clamp(0, n - 1).unsqueeze(1).expand(g, h, q, 3)
    on, net = (part.gather(-1, index) for part in (first, moved))
    near = torch.stack([on, net.clamp(min=0), net], 1).reshape(g, 3 * h, 3 * q)
    added = (corrections * here[..., None, None]).reshape(g, 3 * q, -1)
    return (near @ added).reshape(g, 3, h, *corrections.shape[-2:]).transpose(0, 1)


class PatternSearch:
    """Adds up what moves in a layer while its blocks go by.

    Args:
        problem: The layer.
        classes: What its tokens are.
    """

    def __init__(self, problem: LayerProblem, classes: TokenClasses) -> None:
        groups, heads = problem.queries.shape[:2]
        new = problem.queries.new_zeros
        types, kinds = classes.types.shape[1], classes.keys.shape[-1]
        self._classes = new((groups, heads, types, kinds, len(MOVES)), dtype=torch.float64)
        self._columns = new((groups, heads, problem.vectors.shape[1], 2), dtype=torch.float64)
        self._tokens = classes
        self._sequence = torch.arange(groups, device=classes.types.device) // (groups // problem.batch)

    def add(self, where: tuple[slice, slice, slice], first: Tensor, exact: Tensor) -> None:
        """Count a block of queries.

        Args:
            where: Its groups, heads and queries.
            first: Attention's weights, (g, r, n).
            exact: The exact ones.
        """
        g, h, q = where
        heads = self._classes[g, h].shape[1]
        shape = (first.shape[0], heads, -1, first.shape[-1])
        found = pattern_sums(first.reshape(shape), exact.reshape(shape), self._of_block(g, q))
        for kept, part in zip((self._classes, self._columns), found, strict=True):
            kept[g, h] += part

    def found(self, batch: int) -> PatternSums:
        """The sums over all blocks, by sequence and head."""
        classes, columns = (
            kept.reshape(batch, -1, *kept.shape[2:]).clamp(min=0) for kept in (self._classes, self._columns)
        )
        queries = self._tokens.types.sum((0, 2)).round().long()
        return PatternSums(classes, columns, queries, self._tokens.key_ids)

    def _of_block(self, g: slice, q: slice) -> TokenClasses:
        tokens, sequence = self._tokens, self._sequence[g]
        beside, corrections = tokens.beside, tokens.corrections
        return TokenClasses(
            types=tokens.types[sequence][..., q],
            keys=tokens.keys[sequence],
            beside=None if beside is None else beside[sequence][:, q],
            corrections=None if corrections is None else corrections[sequence][:, q],
            key_ids=None,
        )
