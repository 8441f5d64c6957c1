"""Blocks of tensors: grids cut into boxes, the parts of tensors in them and their concatenation; subsets of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fenchel.tensors import is_transformed, listed

# Preferred size of one (rows, n) array: elementwise work on larger ones is limited by memory bandwidth.
CACHE_BYTES = 2**20


def keep_freed_memory() -> None:
    """Keep the C allocator from returning every freed working array to the operating system.

    glibc maps arrays above a threshold, 128 KB at first, page by page at every allocation; freeing one large array
    raises the threshold to its size. Without this a solve spends a quarter of its time on page faults. Runs once in a
    process; compiled code manages its own memory.
    """
    if not torch.compiler.is_compiling():
        _free_one_large_array()


@cache
def _free_one_large_array() -> None:
    torch.empty(31 * 2**20, dtype=torch.uint8)


def spans(count: int, each: int) -> Iterator[slice]:
    """Slices of at most ``each`` of ``count`` elements."""
    for start in range(0, count, each):
        yield slice(start, min(start + each, count))


Box = tuple[slice, ...]
"""A part of a grid, one slice for each of its dimensions."""


def boxes(sizes: Sequence[int], most: int) -> Iterator[Box]:
    """Cut a grid into boxes of at most ``most`` elements, which are whole in the last dimensions where that fits.

    Example:
        >>> [[(span.start, span.stop) for span in box] for box in boxes((2, 3), 2)]
        [[(0, 1), (0, 2)], [(0, 1), (2, 3)], [(1, 2), (0, 2)], [(1, 2), (2, 3)]]
    """
    cuts = []
    for size in reversed(sizes):
        each = max(1, min(size, most))
        most //= each
        cuts.append(list(spans(size, each)))
    return product(*reversed(cuts))


def part_of(tensor: Tensor, box: Box) -> Tensor:
    """View of a tensor in a box of its first dimensions; dimensions of size 1 are kept."""
    return tensor[tuple(s if size > 1 else slice(None) for s, size in zip(box, tensor.shape, strict=False))]


def pieces_of(tensor: Tensor | None, cut: Sequence[Box], dims: tuple[int, int | None]) -> list[Any]:
    """The parts of a tensor, or None, in all boxes of a grid, in their order; dimensions of size 1 are kept.

    Splits once along each of two ``dims`` (None for a dimension that it lacks), so that its gradient is one array.
    """

    def split(x: Tensor | None, axis: int) -> Sequence[Tensor | None]:
        dim, starts = dims[axis], {box[axis].start for box in cut}
        if x is None or dim is None or len(starts) == 1 or x.shape[dim] == 1:
            return [x] * len(starts)
        return x.split(cut[0][axis].stop, dim)

    return [piece for part in split(tensor, 0) for piece in split(part, 1)]


def rows_of(part: Tensor, lead: Sequence[int], groups: int) -> Tensor:
    """Reshape a tensor (..., c) that broadcasts to (*lead, c) to (g or 1, r or 1, c), 1 where all are the same.

    Args:
        part: The part of a tensor in a box.
        lead: The sizes of the box.
        groups: Number of its dimensions that are groups; the others are rows.
    """
    shape = part.shape[:-1]
    kept = [
        full if math.prod(dims) > 1 else dims
        for dims, full in ((shape[:groups], lead[:groups]), (shape[groups:], lead[groups:]))
    ]
    return part.expand(*kept[0], *kept[1], -1).reshape(*map(math.prod, kept), part.shape[-1])


def joined(pieces: Iterable[tuple[Box, Tensor]], dims: tuple[int, int]) -> Tensor:
    """Concatenate results of boxes of two dimensions, in the order of :func:`boxes`, along these."""
    result: dict[int, list[Tensor]] = {}
    for (first, _), piece in pieces:
        result.setdefault(first.start, []).append(piece)
    rows = [some[0] if len(some) == 1 else torch.cat(some, dims[1]) for some in result.values()]
    return rows[0] if len(rows) == 1 else torch.cat(rows, dims[0])


# Target size of one (b, H, queries, n) array of a part.
PART_BYTES = 2**24

# Minimum number of queries of a part, since each part passes over all keys.
LEAST_QUERIES = 32


def boxes_of_queries(
    query: Tensor, keys: int, *, whole_batch: bool = False, part_bytes: int | None = None
) -> list[Box]:
    """Ranges of sequences and of queries in parts of bounded size.

    Args:
        query: (B, H, m, any), with the dtype of the work.
        keys: n.
        whole_batch: Whether all sequences are in every part.
        part_bytes: The size of an array (b, H, queries, n) of a part; None is ``PART_BYTES``.
    """
    keep_freed_memory()
    batch, heads, queries = query.shape[:3]
    together = batch if whole_batch else 1
    query_bytes = together * heads * keys * query.element_size()
    each = max(LEAST_QUERIES, (part_bytes or PART_BYTES) // max(1, query_bytes))
    # A graph for any number of sequences cannot be cut by how many there are.
    if torch.compiler.is_compiling() or batch * queries <= each * together:
        return [(slice(0, batch), slice(0, queries))]
    result = boxes((batch // together, queries), each)
    return [(slice(0, batch) if whole_batch else sequences, span) for sequences, span in result]


def gather_rows(value: Tensor, index: Tensor) -> Tensor:
    """The rows ``index`` (g, r') of a tensor (g, r, ...); one row that stands for all stays one row."""
    if value.shape[1] == 1:
        return value
    if index.shape[0] == 1:
        return value.index_select(1, index[0])
    value = value.expand(index.shape[0], *value.shape[1:])
    features = value.shape[2:]
    expanded = index.reshape(*index.shape, *(1,) * len(features)).expand(*index.shape, *features)
    return value.gather(1, expanded)


def recomputed(function: Callable[..., Tensor], *arguments: Any, random: bool = False) -> Tensor:
    """Call a function whose intermediate results are recomputed in the backward pass.

    ``torch.func`` does not support this: inside its transforms everything is stored.

    Args:
        function: The function.
        *arguments: Its arguments.
        random: Whether it draws random numbers.
    """
    if not torch.is_grad_enabled() or is_transformed():
        return function(*arguments)
    result = checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=random)
    assert isinstance(result, Tensor)  # noqa: S101 -- checkpoint is not annotated
    return result


def in_parts(
    function: Callable[..., Tensor],
    cut: Sequence[Box],
    by_query: Sequence[Tensor | None],
    by_key: Sequence[Tensor | None],
    *,
    again: bool = True,
) -> Tensor:
    """Apply a function to the parts of tensors in boxes of sequences and queries, (B, H, m, ...).

    Args:
        function: A function of a box and of the parts of all tensors in it.
        cut: The boxes.
        by_query: Tensors (B or 1, H or 1, m or 1, any), or None.
        by_key: Tensors (B or 1, H or 1, n, any), or None.
        again: Whether the backward pass recomputes a part instead of keeping its arrays.
    """
    pieces = [
        pieces_of(x, cut, dims) for dims, some in (((0, 2), by_query), ((0, None), by_key)) for x in some
    ]
    parts = (
        recomputed(function, *each, random=True) if again else function(*each)
        for each in zip(cut, *pieces, strict=True)
    )
    return joined(zip(cut, parts, strict=True), (0, 2))


@dataclass(frozen=True)
class Part:
    """Some rows of a block.

    Attributes:
        groups: Indices of the groups, (g',); None is all.
        index: Indices of the rows of these groups, (g', r'); None is all.
    """

    groups: Tensor | None = None
    index: Tensor | None = None

    @classmethod
    def of(cls, marked: Tensor, *, whole: bool) -> Part | None:
        """The rows that are marked, bool (g, r), or all if ``whole``; None where none is marked.

        Groups with fewer marked rows than others get some that are not marked, so that the part is rectangular.
        """
        if whole:
            return cls() if bool(marked.any()) else None
        count = marked.sum(1)
        # Read once.
        counts = listed(count)
        largest = max(counts)
        if largest == 0:
            return None
        groups = None if all(counts) else count.nonzero().squeeze(-1)
        if groups is None and largest == marked.shape[1]:
            return cls()
        marked = marked if groups is None else marked[groups]
        order = torch.argsort(marked.to(torch.uint8), dim=-1, descending=True, stable=True)
        return cls(groups, order[:, :largest])

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
        """A copy of a tensor (g, r, ...) with these rows replaced."""
        if self.index is None:
            return rows
        groups = torch.arange(len(into), device=into.device) if self.groups is None else self.groups
        return into.index_put((groups.unsqueeze(-1), self.index), rows)
