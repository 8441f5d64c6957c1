"""Taking some of the rows (g, r, ...) of tensors, and putting them back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.tensors import listed

__all__ = ["Part", "gather_rows", "narrowed", "rows_where"]


def narrowed(tensor: Tensor, dim: int, span: slice) -> Tensor:
    """Part of a tensor along a dimension, a view; all of it where it has size 1 there, for everything."""
    return tensor if tensor.shape[dim] == 1 else tensor[(slice(None),) * dim + (span,)]


def rows_where(mask: Tensor, most: int) -> Tensor:
    """Indices (g, r') of the rows marked in ``mask`` (g, r), r' = ``most`` being the most that a group has.

    Groups with fewer are filled up with rows that are not marked, so that the result is rectangular.
    """
    return torch.argsort(mask.to(torch.uint8), dim=-1, descending=True, stable=True)[:, :most]


def gather_rows(value: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (g, r') of a tensor (g, r, ...); one row that stands for all stays one row."""
    if value.shape[1] == 1:
        return value
    if index.shape[0] == 1:
        return value.index_select(1, index[0])
    value = value.expand(index.shape[0], *value.shape[1:])
    features = value.shape[2:]
    place = index.reshape(*index.shape, *(1,) * len(features)).expand(*index.shape, *features)
    return value.gather(1, place)


@dataclass(frozen=True)
class Part:
    """Some rows of a block.

    Attributes:
        groups: Of which groups, (g',); None is all.
        index: Which rows of these, (g', r'); None is all.
    """

    groups: Tensor | None
    index: Tensor | None

    @classmethod
    def of(cls, wanted: Tensor, *, whole: bool) -> Part | None:
        """The rows that are marked, bool (g, r), or all where they cannot be taken apart; None where there are none."""
        of_group = wanted.sum(1)
        # One look for all that depends on it.
        counts = listed(of_group)
        most = max(counts)
        if most == 0:
            return None
        if whole:
            return cls(None, None)
        if all(counts):
            return cls(None, None if most == wanted.shape[1] else rows_where(wanted, most))
        groups = of_group.nonzero().squeeze(-1)
        return cls(groups, rows_where(wanted[groups], most))

    def split(self, wanted: Tensor, width: int | None, array_bytes: int) -> list[Part]:
        """Parts of these rows whose arrays of ``width`` numbers a row, in float64, are of about that size at most."""
        groups, rows = wanted.shape if self.index is None else self.index.shape
        if width is None or 8 * groups * rows * width <= array_bytes:
            return [self]
        index = self.index
        if index is None:
            index = torch.arange(rows, device=wanted.device).expand(groups, -1)
        each = max(1, array_bytes // (8 * groups * width))
        return [Part(self.groups, part) for part in index.split(each, dim=1)]

    @property
    def is_all(self) -> bool:
        """Whether these are all rows."""
        return self.groups is None and self.index is None

    def of_groups(self, x: Tensor) -> Tensor:
        """The groups of a tensor (g or 1, ...)."""
        return x if self.groups is None or len(x) == 1 else x[self.groups]

    def pick(self, x: Tensor) -> Tensor:
        """The rows of a tensor (g or 1, r or 1, ...)."""
        x = self.of_groups(x)
        return x if self.index is None else gather_rows(x, self.index)

    def put(self, into: Tensor, rows: Tensor) -> Tensor:
        """A tensor (g, r, ...) with these rows replaced."""
        if self.index is None:
            return rows
        groups = torch.arange(len(into), device=into.device) if self.groups is None else self.groups
        return into.index_put((groups.unsqueeze(-1), self.index), rows)
