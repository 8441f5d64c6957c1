r"""One attention call as inference problems: which vectors are templates, which are evidence.

``space="input"`` is the papers' reading (section 8): :math:`t_i = s\,x_i` and :math:`z = K^\top q`, for inputs
x, key map K and scale s of the call. The key map's bias moves all scores of a query by the same amount and is
dropped. All heads share the templates, so one Gram matrix serves a layer, and scores can be computed in the
head's own width: :math:`\langle t_i, z\rangle = \langle Kt_i, q\rangle`.

``space="key"`` is generic: :math:`t_i = s\,k_i` and :math:`z = q` as they reach the attention function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.errors import CaptureError, ProblemError
from fenchel.integrations.sites import AttentionCall
from fenchel.problem import rows_in_block
from fenchel.tensors import boxes, keep_freed_memory, log_weights, may_attend, part_of

_BLOCK_BYTES = 2**21  # of one array: what a call of torch costs counts as much as caches do

__all__ = ["LayerBlock", "LayerProblem", "layer_problem"]


@dataclass(frozen=True)
class LayerBlock:
    """Queries of some heads of some groups: g groups, h heads, q queries.

    Attributes:
        where: Slices of groups, heads and queries.
        queries: (g, h, q, d_h).
        log_preference: (g or 1, h or 1, q or 1, n), as in the problem.
    """

    where: tuple[slice, slice, slice]
    queries: Tensor
    log_preference: Tensor


@dataclass(frozen=True)
class LayerProblem:
    """All problems of one attention call, as captured; groups are sets of heads that share templates.

    Nothing is scaled or rounded here: the numbers are the model's, so that a problem can be had in float64 as exactly
    as in the working dtype.

    Attributes:
        vectors: (groups, n, d), with templates ``scaling · vectors``.
        scaling: What scores are multiplied with.
        queries: (groups, heads, m, d_h).
        lift: (heads, d_h, d) with z = queries · lift, or None where z is the query itself.
        log_preference: (groups or 1, heads or 1, m or 1, n), up to a constant a row, or a mask; rows that have no
            answer are uniform.
        batch: Batch size, by which groups divide.
    """

    vectors: Tensor
    scaling: float
    queries: Tensor
    lift: Tensor | None
    log_preference: Tensor
    batch: int

    def by_head(self, values: Tensor) -> Tensor:
        """Results (groups, heads, m) as (batch, heads of the layer, m)."""
        return values.reshape(self.batch, -1, values.shape[-1])

    def counted(self, call: AttentionCall) -> Tensor:
        """Which queries are real, bool (groups, heads, m)."""
        shape = self.queries.shape[:3]
        return call.counted.repeat_interleave(shape[0] // self.batch, 0).unsqueeze(1).expand(shape)

    def blocks(self, memory_budget: int, arrays: int) -> Iterator[LayerBlock]:
        """Blocks of queries, of one group where groups do not fit together.

        Args:
            memory_budget: Bytes for the working arrays of a block.
            arrays: How many of shape (rows, max(n, d)) there are.
        """
        keep_freed_memory()
        groups, heads, m, _ = self.queries.shape
        most = rows_in_block(
            self.vectors, memory_budget // arrays, self.queries.element_size(), aimed_at=_BLOCK_BYTES
        )
        for g, h, q in boxes((groups, heads, m), most):
            preference = log_weights(part_of(self.log_preference, (g, h, q)), self.queries.dtype)
            yield LayerBlock((g, h, q), self.queries[g, h, q], preference)


def layer_problem(call: AttentionCall, space: str, heads: Sequence[int] | None = None) -> LayerProblem:
    """The inference problems of a captured call.

    Args:
        call: What reached the attention function.
        space: ``"input"`` or ``"key"``.
        heads: Heads to keep, from 1; all where None.

    Raises:
        ProblemError: On NaN or infinity in what was captured, or a counted query that may attend to nothing.
        CaptureError: If ``space="input"`` and the call carries no key map.
    """
    dtype = torch.float64 if call.query.dtype == torch.float64 else torch.float32
    query, key = call.query.to(dtype), call.key.to(dtype)
    batch, count, m, width = query.shape
    repeats = count // key.shape[1]
    _check_finite(call, query, key)
    chosen = torch.arange(count) if heads is None else torch.as_tensor([head - 1 for head in heads])
    chosen = chosen.to(query.device)
    preference = _log_preference(call, dtype, key.shape[2])
    if heads is not None:
        query = query.index_select(1, chosen)
        if preference.shape[1] > 1:
            preference = preference.index_select(1, chosen)
    if space == "input":
        if call.inputs is None or call.key_weight is None:
            raise CaptureError(
                f'{call.site.name}: space="input" needs the inputs and the key map, which were not captured'
            )
        lift = call.key_weight.to(dtype).index_select(0, chosen // repeats)
        return LayerProblem(call.inputs.to(dtype), call.scaling, query, lift, preference, batch)
    if heads is not None:
        key, repeats = key.index_select(1, chosen // repeats), 1
    groups = key.shape[1]
    if max(preference.shape[:2]) > 1:
        preference = preference.expand(batch, len(chosen), -1, -1)
        preference = preference.reshape(batch * groups, repeats, *preference.shape[2:])
    return LayerProblem(
        key.flatten(0, 1),
        call.scaling,
        query.reshape(batch * groups, repeats, m, width),
        None,
        preference,
        batch,
    )


def _check_finite(call: AttentionCall, query: Tensor, key: Tensor) -> None:
    for name, value in (("queries", query), ("keys", key)):
        if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
            raise ProblemError(
                f"{call.site.name}: {name} contain NaN or infinity; the model does not compute attention on this "
                f"text in {call.query.dtype} (try dtype float32)"
            )


def _log_preference(call: AttentionCall, dtype: torch.dtype, n: int) -> Tensor:
    """Log preference or mask, 4-dimensional; rows without any template are uniform and must not be counted."""
    if call.preference is None:
        return torch.zeros((1, 1, 1, n), dtype=dtype, device=call.query.device)
    preference = call.preference
    if preference.dtype != torch.bool:
        preference = preference.to(dtype)
    empty = ~may_attend(preference).any(-1, keepdim=True)
    if bool(empty.any()):
        if bool((empty.squeeze(-1) & call.counted.unsqueeze(1)).any()):
            raise ProblemError(
                f"{call.site.name}: a query that is not padding may attend to nothing; it has no answer"
            )
        preference = (
            preference | empty if preference.dtype == torch.bool else preference.masked_fill(empty, 0)
        )
    return preference
