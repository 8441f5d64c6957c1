r"""One attention call as inference problems: which vectors are templates, which are evidence.

``space="input"`` is the papers' reading (section 8): :math:`t_i = s\,x_i` and :math:`z = K^\top q`, for inputs
x, key map K and scale s of the call. The key map's bias moves all scores of a query by the same amount and is
dropped. All heads share the templates, so one Gram matrix serves a layer, and scores can be computed in the
head's own width: :math:`\langle t_i, z\rangle = s\langle k_i - b, q\rangle`.

``space="key"`` is generic: :math:`t_i = s\,k_i` and :math:`z = q` as they reach the attention function.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.audit.capture import AttentionCall
from fenchel.blocks import keep_freed_memory, rows_in_block
from fenchel.errors import CaptureError, ProblemError

__all__ = ["LayerBlock", "LayerProblem", "layer_problem"]


@dataclass(frozen=True)
class LayerBlock:
    """Queries of some heads of some groups: g groups, h heads, q queries.

    Attributes:
        where: Slices of groups, heads and queries.
        templates: (g, n, d).
        queries: (g, h, q, d_h), and keys (g, h or 1, n, d_h) with scores = queries · keysᵀ.
        keys: Scaled keys without bias.
        lift: (h, d_h, d) with z = queries · lift, or None where z is the query itself.
        log_preference: (g or 1, h or 1, q or 1, n), normalised.
    """

    where: tuple[slice, slice, slice]
    templates: Tensor
    queries: Tensor
    keys: Tensor
    lift: Tensor | None
    log_preference: Tensor

    def scores(self) -> Tensor:
        """Scores s = Tz, (g, h, q, n)."""
        return self.queries @ self.keys.mT

    def evidence(self) -> Tensor:
        """The evidence z, (g, h, q, d)."""
        return self.queries if self.lift is None else self.queries @ self.lift

    def evidence_square(self) -> Tensor:
        """Squared norm of z, (g, h, q), without forming z."""
        if self.lift is None:
            return self.queries.square().sum(-1)
        return ((self.queries @ (self.lift @ self.lift.mT)) * self.queries).sum(-1).clamp(min=0)


@dataclass(frozen=True)
class LayerProblem:
    """All problems of one attention call; groups are sets of heads that share templates.

    Attributes:
        templates: (groups, n, d).
        queries: (groups, heads, m, d_h).
        keys: (groups, heads or 1, n, d_h), scaled, bias dropped.
        lift: (heads, d_h, d) or None.
        log_preference: (groups or 1, heads or 1, m or 1, n), normalised; uniform in rows that have no answer.
        batch: Batch size, by which groups divide.
    """

    templates: Tensor
    queries: Tensor
    keys: Tensor
    lift: Tensor | None
    log_preference: Tensor
    batch: int

    def by_head(self, values: Tensor) -> Tensor:
        """Results (groups, heads, m) as (batch, heads of the layer, m)."""
        return values.reshape(self.batch, -1, values.shape[-1])

    def blocks(self, memory_budget: int, arrays: int) -> Iterator[LayerBlock]:
        """Blocks whose working arrays, ``arrays`` of shape (rows, max(n, d)), fit in ``memory_budget`` bytes."""
        keep_freed_memory()
        groups, heads, m, _ = self.queries.shape
        most = rows_in_block(self.templates, memory_budget // arrays, self.queries.element_size())
        queries_each = min(m, most)
        heads_each = max(1, min(heads, most // m))
        groups_each = max(1, most // (heads * m))
        for g in range(0, groups, groups_each):
            for h in range(0, heads, heads_each):
                for q in range(0, m, queries_each):
                    yield self._block(
                        slice(g, g + groups_each), slice(h, h + heads_each), slice(q, q + queries_each)
                    )

    def _block(self, g: slice, h: slice, q: slice) -> LayerBlock:
        preference = self.log_preference
        for dim, part in enumerate((g, h, q)):
            if preference.shape[dim] > 1:
                preference = preference.narrow(
                    dim, part.start, min(part.stop, preference.shape[dim]) - part.start
                )
        return LayerBlock(
            where=(g, h, q),
            templates=self.templates[g],
            queries=self.queries[g, h, q],
            keys=self.keys[g, h] if self.keys.shape[1] > 1 else self.keys[g],
            lift=None if self.lift is None else self.lift[h],
            log_preference=preference,
        )


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
    query, key = call.query.to(dtype), call.key.to(dtype) * call.scaling
    batch, count, m, width = query.shape
    repeats = count // key.shape[1]
    _check_finite(call, query, key)
    chosen = None if heads is None else torch.as_tensor([head - 1 for head in heads], device=query.device)
    preference = _log_preference(call, dtype, key.shape[2])
    if chosen is not None:
        query = query.index_select(1, chosen)
        key = key.index_select(1, chosen // repeats)
        if preference.shape[1] > 1:
            preference = preference.index_select(1, chosen)
        repeats = 1
    if space == "key":
        groups = key.shape[1]
        queries = query.reshape(batch * groups, repeats, m, width)
        keys = key.reshape(batch * groups, 1, *key.shape[2:])
        if max(preference.shape[:2]) > 1:
            preference = preference.expand(batch, count if chosen is None else len(chosen), -1, -1)
            preference = preference.reshape(batch * groups, repeats, *preference.shape[2:])
        return LayerProblem(keys.squeeze(1), queries, keys, None, preference, batch)
    if call.inputs is None or call.key_weight is None:
        raise CaptureError(
            f'{call.site.name}: space="input" needs the inputs and the key map, which were not captured'
        )
    weight = call.key_weight.to(dtype)
    if call.key_bias is not None:
        key = key - call.key_bias.to(dtype)[_chosen_keys(chosen, count, call)].unsqueeze(1) * call.scaling
    if chosen is None:
        weight, key = weight.repeat_interleave(repeats, 0), key.repeat_interleave(repeats, 1)
    else:
        weight = weight.index_select(0, _chosen_keys(chosen, count, call))
    return LayerProblem(call.inputs.to(dtype) * call.scaling, query, key, weight, preference, batch)


def _chosen_keys(chosen: Tensor | None, count: int, call: AttentionCall) -> Tensor:
    key_heads = call.key.shape[1]
    if chosen is None:
        return torch.arange(key_heads, device=call.key.device)
    return chosen // (count // key_heads)


def _check_finite(call: AttentionCall, query: Tensor, key: Tensor) -> None:
    for name, value in (("queries", query), ("keys", key)):
        if not math.isfinite(float(value.sum())) and not bool(torch.isfinite(value).all()):
            raise ProblemError(
                f"{call.site.name}: {name} contain NaN or infinity; the model does not compute attention on this "
                f"text in {call.query.dtype} (try dtype float32)"
            )


def _log_preference(call: AttentionCall, dtype: torch.dtype, n: int) -> Tensor:
    """Normalised log preference, 4-dimensional; rows without any template are uniform and must not be counted."""
    if call.log_preference is None:
        return torch.full((1, 1, 1, n), -math.log(n), dtype=dtype, device=call.query.device)
    preference = call.log_preference.to(dtype)
    empty = torch.isneginf(preference).all(-1, keepdim=True)
    if bool(empty.any()):
        if bool((empty.squeeze(-1) & call.counted.unsqueeze(1)).any()):
            raise ProblemError(
                f"{call.site.name}: a query that is not padding may attend to nothing; it has no answer"
            )
        preference = preference.masked_fill(empty, 0)
    return preference.log_softmax(-1)
