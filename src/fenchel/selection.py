"""Keeping some rows of a record of tensors, and putting them back."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

__all__ = ["SHARED", "gather_rows", "put_rows", "rows_where", "select", "store"]

R = TypeVar("R")

SHARED: dict[str, bool] = {"shared": True}
"""Metadata of a dataclass field that belongs to a group, not to its rows."""


def rows_where(mask: Tensor) -> Tensor:
    """Indices (g, r') of the rows marked in ``mask`` (g, r), r' being the most that a group has.

    Groups with fewer are filled up with rows that are not marked, so that the result is rectangular.
    """
    most = int(mask.sum(-1).max())
    return torch.argsort(mask.to(torch.uint8), dim=-1, descending=True, stable=True)[:, :most]


def select(record: R, index: Tensor) -> R:
    """A dataclass of tensors (g, r, ...) restricted to the rows ``index`` (g, r').

    A tensor with one row stands for all rows and stays as it is, as does a field marked ``SHARED``. What is neither a
    tensor nor a record is asked for its ``rows``.
    """
    data: Any = record
    changes = {f.name: _selected(getattr(data, f.name), index) for f in fields(data) if not f.metadata}
    return replace(data, **changes)


def store(record: Any, part: Any, index: Tensor) -> None:
    """Write the rows of ``part`` into ``record`` at ``index`` (g, r'), in place; the inverse of :func:`select`.

    What one group or one row holds for all is data that steps do not change, and stays.
    """
    own = [f.name for f in fields(record) if not f.metadata and isinstance(getattr(record, f.name), Tensor)]
    rows = max(getattr(record, name).shape[1] for name in own)
    for name in own:
        into, value = getattr(record, name), getattr(part, name)
        if into.shape[:2] == (index.shape[0], rows):
            into.scatter_(1, _spread(index, value), value)


def put_rows(into: Tensor, rows: Tensor, index: Tensor, chosen: Tensor) -> Tensor:
    """Write those of ``rows`` (g, r', ...) that are chosen (g, r') into a tensor (g, r, ...) at ``index``, in place."""
    place, kept = _spread(index, rows), _spread(chosen, rows)
    return into.scatter_(1, place, torch.where(kept, rows, into.gather(1, place)))


def gather_rows(value: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (g, r') of a tensor (g, r, ...); one row that stands for all stays one row."""
    if value.shape[1] == 1:
        return value
    if index.shape[0] == 1:
        return value.index_select(1, index[0])
    value = value.expand(index.shape[0], *value.shape[1:])
    return value.gather(1, _spread(index, value))


def _selected(value: Any, index: Tensor) -> Any:
    if value is None:
        return None
    if is_dataclass(value):
        return select(value, index)
    return (
        gather_rows(value, index)
        if isinstance(value, Tensor)
        else value.rows(lambda own: gather_rows(own, index))
    )


def _spread(index: Tensor, value: Tensor) -> Tensor:
    features = value.shape[2:]
    return index.reshape(*index.shape, *(1,) * len(features)).expand(*index.shape, *features)
