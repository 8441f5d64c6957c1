"""Estimators that are solved for, where every token has the keys that it meets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.functional.attention import attention
from fenchel.functional.hash_order import HashOrder
from fenchel.functional.hashed_softmax import MeetingRule

__all__ = ["solved_output"]

_BLOCK_NUMBERS = 2**24
"""How many numbers the keys of a block may have that are gathered at once."""


def solved_output(
    z: Tensor,
    templates: Tensor,
    value: Tensor,
    alpha: Tensor,
    order: HashOrder,
    rule: MeetingRule,
    **options: Any,
) -> Tensor:
    """The output (L, n, d_v), of some problems at a time.

    Queries that have the same keys are solved together: with one round those of a chunk. With more, each has its own,
    which are gathered, and kept where gradients are recorded.

    Args:
        z: (L, n, d).
        templates: (L, n, d).
        value: (L, n, d_v).
        alpha: (L, n, 1).
        order: Who meets whom.
        rule: How meetings count.
        **options: Of :func:`fenchel.functional.attention`: the estimator and its own.
    """
    log_u = _log_preference(order, rule, z.dtype)
    looked_at = order.looked_at(order.slots).clamp_max(order.tokens - 1)
    if order.rounds == 1:
        problems = [order.of_slots(part) for part in (z, alpha)]
        indices, log_u = looked_at.flatten(0, 1), log_u.flatten(0, 1)
    else:
        problems = [part.unsqueeze(2) for part in (z, alpha)]
        by_slot = looked_at.unsqueeze(2).expand(-1, -1, order.chunk, -1)
        indices, log_u = (
            order.of_tokens(part).transpose(1, 2).flatten(2).flatten(0, 1) for part in (by_slot, log_u)
        )
        log_u = log_u.unsqueeze(1)
    each = indices.shape[0] // z.shape[0]
    evidence, reliability = (part.flatten(0, 1) for part in problems)
    first = torch.arange(z.shape[0], device=z.device).mul_(order.tokens).repeat_interleave(each)
    rows = indices + first.unsqueeze(-1)

    def of_problems(some: slice, *tensors: Tensor) -> Tensor:
        own_z, own_alpha, log_preference, all_templates, all_values = tensors
        keys, values = (
            part.flatten(0, 1).index_select(0, rows[some].flatten()).unflatten(0, tuple(rows[some].shape))
            for part in (all_templates, all_values)
        )
        return attention(
            own_z.unsqueeze(1),
            keys.unsqueeze(1),
            values.unsqueeze(1),
            log_preference=log_preference.unsqueeze(1),
            alpha=own_alpha.squeeze(-1).unsqueeze(1),
            scale=1.0,
            **options,
        ).squeeze(1)

    numbers = rows.shape[1] * (templates.shape[-1] + value.shape[-1] + evidence.shape[1])
    several = max(1, _BLOCK_NUMBERS // numbers)
    blocks = [slice(start, start + several) for start in range(0, rows.shape[0], several)]
    parts = [
        of_problems(some, evidence[some], reliability[some], log_u[some], templates, value) for some in blocks
    ]
    found = torch.cat(parts).unflatten(0, (z.shape[0], each))
    return order.of_tokens(found).squeeze(1) if order.rounds == 1 else found.squeeze(2)


def _log_preference(order: HashOrder, rule: MeetingRule, dtype: torch.dtype) -> Tensor:
    """Log u of the slots for those that they look at, (L, G, c, C): a key that is met twice has it twice."""
    log_u = torch.zeros((), dtype=dtype, device=order.slots.device)
    if not rule.count_meetings:
        log_u = -order.meetings().clamp_min(1).to(dtype).log()
    forbidden = order.forbidden(self_too=rule.self_last)
    log_u = log_u.expand(forbidden.shape).masked_fill(forbidden, -torch.inf)
    if not rule.self_last:
        return log_u
    nobody = order.of_tokens(forbidden.all(-1)).all(1)
    if order.padding is not None:
        nobody = nobody & ~order.padding
    oneself = order.slots.unsqueeze(-1) == order.looked_at(order.slots).unsqueeze(-2)
    return log_u.masked_fill(oneself & order.of_slots(nobody).unsqueeze(-1), 0.0)
