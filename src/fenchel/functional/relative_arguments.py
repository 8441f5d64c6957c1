"""The door of relative attention: what is added to keys and values by pair, checked against the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments.causal_bias import without_causal_bias
from fenchel.arguments.tensor import (
    WHOLE,
    broadcasts_to,
    check_device,
    check_dtype,
    check_tensor,
    checked_scale,
    values_are_known,
)
from fenchel.closeness import AbstractCloseness
from fenchel.errors import ProblemError
from fenchel.functional.arguments import checked
from fenchel.functional.precision import compute_dtype
from fenchel.functional.relative_shift import distance_index

__all__ = ["RelativeArguments", "checked_relative"]


@dataclass(frozen=True)
class RelativeArguments:
    """Arguments of a call that fit together.

    Attributes:
        query: z, (B, H, m, d).
        key: (B, H, n, d), of every head of the query.
        value: (B, H, n, d_v).
        relative: r, (B or 1, H or 1, P, d).
        index: int64 (1 or B, 1, m, n), or None for distances.
        relative_value: (B or 1, H or 1, P, d_v), or None.
        log_preference: As it was given.
        alpha: A number, or (B or 1, H or 1, m or 1).
        scale: A number; a tensor has been multiplied into keys and r.
        closeness: D, or None.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    relative: Tensor
    index: Tensor | None
    relative_value: Tensor | None
    log_preference: Tensor | None
    alpha: float | Tensor
    scale: float
    closeness: AbstractCloseness | None

    @property
    def column(self) -> float | Tensor:
        """α, a number or (B or 1, H or 1, m or 1, 1)."""
        return self.alpha.unsqueeze(-1) if isinstance(self.alpha, Tensor) else self.alpha

    @property
    def pair_index(self) -> Tensor:
        """The row of r for each pair, (1 or B, 1, m, n)."""
        if self.index is not None:
            return self.index
        return distance_index(self.query.shape[2], self.key.shape[2], self.query.device)[None, None]

    def to(self, dtype: torch.dtype) -> RelativeArguments:
        """The same with its tensors in another dtype."""
        return replace(
            self,
            query=self.query.to(dtype),
            key=self.key.to(dtype),
            value=self.value.to(dtype),
            relative=self.relative.to(dtype),
            relative_value=None if self.relative_value is None else self.relative_value.to(dtype),
        )

    @property
    def widened(self) -> RelativeArguments:
        """The same in the dtype of bounds."""
        return self.to(compute_dtype(self.query.dtype))


def checked_relative(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    relative: Tensor,
    index: Tensor | None,
    *,
    relative_value: Tensor | None,
    log_preference: Tensor | None,
    alpha: float | Tensor,
    scale: float | Tensor | None,
    closeness: AbstractCloseness | None,
    **options: Any,
) -> RelativeArguments:
    """The arguments of a relative attention call, if they fit together.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    checked(query, key, value, log_preference=log_preference, alpha=alpha, scale=scale, **options)
    _check_table("relative", relative, key, query)
    if relative_value is not None:
        _check_table("relative_value", relative_value, value, query)
        if relative_value.shape[2] != relative.shape[2]:
            raise ProblemError(
                f"relative_value has {relative_value.shape[2]} rows and relative {relative.shape[2]}; expected one "
                "table of each pair, with as many rows"
            )
    queries, keys, rows = query.shape[2], key.shape[2], relative.shape[2]
    log_preference = without_causal_bias("log_preference", log_preference, queries, keys, query.device)
    if index is not None:
        index = _checked_index(index, (query.shape[0], queries, keys), rows, query)
    elif rows != queries + keys - 1:
        raise ProblemError(
            f"relative has {rows} rows and index is None; expected one row a distance, {queries} + {keys} - 1 = "
            f"{queries + keys - 1}, or an index (queries, keys) of which row a pair has"
        )
    if scale is None:
        scale = max(query.shape[-1], 1) ** -0.5
    scale = checked_scale(scale, query)
    if isinstance(scale, Tensor):
        key, relative, scale = key * scale.to(key.dtype), relative * scale.to(relative.dtype), 1.0
    if isinstance(alpha, Tensor):
        alpha = alpha.to(query.device).reshape((1,) * (3 - alpha.dim()) + tuple(alpha.shape))
    sharing = query.shape[1] // max(1, key.shape[1])
    if sharing > 1:
        key, value = (part.repeat_interleave(sharing, 1) for part in (key, value))
    return RelativeArguments(
        query, key, value, relative, index, relative_value, log_preference, alpha, float(scale), closeness
    )


def _check_table(name: str, table: Any, rows_of: Tensor, query: Tensor) -> None:
    check_tensor(name, table, "(batch or 1, heads or 1, rows, dim)", dims=4)
    check_device(name, table, query.device)
    check_dtype(name, table, query.dtype)
    wanted = (*query.shape[:2], table.shape[2], rows_of.shape[3])
    if table.shape[3] != wanted[3] or not broadcasts_to(tuple(table.shape), wanted):
        raise ProblemError(
            f"{name} has shape {tuple(table.shape)}; expected (batch or 1, heads or 1, rows, dim) = "
            f"({wanted[0]} or 1, {wanted[1]} or 1, rows, {wanted[3]})"
        )


def _checked_index(index: Any, sizes: tuple[int, int, int], rows: int, query: Tensor) -> Tensor:
    form = "(queries, keys), or (batch, queries, keys), of rows of relative"
    check_tensor("index", index, form, dtypes=WHOLE)
    check_device("index", index, query.device)
    if tuple(index.shape) not in (sizes, sizes[1:]):
        raise ProblemError(f"index has shape {tuple(index.shape)}; expected {form}: {sizes[1:]} or {sizes}")
    if values_are_known(index) and index.numel():
        least, most = int(index.min()), int(index.max())
        if least < 0 or most >= rows:
            wrong = least if least < 0 else most
            raise ProblemError(f"index holds {wrong}; expected rows of relative, from 0 to {rows - 1}")
    return index.unsqueeze(-3) if index.dim() == 3 else index[None, None]
