"""A problem's queries cut into blocks of bounded working memory, and results in the problem's shape again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from fenchel.conjugate import FiniteConjugate
from fenchel.family import Block, FunctionFamily, TemplateFamily
from fenchel.problem import Problem

__all__ = [
    "CACHE_BYTES",
    "DEFAULT_MEMORY_BUDGET",
    "QueryLayout",
    "Where",
    "is_rowwise",
    "keep_freed_memory",
    "rows_in_block",
    "spans",
]

DEFAULT_MEMORY_BUDGET = 512 * 2**20
"""Bytes of working memory that a solve may use besides its input and its result."""

CACHE_BYTES = 2**20
"""Size aimed at for one (rows, n) array: elementwise work on more than a cache's worth runs at the speed of memory."""


def keep_freed_memory() -> None:
    """Keep the C allocator from handing every freed working array back to the operating system.

    glibc maps arrays above a threshold, 128 KB at first, page by page at every allocation; freeing one large array
    raises the threshold to its size. Without this a solve spends a quarter of its time on page faults. Once a process;
    what is compiled has memory of its own.
    """
    if not torch.compiler.is_compiling():
        _free_one_large_array()


@cache
def _free_one_large_array() -> None:
    torch.empty(31 * 2**20, dtype=torch.uint8)


def spans(count: int, each: int) -> Iterator[slice]:
    """Cut ``count`` things into blocks of ``each`` at most."""
    for start in range(0, count, each):
        yield slice(start, min(start + each, count))


def rows_in_block(templates: Tensor, array_bytes: int, itemsize: int, *, of_a_cache: bool = True) -> int:
    """How many rows to work on at once, at least 1.

    Args:
        templates: (..., n, d).
        array_bytes: What one array of shape (rows, max(n, d)) may take.
        itemsize: Bytes of one number.
        of_a_cache: Whether an array should fit in a processor's cache too.
    """
    n, d = templates.shape[-2:]
    fitting = max(1, array_bytes // (max(n, d) * itemsize))
    if not of_a_cache:
        return fitting
    # In Gram coordinates, n <= 2d, the arrays that the iteration works on are (rows, n).
    busy = n if n <= 2 * d else max(n, d)
    return max(1, min(fitting, max(64, CACHE_BYTES // (busy * itemsize))))


Where = tuple[Tensor, Tensor]
"""Where the rows of a block are, indices of groups (g, 1) and of rows (1, r)."""


class QueryLayout:
    """How a problem's leading dimensions become groups and rows, and results the problem's shape again.

    Where rows respond over templates, groups are the leading dimensions along which templates differ: heads of a layer
    that attend to the same templates become rows of one group, so that a product with the templates serves all of
    them; nothing that is broadcast is copied before its block is asked for. Else groups are all leading dimensions,
    which a block keeps: φ is asked for a range of queries of all of them.

    Args:
        problem: The problem whose queries are laid out.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.lead, self._by_rows = problem, tuple(problem.shape), is_rowwise(problem)
        depth = len(self.lead)
        group_dims = list(range(depth - 1))
        if self._by_rows:
            own = problem.templates.shape[:-2]
            padded = (1,) * (depth - 1 - len(own)) + tuple(own)
            group_dims = [i for i in group_dims if padded[i] > 1]
        row_dims = [i for i in range(depth) if i not in group_dims]
        self._order = group_dims + row_dims
        self._group_shape = tuple(self.lead[i] for i in group_dims)
        self._row_shape = tuple(self.lead[i] for i in row_dims)
        self.groups = math.prod(self._group_shape)
        self.rows = math.prod(self._row_shape)

    def blocks(
        self, memory_budget: int, arrays: int, itemsize: int | None = None
    ) -> Iterator[tuple[Where, Block]]:
        """Blocks of queries, each with where its rows are.

        Args:
            memory_budget: Bytes that the block's working arrays may take together.
            arrays: How many arrays of shape (rows, max(n, d)) the work keeps at once.
            itemsize: Bytes of one number; None is those of the problem's dtype.
        """
        keep_freed_memory()
        device, bits = self.problem.evidence.device, torch.finfo(self.problem.dtype).bits
        itemsize = bits // 8 if itemsize is None else itemsize
        if self._by_rows:
            most = rows_in_block(self.problem.templates, memory_budget // arrays, itemsize)
            several = max(1, most // max(1, self.rows))
        else:
            width = self.problem.conjugate.width
            most = max(1, memory_budget // (arrays * itemsize * self.groups * width))
            several = self.groups
        for g in spans(self.groups, several):
            groups = torch.arange(g.start, g.stop, device=device)
            for r in spans(self.rows, most):
                rows = torch.arange(r.start, r.stop, device=device)
                block = self._block(groups, rows) if self._by_rows else None
                where = groups[:, None], rows[None, :]
                yield where, block or FunctionFamily.block(self.problem.queries(r))

    def solved(
        self, function: Callable[[Where, Block], Mapping[str, Tensor | None]], *how: Any
    ) -> dict[str, Tensor]:
        """What a function of a block gives by name, (g, r, ...), of all queries in the problem's shape (..., m, ...).

        Args:
            function: From where rows are and the rows to tensors, and None for none.
            *how: As :meth:`blocks` takes it.
        """
        found: dict[str, Tensor] = {}
        for where, block in self.blocks(*how):
            for name, part in function(where, block).items():
                if part is not None:
                    if name not in found:
                        found[name] = part.new_empty(self.groups, self.rows, *part.shape[2:])
                    found[name][where] = part
        return {name: self.restore(whole) for name, whole in found.items()}

    def restore(self, rows: Tensor) -> Tensor:
        """Results (groups, rows, ...) in the problem's own shape (..., m, ...)."""
        features = rows.shape[2:]
        spread = rows.reshape(*self._group_shape, *self._row_shape, *features)
        inverse = [self._order.index(i) for i in range(len(self.lead))]
        return spread.permute(*inverse, *range(len(self.lead), spread.dim())).contiguous()

    def arrange(self, tensor: Tensor) -> Tensor:
        """Inverse of :meth:`restore`: (..., m, features) as (groups, rows, features)."""
        spread = tensor.expand(*self.lead, tensor.shape[-1])
        return spread.permute(*self._order, -1).reshape(self.groups, self.rows, tensor.shape[-1])

    def _take(self, tensor: Tensor, groups: Tensor, rows: Tensor) -> Tensor:
        """The rows asked for, (g or 1, r or 1, features); one row stands for all where all are the same."""
        padded = tensor.reshape((1,) * (len(self.lead) + 1 - tensor.dim()) + tuple(tensor.shape))
        arranged = padded.permute(*self._order, -1)
        group_axes = arranged.shape[: len(self._group_shape)]
        row_axes = arranged.shape[len(self._group_shape) : -1]
        index: list[Tensor] = []
        for axes, shape, wanted, position in (
            (group_axes, self._group_shape, groups, (-1, 1)),
            (row_axes, self._row_shape, rows, (1, -1)),
        ):
            if math.prod(axes) == 1:
                wanted = wanted[:1]
            for size, part in zip(axes, torch.unravel_index(wanted, shape or (1,)), strict=False):
                index.append((part if size > 1 else torch.zeros_like(part)).reshape(position))
        return arranged[tuple(index)]

    @cached_property
    def _wide(self) -> QueryLayout:
        return QueryLayout(self.problem.to(torch.float64))

    def _block(self, groups: Tensor, rows: Tensor) -> Block:
        problem = self.problem

        def take(own: Tensor) -> Tensor:
            return self._take(own, groups, rows)

        templates = problem.templates.reshape(self.groups, *problem.templates.shape[-2:])[groups]
        closeness = problem.closeness.rows(lambda own: take(own.unsqueeze(-1)).squeeze(-1))
        family = TemplateFamily(templates, take(problem.finite.log_weights), closeness)
        evidence = take(problem.evidence).expand(len(groups), len(rows), -1)
        # From the problem, whose preference is normalised anew.
        wide = None if problem.dtype == torch.float64 else cache(lambda: self._wide._block(groups, rows))
        return Block(family, evidence, take(problem.alpha_column), wide)


def is_rowwise(problem: Problem) -> bool:
    """Whether rows of the problem respond over templates, on what their closeness offers."""
    return isinstance(problem.conjugate, FiniteConjugate) and problem.closeness.rowwise
