r"""Tokens in the order of their buckets, cut into chunks, and the softmax over the keys in neighbouring chunks.

In every round tokens are sorted by bucket, those of one bucket by position, and cut into chunks. The chunks of all
rounds form one ring. A token *meets* (may attend to) the tokens of its own chunk and of some before and after it; with
more than one round, possibly several times.

The softmax of a round with logits f has the normaliser :math:`Z_r = \sum_j e^{f_{rj}}`, and the joint normaliser is
their sum: :math:`o = \sum_r Z_r o_r / \sum_r Z_r`. Given :math:`\log Z` of all rounds the weights of each are
:math:`e^{f - \log Z}`, and with :math:`e = p \circ (gV^\top - \langle g, o\rangle)` for the gradient g of o the
gradients are those of one softmax, slot by slot. Scores are not stored beyond their sequence: the backward pass
recomputes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.blocks import keep_freed_memory, spans
from fenchel.estimators.implicit import differentiated_once


@dataclass(frozen=True, eq=False)
class HashOrder:
    """Tokens in chunks, and which tokens a token meets.

    Letters: L sequences of one head each, R rounds, n tokens, c slots per chunk, G chunks in the ring, C slots in the
    window of a chunk.

    Attributes:
        buckets: (L, R, n), with other numbers in every round; the last of a round contains the padding, which is not
            attended to.
        padding: Bool (L, n), True where a key is padding; None if none is.
        slots: Token of each slot, (L, G, c), n if the slot is empty.
        places: Slot of each token, (L, R, n), counted in the ring.
        before: Number of chunks before a chunk in its window.
        after: Number of chunks after it; in a short ring each chunk is in the window only once.
        causal, same_bucket, count_meetings, self_last: Which tokens of a window meet, as of
            :func:`fenchel.functional.hashing_attention`.
    """

    buckets: Tensor
    padding: Tensor | None
    slots: Tensor
    places: Tensor
    before: int
    after: int
    causal: bool
    same_bucket: bool
    count_meetings: bool
    self_last: bool

    @staticmethod
    def of(
        buckets: Tensor, padding: Tensor | None, *, chunk: int, before: int, after: int, **meets: bool
    ) -> HashOrder:
        """Sort tokens by bucket and cut them into chunks; for arguments see the attributes."""
        lead, rounds, tokens = buckets.shape
        if buckets.numel():
            buckets = buckets - buckets.min()
        count = buckets.amax() + 2 if buckets.numel() else 2
        if padding is not None:
            buckets = torch.where(padding.unsqueeze(1), count - 1, buckets)
        order = buckets.argsort(dim=-1, stable=True)
        chunks = -(-tokens // chunk)
        slots = torch.nn.functional.pad(order, (0, chunks * chunk - tokens), value=tokens)
        numbers = torch.arange(tokens, device=order.device).expand_as(order)
        places = torch.empty_like(order).scatter_(-1, order, numbers)
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
            **meets,
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
        """c, the number of slots in a chunk."""
        return self.slots.shape[2]

    def sequences(self, some: slice) -> HashOrder:
        """The order of some of the L sequences."""
        padding = None if self.padding is None else self.padding[some]
        parts = {"buckets": self.buckets[some], "slots": self.slots[some], "places": self.places[some]}
        return replace(self, **parts, padding=padding)

    def windows_of(self, by_slot: Tensor) -> Tensor:
        """Entries (L, G, c, ...) of slots by window, (L, G, C, ...): a view of one array in which windows overlap."""
        ring = [by_slot[:, self.ring - self.before :], by_slot, by_slot[:, : self.after]]
        joined = (torch.cat(ring, 1) if self.before or self.after else by_slot).flatten(1, 2)
        return joined.unfold(1, self.chunk * (1 + self.before + self.after), self.chunk).movedim(-1, 2)

    def sum_over_windows(self, by_window: Tensor) -> Tensor:
        """The transpose: entries of windows (L, G, C, d), summed over those that contain a slot, (L, G, c, d)."""
        parts = by_window.split(self.chunk, 2)
        result = parts[self.before].clone()
        for back, part in zip(range(self.before, -self.after - 1, -1), parts, strict=True):
            if back:
                result += part.roll(-back, 1)
        return result

    def of_slots(self, by_token: Tensor) -> Tensor:
        """Entries of tokens (L, n, ...) by slot, (L, G, c, ...); empty slots have entries of arbitrary tokens."""
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

    def forbidden(self) -> Tensor:
        """True where a slot does not meet a slot of its window, and under ``self_last`` for itself, (L, G, c, C)."""
        queries, keys = self.slots.unsqueeze(-1), self.windows_of(self.slots).unsqueeze(-2)
        # The number in an empty slot is greater than every token's.
        result = keys > queries if self.causal else keys == self.tokens
        if self.self_last:
            result = result | (keys == queries)
        if self.padding is not None:
            result = result | self.windows_of(self.of_slots(self.padding)).unsqueeze(-2)
        if self.same_bucket:
            bucket = self._bucket_of_slots()
            result = result | (bucket.unsqueeze(-1) != self.windows_of(bucket).unsqueeze(-2))
        return result.expand(*self.slots.shape, result.shape[-1])

    def weigh_(self, logits: Tensor) -> Tensor:
        """Add log u to the logits (L, G, c, C) of slots and the slots of their windows: -inf where they do not meet."""
        if not self.count_meetings:
            logits.sub_(self.meetings().clamp_min_(1).to(logits.dtype).log_())
        return logits.masked_fill_(self.forbidden(), -torch.inf)

    def meetings(self) -> Tensor:
        """How often the token of a slot meets that of another in its window, over all rounds, (L, G, c, C)."""
        chunk_of = (self.places // self.chunk).transpose(1, 2).to(torch.int32)  # (L, n, R)
        queries = self.of_slots(chunk_of).unsqueeze(-2)
        keys = self.windows_of(self.of_slots(chunk_of)).unsqueeze(2)
        buckets = self.of_slots(self.buckets.transpose(1, 2))
        of_keys, buckets = self.windows_of(buckets).unsqueeze(2), buckets.unsqueeze(-2)
        result = torch.zeros(*self.slots.shape, keys.shape[3], dtype=torch.int32, device=keys.device)
        for own, other in self._pairs_of_rounds():
            back = queries[..., own] - keys[..., other]
            meets = (back <= self.before) & (back >= -self.after)
            if own != other or self.ring - max(self.before, self.after) < self.ring // self.rounds:
                # Around the ring.
                meets |= (back <= self.before - self.ring) | (back >= self.ring - self.after)
            if self.same_bucket:
                meets &= buckets[..., own] == of_keys[..., other]
            result += meets
        return result

    def alone(self, unmet: Tensor) -> Tensor:
        """Tokens that attend to themselves: those that meet no others, (L, n), and are not padding."""
        return unmet if self.padding is None else unmet & ~self.padding

    def _bucket_of_slots(self) -> Tensor:
        """The bucket of each slot in its own round, (L, G, c)."""
        by_round = self.slots.unflatten(1, (self.rounds, -1)).flatten(2).clamp_max(self.tokens - 1)
        return self.buckets.gather(-1, by_round).view_as(self.slots)

    def _pairs_of_rounds(self) -> Iterator[tuple[int, int]]:
        """Pairs of rounds, of a query and a key, that occur in one window."""
        chunks = self.ring // self.rounds
        for own in range(self.rounds):
            if self.same_bucket:
                yield own, own
                continue
            first, last = own * chunks - self.before, (own + 1) * chunks - 1 + self.after
            reached = dict.fromkeys(g // chunks % self.rounds for g in range(first, last + 1))
            yield from ((own, other) for other in reached)


# Maximum number of scores in memory, at least those of one sequence.
_BLOCK_ENTRIES = 2**20


def hashed_softmax(dual: Tensor, templates: Tensor, value: Tensor, order: HashOrder) -> Tensor:
    """The mean of the values, (L, n, d_v); zeros for a token that meets none.

    Args:
        dual: λ, (L, n, d).
        templates: (L, n, d).
        value: (L, n, d_v).
        order: Which tokens meet.
    """
    output, _ = _Softmax.apply(dual, templates, value, order)
    return output


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(dual: Tensor, templates: Tensor, value: Tensor, order: HashOrder) -> tuple[Tensor, Tensor]:
        """The output, and log Z (L, n), infinite for a token that meets no others."""
        output, log_sum = torch.empty_like(value), dual.new_empty(dual.shape[:2])
        for some, part in _blocks(order):
            output[some], log_sum[some] = _joined(dual[some], templates[some], value[some], part)
        return output, log_sum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save what the weights are recomputed from."""
        dual, templates, value, ctx.order = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(dual, templates, value, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of all three tensors."""
        return *_gradients(*ctx.saved_tensors, gradient, ctx.order), None


def _joined(dual: Tensor, templates: Tensor, value: Tensor, order: HashOrder) -> tuple[Tensor, Tensor]:
    weights = _logits(dual, templates, order)
    largest = weights.amax(-1, keepdim=True).clamp_min_(torch.finfo(weights.dtype).min)
    weights.sub_(largest).exp_()
    sums = order.of_tokens(weights @ order.windows_of(order.of_slots(value)))
    total, level = order.of_tokens(torch.cat([weights.sum(-1, keepdim=True), largest], -1)).split(1, -1)
    highest = level.amax(1)
    share = (level - highest.unsqueeze(1)).exp_()
    total = (total * share).sum(1)
    unmet = total == 0
    mean = (sums * share).sum(1) / total.masked_fill(unmet, 1)
    if order.self_last:
        mean = mean.where(~order.alone(unmet.squeeze(-1)).unsqueeze(-1), value)
    return mean, (highest + total.log()).masked_fill(unmet, torch.inf).squeeze(-1)


def _gradients_of(
    dual: Tensor,
    templates: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum: Tensor,
    gradient: Tensor,
    order: HashOrder,
) -> tuple[Tensor, Tensor, Tensor]:
    direct = torch.zeros_like(value)
    if order.self_last:
        direct = gradient.where(order.alone(log_sum == torch.inf).unsqueeze(-1), direct)
    # Empty slots are not queries.
    level = torch.nn.functional.pad(log_sum, (0, 1), value=torch.inf).gather(1, order.slots.flatten(1))
    weights = _logits(dual, templates, order).sub_(level.view_as(order.slots).unsqueeze(-1)).exp_()
    own = order.of_slots(gradient)
    along = order.of_slots((gradient * output).sum(-1, keepdim=True))
    to_values = order.sum_over_windows(weights.mT @ own)
    tilt = (own @ order.windows_of(order.of_slots(value)).mT).sub_(along).mul_(weights)
    to_dual = tilt @ order.windows_of(order.of_slots(templates))
    to_templates = order.sum_over_windows(tilt.mT @ order.of_slots(dual))
    result = (order.of_tokens(part).sum(1) for part in (to_dual, to_templates, to_values))
    to_dual, to_templates, to_values = result
    return to_dual, to_templates, to_values + direct


def _all_gradients(*inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    dual, templates, value, output, log_sum, gradient, order = inputs
    result = torch.empty_like(dual), torch.empty_like(templates), torch.empty_like(value)
    for some, part in _blocks(order):
        tensors = dual[some], templates[some], value[some], output[some], log_sum[some], gradient[some]
        for whole, block in zip(result, _gradients_of(*tensors, part), strict=True):
            whole[some] = block
    return result


_gradients = differentiated_once(_all_gradients, "hashing attention")


def _logits(dual: Tensor, templates: Tensor, order: HashOrder) -> Tensor:
    """Logits of slots and the slots of their windows, -inf where they do not meet, (L, G, c, C)."""
    return order.weigh_(order.of_slots(dual) @ order.windows_of(order.of_slots(templates)).mT)


def _blocks(order: HashOrder) -> Iterator[tuple[slice, HashOrder]]:
    """Blocks of sequences."""
    keep_freed_memory()
    window = order.chunk * (1 + order.before + order.after)
    several = max(1, _BLOCK_ENTRIES // (order.ring * order.chunk * window))
    for some in spans(order.slots.shape[0], several):
        yield some, order.sequences(some)
