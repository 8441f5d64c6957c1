"""Leading dimensions as torch's attention takes them: any that broadcast to one shape, of up to two."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fenchel.errors import ProblemError

__all__ = ["Leading", "broadcast_leading", "restored"]


class Leading(NamedTuple):
    """Query, key and value of a call as (batch, heads, tokens, dim), and what was added for that.

    Attributes:
        query: (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        enable_gqa: Whether heads of the query share heads of the key; also where one head of the key was broadcast.
        added: How many of the first dimensions, of size 1, were not there.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    enable_gqa: bool
    added: int


def restored(lead: Leading | None, found: Tensor) -> Tensor:
    """An answer without the dimensions that were added."""
    return found if lead is None else found[(0,) * lead.added]


def broadcast_leading(query: Any, key: Any, value: Any, enable_gqa: bool) -> Leading | None:
    """Bring tensors (..., tokens, dim) of two to four dimensions into one form; batch and heads broadcast.

    None where they have that form, as nearly always, and where they cannot be used, which the check of arguments says.

    Args:
        query: (..., m, d).
        key: (..., n, d).
        value: (..., n, d_v).
        enable_gqa: Whether heads are grouped, and not broadcast.

    Raises:
        ProblemError: If leading dimensions of fewer than four do not broadcast to one shape.
    """
    try:
        of_query, of_key, of_value = query.shape, key.shape, value.shape
        most = max(len(of_query), len(of_key), len(of_value))
    except (AttributeError, RuntimeError, TypeError):  # no tensor, or a nested one
        return None
    fewer = not len(of_query) == len(of_key) == len(of_value) == 4
    same_batch = not fewer and of_query[0] == of_key[0] == of_value[0]
    if same_batch and (enable_gqa is True or of_query[1] == of_key[1] == of_value[1]):
        return None
    given = (query, key, value)
    if most > 4 or not isinstance(enable_gqa, bool) or not all(map(_is_usable, given)):
        return None
    wide = [x[(None,) * (4 - x.dim())] for x in given]
    kept = 1 if enable_gqa else 2
    try:
        lead = torch.broadcast_shapes(*(x.shape[:kept] for x in wide))
    except RuntimeError:
        if not fewer:
            return None
        listed = ", ".join(
            f"{n} {tuple(x.shape)}" for n, x in zip(("query", "key", "value"), given, strict=True)
        )
        raise ProblemError(
            f"leading dimensions do not broadcast to one shape: {listed}; expected (batch, heads, tokens, dim), or "
            "fewer dimensions that broadcast to it, as in torch.nn.functional.scaled_dot_product_attention"
        ) from None
    # One head of the key for all of the query's needs no copies: its heads are grouped.
    of_keys = lead
    if not enable_gqa and wide[1].shape[1] == wide[2].shape[1] == 1:
        # Set, since a comparison is a symbol in a graph with open sizes.
        of_keys, enable_gqa = lead[:1], True
    z, k, v = (
        x.expand(*sizes, *x.shape[len(sizes) :])
        for x, sizes in zip(wide, (lead, of_keys, of_keys), strict=True)
    )
    return Leading(z, k, v, enable_gqa, 4 - most)


def _is_usable(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and not tensor.is_nested
        and tensor.layout == torch.strided
        and tensor.dim() >= 2
    )
