r"""Softmax over the keys that tokens meet in chunks, joined over rounds, with its gradient.

A round's softmax of logits f has the normaliser :math:`Z_r = \sum_j e^{f_{rj}}`, and the joint one is their sum, so
that :math:`o = \sum_r Z_r o_r / \sum_r Z_r`. Given :math:`\log Z` of all rounds the weights of each are
:math:`e^{f - \log Z}`, and with :math:`e = p \circ (gV^\top - \langle g, o\rangle)` for the gradient g of o the
gradients are those of one softmax, slot by slot. No array of scores outlives its sequence: the backward pass computes
them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fenchel.functional.hash_order import HashOrder
from fenchel.layout import keep_freed_memory
from fenchel.solver.implicit import differentiated_once

__all__ = ["MeetingRule", "hashed_softmax"]

_BLOCK_ENTRIES = 2**20
"""How many scores are worked on at once, at least those of one sequence."""


class MeetingRule(NamedTuple):
    """How meetings count.

    Attributes:
        count_meetings: Whether a key that is met twice counts twice.
        self_last: Whether a token attends to itself only if it meets no other.
    """

    count_meetings: bool
    self_last: bool


def hashed_softmax(
    dual: Tensor, templates: Tensor, value: Tensor, order: HashOrder, rule: MeetingRule
) -> Tensor:
    """The mean of the values, (L, n, d_v); zeros for a token that meets nothing.

    Args:
        dual: λ, (L, n, d).
        templates: (L, n, d).
        value: (L, n, d_v).
        order: Who meets whom.
        rule: How meetings count.
    """
    output, _ = _Softmax.apply(dual, templates, value, order, rule)
    return output


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(
        dual: Tensor, templates: Tensor, value: Tensor, order: HashOrder, rule: MeetingRule
    ) -> tuple[Tensor, Tensor]:
        """The output, and log Z (L, n), infinite for a token that meets nobody."""
        output, log_sum = torch.empty_like(value), dual.new_empty(dual.shape[:2])
        for some, part in _blocks(order):
            output[some], log_sum[some] = _joined(dual[some], templates[some], value[some], part, rule)
        return output, log_sum

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the weights are computed from again."""
        dual, templates, value, ctx.order, ctx.rule = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(dual, templates, value, *output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The gradients of all three tensors."""
        return *_gradients(*ctx.saved_tensors, gradient, ctx.order, ctx.rule), None, None


def _joined(
    dual: Tensor, templates: Tensor, value: Tensor, order: HashOrder, rule: MeetingRule
) -> tuple[Tensor, Tensor]:
    weights = _logits(dual, templates, order, rule)
    largest = weights.amax(-1, keepdim=True).clamp_min_(torch.finfo(weights.dtype).min)
    weights.sub_(largest).exp_()
    sums = order.of_tokens(weights @ order.looked_at(order.of_slots(value)))
    total, level = order.of_tokens(torch.cat([weights.sum(-1, keepdim=True), largest], -1)).split(1, -1)
    highest = level.amax(1)
    share = (level - highest.unsqueeze(1)).exp_()
    total = (total * share).sum(1)
    nobody = total == 0
    mean = (sums * share).sum(1) / total.masked_fill(nobody, 1)
    if rule.self_last:
        mean = mean.where(~_alone(nobody, order), value)
    return mean, (highest + total.log()).masked_fill(nobody, torch.inf).squeeze(-1)


def _gradients_of(
    dual: Tensor,
    templates: Tensor,
    value: Tensor,
    output: Tensor,
    log_sum: Tensor,
    gradient: Tensor,
    order: HashOrder,
    rule: MeetingRule,
) -> tuple[Tensor, Tensor, Tensor]:
    direct = torch.zeros_like(value)
    nobody = (log_sum == torch.inf).unsqueeze(-1)
    if rule.self_last:
        alone = _alone(nobody, order)
        direct = gradient.where(alone, direct)
    # What stands in an empty slot is no query.
    level = torch.nn.functional.pad(log_sum, (0, 1), value=torch.inf).gather(1, order.slots.flatten(1))
    weights = _logits(dual, templates, order, rule).sub_(level.view_as(order.slots).unsqueeze(-1)).exp_()
    own = order.of_slots(gradient)
    along = order.of_slots((gradient * output).sum(-1, keepdim=True))
    to_values = order.met_by(weights.mT @ own)
    tilt = (own @ order.looked_at(order.of_slots(value)).mT).sub_(along).mul_(weights)
    to_dual = tilt @ order.looked_at(order.of_slots(templates))
    to_templates = order.met_by(tilt.mT @ order.of_slots(dual))
    found = (order.of_tokens(part).sum(1) for part in (to_dual, to_templates, to_values))
    to_dual, to_templates, to_values = found
    return to_dual, to_templates, to_values + direct


def _all_gradients(*given: Any) -> tuple[Tensor, Tensor, Tensor]:
    dual, templates, value, output, log_sum, gradient, order, rule = given
    found = torch.empty_like(dual), torch.empty_like(templates), torch.empty_like(value)
    for some, part in _blocks(order):
        tensors = dual[some], templates[some], value[some], output[some], log_sum[some], gradient[some]
        for whole, own in zip(found, _gradients_of(*tensors, part, rule), strict=True):
            whole[some] = own
    return found


_gradients = differentiated_once(_all_gradients, "hashing attention")


def _logits(dual: Tensor, templates: Tensor, order: HashOrder, rule: MeetingRule) -> Tensor:
    """Logits of slots for what they look at, -inf where they do not, (L, G, c, C)."""
    logits = order.of_slots(dual) @ order.looked_at(order.of_slots(templates)).mT
    if not rule.count_meetings:
        logits.sub_(order.meetings().clamp_min_(1).to(logits.dtype).log_())
    return logits.masked_fill_(order.forbidden(self_too=rule.self_last), -torch.inf)


def _alone(nobody: Tensor, order: HashOrder) -> Tensor:
    """Which tokens attend to themselves, (L, n, 1): those that meet nobody and are no padding."""
    return nobody if order.padding is None else nobody & ~order.padding.unsqueeze(-1)


def _blocks(order: HashOrder) -> Iterator[tuple[slice, HashOrder]]:
    """Sequences that are worked on at once."""
    keep_freed_memory()
    window = order.chunk * (1 + order.before + order.after)
    several = max(1, _BLOCK_ENTRIES // (order.ring * order.chunk * window))
    for start in range(0, order.slots.shape[0], several):
        some = slice(start, start + several)
        yield some, order.sequences(some)
