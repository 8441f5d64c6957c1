"""A problem's queries cut into blocks of bounded working memory, and results in the problem's shape again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import cache, cached_property

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.conjugate import FiniteConjugate
from fenchel.family import Block, FunctionFamily, TemplateFamily
from fenchel.problem import Problem

__all__ = [
    "CACHE_BYTES",
    "DEFAULT_MEMORY_BUDGET",
    "QueryLayout",
    "is_rowwise",
    "keep_freed_memory",
    "layout_of",
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


class QueryLayout(ABC):
    """How a problem's leading dimensions become groups and rows, and results the problem's shape again.

    Args:
        problem: The problem whose queries are laid out.
        group_dims: The leading dimensions that are groups; the others are rows.
    """

    def __init__(self, problem: Problem, group_dims: list[int]) -> None:
        self.problem = problem
        self.lead = tuple(problem.shape)
        row_dims = [i for i in range(len(self.lead)) if i not in group_dims]
        self._order = group_dims + row_dims
        self._group_shape = tuple(self.lead[i] for i in group_dims)
        self._row_shape = tuple(self.lead[i] for i in row_dims)
        self.groups = math.prod(self._group_shape)
        self.rows = math.prod(self._row_shape)

    @abstractmethod
    def blocks(
        self, memory_budget: int, arrays: int, itemsize: int
    ) -> Iterator[tuple[Tensor, Tensor, Block]]:
        """Blocks of queries, each with the indices of its groups (g,) and rows (r,).

        Args:
            memory_budget: Bytes that the block's working arrays may take together.
            arrays: How many arrays of shape (rows, max(n, d)) the work keeps at once.
            itemsize: Bytes of one number.
        """

    def empty(self, *features: int, dtype: torch.dtype | None = None) -> Tensor:
        """An array (groups, rows, *features) for results."""
        dtype = self.problem.dtype if dtype is None else dtype
        return torch.empty(
            self.groups, self.rows, *features, dtype=dtype, device=self.problem.evidence.device
        )

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

    def _ranges(self, most: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Indices of groups and rows, at most so many rows of groups at once, or one."""
        device = self.problem.evidence.device
        for g in spans(self.groups, max(1, most // max(1, self.rows))):
            groups = torch.arange(g.start, g.stop, device=device)
            for r in spans(self.rows, min(self.rows, most)):
                yield groups, torch.arange(r.start, r.stop, device=device)


class _TemplateLayout(QueryLayout):
    """Groups are the leading dimensions along which templates differ.

    Heads of a layer that attend to the same templates become rows of one group, so that a Gram matrix or a product with
    the templates serves all of them; nothing that is broadcast is copied before its block is asked for.
    """

    def __init__(self, problem: Problem) -> None:
        templates, depth = problem.templates, len(problem.shape)
        padded = (1,) * (depth - 1 - (templates.dim() - 2)) + tuple(templates.shape[:-2])
        super().__init__(problem, [i for i in range(depth - 1) if padded[i] > 1])
        self._templates = templates.reshape(self.groups, *templates.shape[-2:])
        self._log_preference = self._arranged(problem.finite.log_weights)
        self._evidence = self._arranged(problem.evidence)
        self._alpha = self._arranged(problem.alpha_column)

    def _arranged(self, tensor: Tensor) -> Tensor:
        """A view with groups first and rows next; a dimension that is broadcast keeps size 1."""
        padded = tensor.reshape((1,) * (len(self.lead) + 1 - tensor.dim()) + tuple(tensor.shape))
        return padded.permute(*self._order, -1)

    def _take(self, arranged: Tensor, groups: Tensor, rows: Tensor) -> Tensor:
        """The rows asked for, (g or 1, r or 1, features); one row stands for all where all are the same."""
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

    @override
    def blocks(
        self, memory_budget: int, arrays: int, itemsize: int
    ) -> Iterator[tuple[Tensor, Tensor, Block]]:
        keep_freed_memory()
        for groups, rows in self._ranges(rows_in_block(self._templates, memory_budget // arrays, itemsize)):
            yield groups, rows, self._block(groups, rows)

    @cached_property
    def _wide(self) -> _TemplateLayout:
        return _TemplateLayout(self.problem.to(torch.float64))

    def _block(self, groups: Tensor, rows: Tensor) -> Block:
        def take(own: Tensor) -> Tensor:
            return self._take(self._arranged(own.unsqueeze(-1)), groups, rows).squeeze(-1)

        log_preference = self._take(self._log_preference, groups, rows)
        family = TemplateFamily(self._templates[groups], log_preference, self.problem.closeness.rows(take))
        evidence = self._take(self._evidence, groups, rows).expand(len(groups), len(rows), -1)
        # From the problem, whose preference is normalised anew.
        wide = None if self.problem.dtype == torch.float64 else cache(lambda: self._wide._block(groups, rows))
        return Block(family, evidence, self._take(self._alpha, groups, rows), wide)


class _ConjugateLayout(QueryLayout):
    """Groups are all leading dimensions, which a block keeps: φ is asked for a range of queries of all of them."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, list(range(len(problem.shape) - 1)))

    @override
    def blocks(
        self, memory_budget: int, arrays: int, itemsize: int
    ) -> Iterator[tuple[Tensor, Tensor, Block]]:
        keep_freed_memory()
        conjugate, device = self.problem.conjugate, self.problem.evidence.device
        each = max(1, memory_budget // (arrays * itemsize * self.groups * conjugate.width))
        for part in spans(self.rows, each):
            groups = torch.arange(self.groups, device=device)
            rows = torch.arange(part.start, part.stop, device=device)
            yield groups, rows, FunctionFamily.block(self.problem.queries(part))


def is_rowwise(problem: Problem) -> bool:
    """Whether rows of the problem respond over templates, on what their closeness offers."""
    return isinstance(problem.conjugate, FiniteConjugate) and problem.closeness.rowwise


def layout_of(problem: Problem) -> QueryLayout:
    """Rows over shared templates where the closeness offers a response of theirs, else ranges of queries."""
    return _TemplateLayout(problem) if is_rowwise(problem) else _ConjugateLayout(problem)
