r"""Tokens in the order of their buckets, cut into chunks: which key a hashed query looks at, and how often.

In every round tokens are sorted by bucket, those of one bucket by position, and cut into chunks. The chunks of all
rounds stand in one ring, and a query looks at its own chunk and at some before and after it: with more than one round
it may meet a key more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["HashOrder"]


@dataclass(frozen=True)
class HashOrder:
    """Slots of chunks, and who may look at whom.

    Letters: L sequences of one head each, R rounds, n tokens, c slots a chunk, G chunks in the ring, C slots that a
    chunk looks at.

    Attributes:
        buckets: (L, R, n), none shared by two rounds; the last of a round is padding's, which is not attended to.
        padding: Bool (L, n), True where a key is padding; None where none is.
        slots: Tokens by slot, (L, G, c), n where a slot is empty.
        places: Slots by token, (L, R, n), counted in the ring.
        before: How many chunks before its own a query looks at.
        after: How many after it; each chunk is looked at once, however few there are.
        causal: Whether no key after the query is looked at.
        same_bucket: Whether only keys of the query's own bucket are.
    """

    buckets: Tensor
    padding: Tensor | None
    slots: Tensor
    places: Tensor
    before: int
    after: int
    causal: bool
    same_bucket: bool

    @staticmethod
    def of(
        buckets: Tensor,
        padding: Tensor | None,
        *,
        chunk: int,
        before: int,
        after: int,
        causal: bool,
        same_bucket: bool,
    ) -> HashOrder:
        """Sort.

        Args:
            buckets: Whole numbers (L, R, n).
            padding: Bool (L, n), or None.
            chunk: c.
            before: As the attributes.
            after: As the attributes.
            causal: As the attributes.
            same_bucket: As the attributes.
        """
        lead, rounds, tokens = buckets.shape
        buckets = buckets - buckets.amin()
        count = int(buckets.amax()) + 2
        if padding is not None:
            buckets = buckets.masked_fill(padding.unsqueeze(1), count - 1)
        order = buckets.argsort(dim=-1, stable=True)
        chunks = -(-tokens // chunk)
        slots = torch.nn.functional.pad(order, (0, chunks * chunk - tokens), value=tokens)
        places = torch.empty_like(order).scatter_(
            -1, order, torch.arange(tokens, device=order.device).expand_as(order)
        )
        round_index = torch.arange(rounds, device=order.device).unsqueeze(-1)
        ring = rounds * chunks
        before = min(before, ring - 1)
        return HashOrder(
            buckets + round_index * count,
            padding,
            slots.reshape(lead, ring, chunk),
            places + round_index * (chunks * chunk),
            before,
            min(after, ring - 1 - before),
            causal,
            same_bucket,
        )

    @property
    def rounds(self) -> int:
        """R."""
        return self.places.shape[1]

    @property
    def tokens(self) -> int:
        """N."""
        return self.places.shape[2]

    @property
    def ring(self) -> int:
        """G."""
        return self.slots.shape[1]

    @property
    def chunk(self) -> int:
        """C, slots of one chunk."""
        return self.slots.shape[2]

    def sequences(self, some: slice) -> HashOrder:
        """The same of some of the L sequences."""
        padding = None if self.padding is None else self.padding[some]
        return HashOrder(
            self.buckets[some],
            padding,
            self.slots[some],
            self.places[some],
            self.before,
            self.after,
            self.causal,
            self.same_bucket,
        )

    def looked_at(self, by_slot: Tensor) -> Tensor:
        """What the chunks look at: entries (L, G, c, ...) of slots, those of the window side by side, (L, G, C, ...).

        A view of one array, in which windows overlap.
        """
        ring = [by_slot[:, self.ring - self.before :], by_slot, by_slot[:, : self.after]]
        joined = (torch.cat(ring, 1) if self.before or self.after else by_slot).flatten(1, 2)
        return joined.unfold(1, self.chunk * (1 + self.before + self.after), self.chunk).movedim(-1, 2)

    def met_by(self, by_window: Tensor) -> Tensor:
        """Entries of windows (L, G, C, d), summed over those in which a slot stands, (L, G, c, d): the transpose."""
        parts = by_window.split(self.chunk, 2)
        found = parts[self.before].clone()
        for back, part in zip(range(self.before, -self.after - 1, -1), parts, strict=True):
            if back:
                found += part.roll(-back, 1)
        return found

    def of_slots(self, by_token: Tensor) -> Tensor:
        """Entries of tokens (L, n, ...) by slot, (L, G, c, ...); those of an empty slot are some token's."""
        lead, tokens = by_token.shape[:2]
        first = torch.arange(lead, device=by_token.device).mul_(tokens).view(-1, 1, 1)
        rows = (self.slots.clamp_max(tokens - 1) + first).flatten()
        return by_token.flatten(0, 1).index_select(0, rows).unflatten(0, tuple(self.slots.shape))

    def of_tokens(self, by_slot: Tensor) -> Tensor:
        """Entries of slots (L, G, c, ...) by token and round, (L, R, n, ...)."""
        lead, size = by_slot.shape[0], self.ring * self.chunk
        first = torch.arange(lead, device=by_slot.device).mul_(size).view(-1, 1, 1)
        rows = (self.places + first).flatten()
        return by_slot.flatten(0, 2).index_select(0, rows).unflatten(0, tuple(self.places.shape))

    def forbidden(self, *, self_too: bool) -> Tensor:
        """True where a slot does not look at another of its window, (L, G, c, C).

        Args:
            self_too: Whether no token looks at itself.
        """
        queries, keys = self.slots.unsqueeze(-1), self.looked_at(self.slots).unsqueeze(-2)
        # What stands in an empty slot is after every token.
        found = keys > queries if self.causal else keys == self.tokens
        if self_too:
            found = found | (keys == queries)
        if self.padding is not None:
            found = found | self.looked_at(self.of_slots(self.padding)).unsqueeze(-2)
        if self.same_bucket:
            bucket = self._bucket_of_slots()
            found = found | (bucket.unsqueeze(-1) != self.looked_at(bucket).unsqueeze(-2))
        return found.expand(*self.slots.shape, found.shape[-1])

    def meetings(self) -> Tensor:
        """How often the token of a slot meets that of another in its window, over all rounds, (L, G, c, C)."""
        chunk_of = (self.places // self.chunk).transpose(1, 2).to(torch.int32)  # (L, n, R)
        queries = self.of_slots(chunk_of).unsqueeze(-2)
        keys = self.looked_at(self.of_slots(chunk_of)).unsqueeze(2)
        buckets = self.of_slots(self.buckets.transpose(1, 2))
        looked_at, buckets = self.looked_at(buckets).unsqueeze(2), buckets.unsqueeze(-2)
        found = torch.zeros(*self.slots.shape, keys.shape[3], dtype=torch.int32, device=keys.device)
        for own, other in self._pairs_of_rounds():
            back = queries[..., own] - keys[..., other]
            meets = (back <= self.before) & (back >= -self.after)
            if own != other or self.ring - max(self.before, self.after) < self.ring // self.rounds:
                # Around the ring.
                meets |= (back <= self.before - self.ring) | (back >= self.ring - self.after)
            if self.same_bucket:
                meets &= buckets[..., own] == looked_at[..., other]
            found += meets
        return found

    def _bucket_of_slots(self) -> Tensor:
        """The bucket of each slot in its own round, (L, G, c)."""
        by_round = self.slots.unflatten(1, (self.rounds, -1)).flatten(2).clamp_max(self.tokens - 1)
        return self.buckets.gather(-1, by_round).view_as(self.slots)

    def _pairs_of_rounds(self) -> Iterator[tuple[int, int]]:
        """Rounds of a query and of a key between which a window may reach."""
        chunks = self.ring // self.rounds
        for own in range(self.rounds):
            if self.same_bucket:
                yield own, own
                continue
            first, last = own * chunks - self.before, (own + 1) * chunks - 1 + self.after
            reached = dict.fromkeys(g // chunks % self.rounds for g in range(first, last + 1))
            yield from ((own, other) for other in reached)
