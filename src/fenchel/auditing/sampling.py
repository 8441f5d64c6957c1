"""A seeded sample of every window's queries, so that a long context can be looked at in minutes."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.auditing.measure import Measures
from fenchel.auditing.weight_moves import TokenClasses
from fenchel.errors import InputError
from fenchel.integrations.capture import AttentionCall
from fenchel.io.batches import Batch

_BYTES = 8  # of the number that a position is drawn by


class QuerySample:
    """Draws so many of the counted queries of each window, every set of them as likely as any other.

    Each position of a window has a pseudorandom number that depends on the seed, the kind of attention, the window's
    document and its place there, and on nothing else: the counted positions with the least numbers are taken. Batches,
    shards and layers leave no trace, the model's twin answers the same queries, and a larger sample holds a smaller
    one.

    Args:
        size: How many queries of a window; a window with fewer gives all of them.
        seed: Seed of the draw.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def of(self, call: AttentionCall, batch: Batch) -> SampledQueries:
        """The queries of an attention call that are looked at.

        Args:
            call: The call.
            batch: The batch as the layer sees it (:meth:`fenchel.io.batches.Batch.of_sequences`).
        """
        counted = call.counted.cpu()
        names = [
            f"{self.seed}/{call.site.kind}/{document}/{window}"
            for document, window in zip(batch.documents, batch.windows, strict=True)
        ]
        rows = [self._of_window(name, of_row) for name, of_row in zip(names, counted, strict=True)]
        most = max(1, *(len(row) for row in rows))
        index, there = torch.zeros(len(rows), most, dtype=torch.int64), torch.zeros(len(rows), most).bool()
        for number, row in enumerate(rows):
            index[number, : len(row)] = row
            there[number, : len(row)] = True
        device = call.counted.device
        return SampledQueries(index.to(device), there.to(device), counted.sum(1), counted.shape[1])

    def _of_window(self, name: str, counted: Tensor) -> Tensor:
        """The positions that are taken of one row, in their order."""
        places = counted.nonzero().flatten()
        if len(places) <= self.size:
            return places
        # Those of the first positions do not depend on how many there are.
        drawn = hashlib.shake_128(name.encode()).digest(_BYTES * len(counted))
        numbers = torch.frombuffer(bytearray(drawn), dtype=torch.int64)[places]
        return places[numbers.argsort(stable=True)[: self.size]].sort().values


@dataclass(frozen=True)
class SampledQueries:
    """Which queries of an attention call are looked at.

    Attributes:
        index: (B, N), their positions, rising; 0 where a window has fewer.
        there: (B, N) bool, whether it is a query.
        population: (B,), how many queries of each window count, on the CPU.
        length: How many positions there are.
    """

    index: Tensor
    there: Tensor
    population: Tensor
    length: int

    @property
    def counted(self) -> Tensor:
        """(B, m) bool, the queries that are looked at, in the places that they have in the window."""
        return self._put_back(self.there)

    def of_call(self, call: AttentionCall) -> AttentionCall:
        """The attention call with these queries alone, over all of its keys."""
        preference = call.preference
        if preference is not None and preference.shape[2] > 1:
            preference = self._taken(preference.expand(len(self.index), -1, -1, -1), 2)
        return replace(call, query=self._taken(call.query, 2), counted=self.there, preference=preference)

    def of_tokens(self, tokens: TokenClasses) -> TokenClasses:
        """What these queries are, from what all of them are."""
        return tokens.each_query(lambda of: self._taken(of, 1))

    def put_back(self, measures: Measures) -> Measures:
        """What was measured of these queries, in the places that they have in the window."""
        positions = measures.farthest.positions
        index = self.index.unsqueeze(1).expand(-1, positions.shape[1], -1)
        places = index.gather(2, positions.clamp(min=0))
        farthest = replace(measures.farthest, positions=torch.where(positions < 0, positions, places))
        return replace(
            measures,
            values={name: self._put_back(values) for name, values in measures.values.items()},
            newton_steps=self._put_back(measures.newton_steps),
            converged=self._put_back(measures.converged),
            farthest=farthest,
        )

    def _taken(self, tensor: Tensor, dim: int) -> Tensor:
        """These queries of a tensor (B, ...) that has all of them along ``dim``."""
        shape = [1] * tensor.dim()
        shape[0], shape[dim] = self.index.shape
        index = self.index.reshape(shape).expand(
            *(-1 if place in (0, dim) else size for place, size in enumerate(tensor.shape))
        )
        return tensor.gather(dim, index)

    def _put_back(self, values: Tensor) -> Tensor:
        """Values (B, ..., N) of these queries as (B, ..., m), 0 elsewhere."""
        # What is no query goes behind the last position.
        index = self.index.masked_fill(~self.there, self.length)
        index = index.reshape(len(index), *[1] * (values.dim() - 2), -1).expand_as(values)
        whole = values.new_zeros((*values.shape[:-1], self.length + 1))
        return whole.scatter(-1, index, values)[..., : self.length]


_LEAST_QUERIES = 16
_SHARE = 0.4
_MOST_ROWS = 10**7


def sample_size(
    queries: int | str, model: nn.Module, *, length: int | None, max_tokens: int | None = None
) -> int | None:
    r"""How many queries of each window are measured; None for all of them.

    Of a model of width d and windows of n positions, ``"auto"`` takes

    .. math:: \max\Bigl(16, \Bigl\lceil 0.4\, n\, \frac{12 d + n}{4400 + 60 n} \Bigr\rceil\Bigr),

    with which the work beside the forward pass is about 0.4 of one: 12d + n is the work of a token in a layer, and
    4400 + 60n that of a query in the audit, in the same unit, as measured on the bundled encoder. Where ``max_tokens``
    is known, it takes fewer if the table would have more than ten million rows.

    Args:
        queries: What was asked for: a number, ``"auto"`` or ``"all"``.
        model: The model.
        length: Positions of a window; None where that is not known beforehand (images, ready-made inputs), and all
            queries are taken.
        max_tokens: Tokens that are read at most.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 384, "intermediate_size": 8, "num_attention_heads": 12}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1))
        >>> [sample_size("auto", model, length=n) for n in (12, 128, 512)]
        [None, 21, 30]
    """
    if queries == "all":
        return None
    if queries != "auto":
        return int(queries)
    config: Any = getattr(model, "config", None)
    width = getattr(config, "hidden_size", None)
    if length is None or not isinstance(width, int):
        return None
    size = max(_LEAST_QUERIES, math.ceil(_SHARE * length * (12 * width + length) / (4400 + 60 * length)))
    heads = getattr(config, "num_hidden_layers", 1) * getattr(config, "num_attention_heads", 1)
    if max_tokens is not None:
        size = min(size, max(1, _MOST_ROWS * length // (heads * max_tokens)))
    return size if size < length else None


def require_fewer(queries: int | None, longest: int | None) -> None:
    """Refuse a sample that would be every query of the longest window.

    Args:
        queries: How many of a window are asked for; None for all.
        longest: How many positions the longest window has; None where that is not known yet.

    Raises:
        InputError: If it would.
    """
    if queries is None or longest is None or queries < longest:
        return
    raise InputError(
        f"queries is {queries}, and the longest window has {longest} positions; expected fewer than those. Ask for "
        f"{'fewer' if longest > 1 else 'none'}, or give queries='all' (--queries all) to measure all of them."
    )


def sample_words(queries: int | None) -> str | None:
    """What a sample is called where people read of it; None without one.

    Example:
        >>> sample_words(32)
        '32 queries of each window'
    """
    return None if queries is None else f"{queries:,} quer{'y' if queries == 1 else 'ies'} of each window"
