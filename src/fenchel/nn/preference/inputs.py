"""What a preference may look at, and functions of indices that are evaluated on it or read parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.nn.arguments import first_query_position
from fenchel.tensors import BOOL, FLOATING, check_tensor, check_type

MOST_POSITIONS = 2**31


@dataclass(frozen=True)
class AttentionInputs:
    """What is known before any query meets a key: sizes, positions, and the inputs of the attention layer.

    Letters: B batch, H heads of the queries, m queries, n keys. Key j is at position j; query i is at position
    ``query_offset + i`` on the same axis.

    Attributes:
        batch: B.
        heads: H.
        queries: m.
        keys: n.
        device: Where the layer computes.
        dtype: In what it computes; log-weights come in it.
        query_inputs: The layer's inputs at the queries, (B, m, width).
        key_inputs: The layer's inputs at the keys, the sentence or the image, (B, n, width).
        key_padding: True where a key is padding, bool (B, n), as in :class:`torch.nn.MultiheadAttention`.
        query_offset: Position of the first query; n - m when decoding with a cache. None where it was not given:
            preferences that look at positions then take 0 where m ≥ n, and raise an error where m < n. Read
            :attr:`first_query`, :attr:`query_positions` or :meth:`query_position`, which do so.
        query_padding: True where a query is padding, bool (B, m), for preferences that ask how many queries there are.

    Raises:
        ProblemError: If a size is negative, or a tensor has another shape, device or dtype than the sizes say.

    Example:
        >>> inputs = AttentionInputs(1, 2, 3, 5, torch.device("cpu"), torch.float32, query_offset=2)
        >>> inputs.query_positions.tolist()
        [2, 3, 4]
    """

    batch: int
    heads: int
    queries: int
    keys: int
    device: torch.device
    dtype: torch.dtype
    query_inputs: Tensor | None = None
    key_inputs: Tensor | None = None
    key_padding: Tensor | None = None
    query_offset: int | None = None
    query_padding: Tensor | None = None

    def __post_init__(self) -> None:
        if torch.jit.is_tracing():  # pyright: ignore[reportPrivateImportUsage]
            raise ProblemError(
                "torch.jit.trace is not supported, since it makes tensors of sizes; use torch.export or torch.compile"
            )
        sizes = ("batch", "heads", "queries", "keys")
        for name in sizes if self.query_offset is None else (*sizes, "query_offset"):
            size = getattr(self, name)
            # Sizes of a graph have a type of their own, and are held to whatever they are compared with.
            whole = isinstance(size, (int, torch.SymInt)) and not isinstance(size, bool)
            if not whole or size < 0 or (not torch.compiler.is_compiling() and size >= MOST_POSITIONS):
                raise ProblemError(
                    f"{name} is {shown(size)}; expected a whole number of at least 0, below 2**31"
                )
        check_type("device", self.device, torch.device, "a torch.device")
        if self.dtype not in FLOATING:
            raise ProblemError(
                f"dtype is {shown(self.dtype)}; expected one of {', '.join(map(str, FLOATING))}"
            )
        for of, count in (("query", self.queries), ("key", self.keys)):
            padding_form = f"(batch, tokens), True where a {of} is padding"
            self._check_tensor(f"{of}_inputs", "(batch, tokens, width)", FLOATING, 3, count)
            self._check_tensor(f"{of}_padding", padding_form, BOOL, 2, count)

    def _check_tensor(
        self, name: str, form: str, dtypes: tuple[torch.dtype, ...], dims: int, tokens: int
    ) -> None:
        tensor: Tensor | None = getattr(self, name)
        if tensor is None:
            return
        form, sizes = f"{form} with batch {self.batch} and {tokens} tokens", (self.batch, tokens, None)
        where: dict[str, Any] = {"device": self.device, "other": "the layer"}
        check_tensor(name, tensor, form, dtypes=dtypes, sizes=sizes[:dims], **where)

    def required(self, name: str, *, reader: str, width: int | None = None) -> Tensor:
        """The tensor ``query_inputs`` or ``key_inputs``, for a preference that cannot do without it.

        Args:
            name: Which of the two.
            reader: The preference that reads it, for the message.
            width: Its last dimension, if the preference was built for one.

        Raises:
            ProblemError: If it is None or of another width.
        """
        tensor: Tensor | None = getattr(self, name)
        argument = name.removesuffix("_inputs")
        if tensor is None:
            raise ProblemError(
                f"{reader} looks at {name}, which is None; pass the layer's {argument} argument, before projection, "
                f"as AttentionInputs(..., {name}={argument})."
            )
        if width is not None and tensor.shape[-1] != width:
            raise ProblemError(
                f"{name} (the layer's {argument} argument) has width {tensor.shape[-1]}, but {reader} was built with "
                f"{argument}_dim={width}."
            )
        return tensor

    def query_position(self) -> Callable[[Tensor], Tensor]:
        """The function from the index of a query to its position, for functions of indices to use.

        Raises:
            ProblemError: As :attr:`first_query`.
        """
        first = self.first_query
        if first == 0:
            return unchanged
        # A number would be compiled into a kernel, which would then be compiled again for every offset.
        offset = torch.full((), first, dtype=torch.long, device=self.device)
        return lambda index: index + offset

    def by_distance(self, function: Callable[[Tensor, Tensor], Tensor]) -> IndexFunction:
        """A function of the head and of how far the key is behind the query, as one of indices.

        Raises:
            ProblemError: As :attr:`first_query`.
        """
        position = self.query_position()
        return lambda b, h, q, k: function(h, k - position(q))

    def by_offset(self, columns: int, function: Callable[[Tensor, Tensor, Tensor], Tensor]) -> IndexFunction:
        """A function of the head, and of how many rows below the query and columns to its right the key is, likewise.

        Args:
            columns: Of the grid whose rows, one after another, are the positions.
            function: Of head, rows and columns.
        """
        position = self.query_position()

        def at_offset(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            here = position(q)
            return function(h, k // columns - here // columns, k % columns - here % columns)

        return at_offset

    @property
    def first_query(self) -> int:
        """Position of the first query.

        Raises:
            ProblemError: If ``query_offset`` was not given and there are fewer queries than keys.
        """
        return first_query_position(self.query_offset, self.queries, self.keys)

    @property
    def query_positions(self) -> Tensor:
        """Absolute positions of the queries, int64 (m,)."""
        first = self.first_query
        return torch.arange(first, first + self.queries, device=self.device)

    @property
    def key_positions(self) -> Tensor:
        """Absolute positions of the keys, int64 (n,)."""
        return torch.arange(self.keys, device=self.device)


def unchanged(index: Tensor) -> Tensor:
    """The position of a query where the first is at 0."""
    return index


IndexFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of the indices (b, h, q, k) of batch, head, query and key, each an integer tensor, often a scalar."""


def on_grid(function: IndexFunction, inputs: AttentionInputs, *, one_head: bool = False) -> Tensor:
    """All values of a function of indices, (B, H, m, n) with size 1 for every index that it does not read.

    Args:
        function: Of indices (b, h, q, k) that broadcast.
        inputs: Gives the ranges of the indices.
        one_head: Evaluate at head 0 alone, for a function that is the same for every head.
    """
    ranges = (inputs.batch, 1 if one_head else inputs.heads, inputs.queries, inputs.keys)
    values = function(
        *(_axis(own, torch.arange(size, device=inputs.device)) for own, size in enumerate(ranges))
    )
    return values.reshape((1,) * (4 - values.dim()) + tuple(values.shape))


def on_diagonals(function: IndexFunction, inputs: AttentionInputs, *, one_head: bool = False) -> Tensor:
    """:func:`on_grid` for a function that reads neither b nor more of q and k than k - q: evaluated m + n - 1 times.

    Args:
        function: Of indices (b, h, q, k) that broadcast, and of k - q for negative k too.
        inputs: Gives the ranges of the indices.
        one_head: Evaluate at head 0 alone, for a function that is the same for every head.
    """
    m, n = inputs.queries, inputs.keys
    if m == 0 or n == 0:
        return on_grid(function, inputs, one_head=one_head)
    zero = torch.zeros(1, 1, 1, 1, dtype=torch.long, device=inputs.device)
    heads = _axis(1, torch.arange(1 if one_head else inputs.heads, device=inputs.device))
    distances = _axis(3, torch.arange(1 - m, n, device=inputs.device))
    values = function(zero, heads, zero, distances).squeeze(2)
    # Row i is the window of n distances that begins at -i.
    return _skewed(values, m, n) if torch.compiler.is_compiling() else values.unfold(-1, n, 1).flip(-2)


def _skewed(values: Tensor, m: int, n: int) -> Tensor:
    """The same windows (..., m, n) of (..., m + n - 1) values, for sizes that may be symbols in a graph.

    Under one another and read as rows that are one shorter, copies of the values move by one from row to row. A
    compiler makes one expression of that, where eager makes an array twice as large as the result.
    """
    copies = torch.nn.functional.pad(values, (0, 1)).unsqueeze(-2).expand(*values.shape[:-1], m, -1)
    shifted = copies.flatten(-2)[..., m - 1 : m - 1 + m * (m + n - 1)]
    return shifted.unflatten(-1, (m, m + n - 1))[..., :n]


def _axis(own: int, indices: Tensor) -> Tensor:
    return indices.reshape([-1 if axis == own else 1 for axis in range(4)])


def cut(parameter: Tensor, dim: int, start: int, length: int) -> Tensor:
    """Entries ``start`` to ``start + length`` of a parameter along a dimension.

    A view of all entries is contiguous and one of some is not, so that a graph that is exported for any length would be
    made for some only: there it is a copy.
    """
    if torch.compiler.is_exporting():
        return parameter.index_select(dim, torch.arange(start, start + length, device=parameter.device))
    return parameter.narrow(dim, start, length)


def table(parameter: Tensor) -> Tensor:
    """A parameter that a function of indices may read: at least float32, and a tensor of its own.

    A fused kernel refuses to read one tensor that needs a gradient twice, as the product of a preference with itself
    would, and it adds up gradients in the dtype of the table.
    """
    precise = parameter.to(torch.promote_types(parameter.dtype, torch.float32))
    return precise.clone() if precise is parameter and parameter.requires_grad else precise
