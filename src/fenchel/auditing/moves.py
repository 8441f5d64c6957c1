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

Every number is one of a query: a row of the table has them all.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = [
    "KEY_CLASSES",
    "MOVES",
    "MOVE_COLUMNS",
    "TOKEN_TYPES",
    "TokenClasses",
    "largest_moves",
    "moves_by_class",
]

TOKEN_TYPES: tuple[str, ...] = ("special", "punctuation", "number", "word", "piece", "other")
"""What a token is by itself: ``word`` begins a word, ``piece`` goes on with one, ``other`` is no text."""

KEY_CLASSES: tuple[str, ...] = ("first", "special", "itself", "neighbour", "punctuation", "rest")
"""What a key is to a query."""

MOVES: tuple[str, ...] = ("attention", "leaves", "reaches")
"""What is summed: attention's weight, what of it leaves, and what comes in the exact answer."""

MOVE_COLUMNS: tuple[str, ...] = tuple(f"{move}_{name}" for move in MOVES for name in KEY_CLASSES)
"""The columns of a query's row that hold it."""


@dataclass(frozen=True)
class TokenClasses:
    """What the queries and keys of an attention call are.

    Attributes:
        types: (B, m), the number of each query's type in ``TOKEN_TYPES``.
        classes: (B, m), the number of each query's own class in ``KEY_CLASSES``, as a key of another query.
        keys: (B, n, C), 1 where a key is of a class of ``KEY_CLASSES``, itself and neighbours aside.
        beside: (B, m, 3), the keys before, at and after each query; None between different texts.
        corrections: (B, m, 3, C), what such a key adds to its class: 1 to ``itself`` or ``neighbour`` and -1 to what
            it is in ``keys``, or nothing where it is a sink or not there; None as above.
        key_ids: (B, n), token ids of the keys, on the CPU; None where the input is not text.
    """

    types: Tensor
    classes: Tensor
    keys: Tensor
    beside: Tensor | None
    corrections: Tensor | None
    key_ids: Tensor | None

    def of_block(self, sequences: Tensor, queries: slice) -> TokenClasses:
        """The same of a block: one sequence for each of its groups, and some of the queries."""
        beside, corrections = self.beside, self.corrections
        return TokenClasses(
            types=self.types[sequences][:, queries],
            classes=self.classes[sequences][:, queries],
            keys=self.keys[sequences],
            beside=None if beside is None else beside[sequences][:, queries],
            corrections=None if corrections is None else corrections[sequences][:, queries],
            key_ids=None,
        )


def moves_by_class(first: Tensor, exact: Tensor, classes: TokenClasses) -> dict[str, Tensor]:
    """What of a query's weight is on, leaves and reaches the keys of each class.

    Args:
        first: Attention's weights of a block of queries, (g, h, q, n).
        exact: The exact ones.
        classes: Of the block's queries and keys, g in the place of B.

    Returns:
        Each of ``MOVE_COLUMNS``, (g, h, q).
    """
    moved = first - exact
    leaving = moved.clamp(min=0)
    keys = classes.keys.unsqueeze(1).to(first.dtype)
    on, leaves, net = (part @ keys for part in (first, leaving, moved))
    if classes.beside is not None and classes.corrections is not None:
        index = classes.beside.unsqueeze(1).expand(*first.shape[:3], -1)
        change = classes.corrections.unsqueeze(1).to(first.dtype)
        near = [(part.gather(-1, index).unsqueeze(-1) * change).sum(-2) for part in (first, leaving, moved)]
        on, leaves, net = on + near[0], leaves + near[1], net + near[2]
    found = {"attention": on, "leaves": leaves, "reaches": leaves - net}
    return {
        # Rounding may leave less than nothing.
        f"{move}_{name}": found[move][..., number].clamp(min=0)
        for move in MOVES
        for number, name in enumerate(KEY_CLASSES)
    }


def largest_moves(first: Tensor, exact: Tensor) -> dict[str, Tensor]:
    """The key that loses most of a query's weight and the one that gains most, and how much.

    Args:
        first: Attention's weights, (..., n).
        exact: The exact ones.

    Returns:
        ``leaves`` and ``reaches``, positions from 0, the first of equals; ``leaves_weight`` and ``reaches_weight``.
    """
    moved = first - exact
    most, least = moved.max(-1), moved.min(-1)
    return {
        "leaves": most.indices,
        "reaches": least.indices,
        "leaves_weight": most.values.clamp(min=0),
        "reaches_weight": (-least.values).clamp(min=0),
    }
