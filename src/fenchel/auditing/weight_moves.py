r"""Weight moved between attention and the exact solution, by class of key and type of query.

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

All numbers are per query, in its row of the table.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import Kind
from fenchel.functional.arguments import compute_dtype
from fenchel.integrations.capture import AttentionCall
from fenchel.io.batches import Batch

# Types of tokens: ``word`` begins a word, ``piece`` continues one, ``other`` is not text.
TOKEN_TYPES: tuple[str, ...] = ("special", "punctuation", "number", "word", "piece", "other")

# Classes of keys relative to a query.
KEY_CLASSES: tuple[str, ...] = ("first", "special", "itself", "neighbour", "punctuation", "rest")

# What is summed: attention's weight, the weight that leaves, and the weight that reaches a key.
MOVES: tuple[str, ...] = ("attention", "leaves", "reaches")

# Columns of the table with these sums.
MOVE_COLUMNS: tuple[str, ...] = tuple(f"{move}_{name}" for move in MOVES for name in KEY_CLASSES)


def token_text(tokenizer: Any, number: int) -> str:
    """The readable text of a token; its id if there is no tokenizer."""
    if tokenizer is None:
        return str(number)
    return str(tokenizer.decode([number])).strip() or str(tokenizer.convert_ids_to_tokens(number))


def decoder_sides(kind: Kind, batch: Batch) -> tuple[bool, bool]:
    """Whether the queries, and the keys, of a kind of attention are tokens of the decoder's input."""
    queries = kind != "encoder_self" and batch.has_decoder
    return queries, queries and kind != "cross"


@dataclass(frozen=True)
class TokenClasses:
    """Types and classes of the queries and keys of an attention call.

    Attributes:
        types: (B, m), index of each query's type in ``TOKEN_TYPES``.
        classes: (B, m), index of each query's class in ``KEY_CLASSES`` as a key of another query.
        keys: (B, n, C), one-hot classes of the keys, ``itself`` and ``neighbour`` aside.
        beside: (B, m, 3), the keys before, at and after each query.
        corrections: (B, m, 3, C), corrections of ``keys`` for these three: 1 for ``itself`` or ``neighbour`` and -1 for
            the class in ``keys``, or 0 where the key is a sink, does not exist, or is of another text.
    """

    types: Tensor
    classes: Tensor
    keys: Tensor
    beside: Tensor
    corrections: Tensor

    def to(self, device: torch.device) -> TokenClasses:
        """The same on a device."""
        return TokenClasses(*(tensor.to(device) for tensor in vars(self).values()))

    def of_block(self, sequences: Tensor, queries: slice) -> TokenClasses:
        """Those of a block, with one sequence for each of its groups and some of the queries."""
        chosen = self.each_query(lambda of: of[sequences][:, queries])
        return replace(chosen, keys=self.keys[sequences])

    def each_query(self, change: Callable[[Tensor], Tensor]) -> TokenClasses:
        """Apply a function to the tensors of queries, (B, m, ...)."""
        types, classes, beside, corrections = map(
            change, (self.types, self.classes, self.beside, self.corrections)
        )
        return TokenClasses(types, classes, self.keys, beside, corrections)


def moves_by_class(first: Tensor, moved: Tensor, sizes: Tensor, classes: TokenClasses) -> dict[str, Tensor]:
    """Weight of a query on the keys of each class, and the weight that leaves and reaches them.

    Args:
        first: Attention's weights of a block of queries, (g, h, q, n).
        moved: First-order minus exact weights.
        sizes: Their absolute values.
        classes: Those of the block's queries and keys, with g in place of B.

    Returns:
        Each of ``MOVE_COLUMNS``, (g, h, q).
    """
    # Classes are the rows: a product with few columns takes four times as long.
    keys = classes.keys.mT.unsqueeze(1).to(first.dtype).contiguous()
    index = classes.beside.unsqueeze(1).expand(*first.shape[:3], -1)
    change = classes.corrections.unsqueeze(1).to(first.dtype)
    on, size, net = (
        (keys @ part.mT).mT + (part.gather(-1, index).unsqueeze(-1) * change).sum(-2)
        for part in (first, sizes, moved)
    )
    result = {"attention": on, "leaves": (size + net) / 2, "reaches": (size - net) / 2}
    return {
        # Rounding can make it negative.
        f"{move}_{name}": result[move][..., number].clamp(min=0)
        for move in MOVES
        for number, name in enumerate(KEY_CLASSES)
    }


def largest_moves(moved: Tensor) -> dict[str, Tensor]:
    """The keys that lose and gain most of a query's weight, and how much.

    Args:
        moved: Attention's weights less the exact ones, (..., n).

    Returns:
        ``leaves`` and ``reaches``, positions from 0, the first of equals; ``leaves_weight`` and ``reaches_weight``.
    """
    most, least = moved.max(-1), moved.min(-1)
    return {
        "leaves": most.indices,
        "reaches": least.indices,
        "leaves_weight": most.values.clamp(min=0),
        "reaches_weight": (-least.values).clamp(min=0),
    }


_MARKS = re.compile(r"^(?:##|[▁Ġ]+)|(?:</w>|@@)$")

_BEGINS, _ENDS, _GOES_ON = ("▁", "Ġ"), "</w>", "@@"

_UNDECODED = "\N{REPLACEMENT CHARACTER}"

_SPECIAL, _PUNCTUATION, _NUMBER, _WORD, _PIECE, _OTHER = range(len(TOKEN_TYPES))

_CLASS = {name: number for number, name in enumerate(KEY_CLASSES)}

_STEPS = (-1, 0, 1)


class TokenTypes:
    """The type of every token of a tokenizer, computed when it is first seen.

    A token is ``special`` if its tokenizer says so, ``punctuation`` if it has no letter and no digit, ``number`` if it
    has a digit and no letter, ``piece`` if it continues a word (by the marks ``##``, ``▁``, ``Ġ``, ``</w>`` and
    ``@@`` that tokenizers set), else ``word``.

    Args:
        tokenizer: A tokenizer of transformers; None where tokens have no text.
    """

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer
        self._special = frozenset(getattr(tokenizer, "all_special_ids", None) or ())
        self._types: dict[int, int] = {}
        # Texts of the tokens seen so far.
        self.texts: dict[int, str] = {}

    def of(self, ids: Tensor) -> Tensor:
        """Index of each token's type in ``TOKEN_TYPES``; ``other`` without a tokenizer."""
        seen, places = torch.unique(ids, return_inverse=True)
        return torch.tensor([self._type(number) for number in seen.tolist()])[places]

    def _type(self, number: int) -> int:
        if number not in self._types:
            self.texts[number] = text = token_text(self._tokenizer, number)
            self._types[number] = self._worked_out(number, text)
        return self._types[number]

    def _worked_out(self, number: int, text: str) -> int:
        if self._tokenizer is None:
            return _OTHER
        if number in self._special:
            return _SPECIAL
        if not str(self._tokenizer.decode([number])).strip():
            return _PUNCTUATION  # a space or the end of a line
        raw = str(self._tokenizer.convert_ids_to_tokens(number))
        kinds = {unicodedata.category(character)[0] for character in _MARKS.sub("", text)}
        if _UNDECODED not in text and not kinds & {"L", "M", "N"}:
            return _PUNCTUATION
        if kinds & {"N"} and not kinds & {"L", "M"}:
            return _NUMBER
        return _PIECE if self._continues_word(raw) else _WORD

    def _continues_word(self, raw: str) -> bool:
        if self._mark == "begins":
            return not raw.startswith(_BEGINS)
        if self._mark == "ends":
            return not raw.endswith(_ENDS)
        return raw.startswith("##") or raw.endswith(_GOES_ON)

    @cached_property
    def _mark(self) -> str:
        """Whether the vocabulary marks the beginnings of words, their ends, or their continuations."""
        known = getattr(self._tokenizer, "get_vocab", dict)()
        marked = {
            "begins": sum(token.startswith(_BEGINS) for token in known),
            "ends": sum(token.endswith(_ENDS) for token in known),
        }
        name = max(marked, key=lambda name: marked[name])
        return name if marked[name] > len(known) // 20 else "goes on"


class TokenClassifier:
    """Types and classes of the tokens of every attention call of a batch, computed once for each kind of attention."""

    def __init__(self) -> None:
        self._types, self._tokenizer = TokenTypes(), None
        self._made: dict[tuple[Any, ...], TokenClasses] = {}

    @property
    def texts(self) -> dict[int, str]:
        """Texts of the tokens seen so far."""
        return self._types.texts

    def begin_batch(self, batch: Batch) -> None:
        """Set the batch of the calls that follow."""
        if batch.tokenizer is not self._tokenizer:
            self._types, self._tokenizer = TokenTypes(batch.tokenizer), batch.tokenizer
        self._made = {}

    def of(self, call: AttentionCall, batch: Batch) -> TokenClasses:
        """Types and classes of the tokens of an attention call.

        Args:
            call: The call.
            batch: The batch as the layer sees it (:meth:`fenchel.io.batches.Batch.of_sequences`).
        """
        crosses, decoder = call.site.kind == "cross", decoder_sides(call.site.kind, batch)
        dtype = compute_dtype(call.query.dtype)
        sizes = call.query.shape[2], call.key.shape[2]
        name = (crosses, decoder, len(call.query), *sizes, dtype)
        if name not in self._made:
            types, own = self._side(batch, decoder[0], sizes[0])
            _, classes = self._side(batch, decoder[1], sizes[1])
            known = torch.nn.functional.one_hot(classes, len(KEY_CLASSES))
            beside, corrections = _neighbourhood(sizes[0], classes, known)
            # Between different texts no key is beside a query.
            corrections = torch.zeros_like(corrections) if crosses else corrections
            result = TokenClasses(types, own, known.to(dtype), beside, corrections.to(dtype))
            self._made[name] = result.to(call.query.device)
        return self._made[name]

    def _side(self, batch: Batch, decoder: bool, length: int) -> tuple[Tensor, Tensor]:
        """Types and classes of the tokens of the queries, or of the keys, each (B, length)."""
        ids, mask = batch.tokens_of(decoder=decoder), batch.real_tokens(decoder=decoder)
        shape, first = (len(batch.documents), length), torch.zeros(len(batch.documents), dtype=torch.int64)
        types = torch.full(shape, _OTHER)
        if ids is not None and ids.shape[1:] == shape[1:]:
            types = self._types.of(ids)
        if mask is not None and mask.shape[1:] == shape[1:]:
            first = mask.bool().int().argmax(1)
        classes = torch.full(shape, _CLASS["rest"])
        classes[types == _PUNCTUATION] = _CLASS["punctuation"]
        classes[types == _SPECIAL] = _CLASS["special"]
        return types, classes.scatter_(1, first.unsqueeze(1), _CLASS["first"])


def _neighbourhood(m: int, classes: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """``beside`` and ``corrections`` of ``TokenClasses``, for m queries."""
    batch, n = classes.shape
    # With cached keys, the queries are the last positions.
    places = torch.arange(m)[:, None] + (n - m) + torch.tensor(_STEPS)
    there = (places >= 0) & (places < n)
    beside = places.clamp(0, n - 1).expand(batch, m, len(_STEPS))
    flat = beside.flatten(1)
    movable = (classes.gather(1, flat) >= _CLASS["punctuation"]).reshape(beside.shape) & there
    old = known.gather(1, flat.unsqueeze(-1).expand(-1, -1, known.shape[-1])).reshape(*beside.shape, -1)
    own = torch.tensor([_CLASS["itself" if step == 0 else "neighbour"] for step in _STEPS])
    change = torch.nn.functional.one_hot(own, len(KEY_CLASSES)) - old
    return beside.contiguous(), change * movable.unsqueeze(-1)
