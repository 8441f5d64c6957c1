"""Checks of the arguments of modules, and the inputs of preferences."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import ARGUMENTS, one_of, shown
from fenchel.errors import ProblemError
from fenchel.tensors import (
    BOOL,
    FLOATING,
    check_tensor,
    check_type,
    checked_argument,
)

# Rules of sizes that differ from the general one.
_RULES = {"max_steps": "max_steps", "width": "width", "heads": "head_count", "num_heads": "head_count"}


def check_sizes(owner: str, **sizes: Any) -> None:
    """Raise unless every size is a whole number of at least 1, within the limits of layers.

    Raises:
        ProblemError: If not; the message names the argument, its owner and its value.

    Example:
        >>> check_sizes("ALiBi", heads=2.5)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: heads of ALiBi is 2.5; expected a whole number from 1 to 65,536, such as 8.
    """
    for name, size in sizes.items():
        checked_argument(_RULES.get(name, "size"), size, name=f"{name} of {owner}")


def check_positive(owner: str, **numbers: Any) -> None:
    """Raise unless every number is positive and finite, also in float32.

    Raises:
        ProblemError: If not; the message names the argument, its owner and its value.
    """
    for name, number in numbers.items():
        rule = name if name in ARGUMENTS and name not in ("width", "scale") else "positive"
        checked_argument(rule, number, name=f"{name} of {owner}")


def number_of_heads(name: str) -> Any:
    """A property: a positive number; or a tensor (num_heads,) with gradient, if it is learned for every head.

    A learned number is the exponential of the parameter ``log_NAME``. Either can be assigned a number.
    """

    def read(layer: Any) -> float | Tensor:
        logarithms = getattr(layer, f"log_{name}")
        return getattr(layer, f"_{name}") if logarithms is None else logarithms.exp()

    def assign(layer: Any, number: float) -> None:
        check_positive(type(layer).__name__, **{name: number})
        setattr(layer, f"_{name}", float(number))
        logarithms = getattr(layer, f"log_{name}")
        if logarithms is not None:
            logarithms.data.fill_(math.log(number))

    return property(read, assign)


def keep_number(layer: Any, name: str, number: float, *, learned: bool) -> None:
    """Set a number that is a :func:`number_of_heads`, and register its parameter if it is learned."""
    logarithms = layer.out_proj.weight.new_empty(layer.num_heads)
    layer.register_parameter(f"log_{name}", nn.Parameter(logarithms) if learned else None)
    setattr(layer, name, number)


def shown_number(layer: Any, name: str, form: str = "") -> str:
    """A :func:`number_of_heads` as text for the representation of a layer."""
    return "learned" if getattr(layer, f"log_{name}") is not None else format(getattr(layer, name), form)


def check_grid(owner: str, grid: Any, argument: str = "grid", rule: str = "size") -> tuple[int, int]:
    """Rows and columns of a grid, or of another argument with two sizes, each by a rule of the table.

    Raises:
        ProblemError: If not; the message names the owner and the value.

    Example:
        >>> check_grid("GridWindow", 14)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: grid of GridWindow is 14; expected two numbers, rows and columns, such as (14, 14).
    """
    if not isinstance(grid, tuple | list) or len(grid) != 2:
        raise ProblemError(
            f"{argument} of {owner} is {shown(grid)}; expected two numbers, rows and columns, such as (14, 14)."
        )
    for name, size in zip(("rows", "columns"), grid, strict=True):
        checked_argument(rule, size, name=f"{name} of the {argument} of {owner}")
    return grid[0], grid[1]


def check_pixels(
    owner: str, grid: tuple[int, int], keys: int, last: int, padding: tuple[int, int] = (0, 0)
) -> None:
    """Raise unless the keys are all pixels of a grid, and the queries are pixels.

    Args:
        owner: Name of the module with the grid.
        grid: Rows and columns.
        keys: Number of keys.
        last: Position of the last query, from 1.
        padding: Number of rows and columns added to the grid of the keys on every side.

    Raises:
        ProblemError: If not; the message has these numbers and the grid.
    """
    (rows, columns), (up, left) = grid, padding
    pixels, padded = rows * columns, (rows + 2 * up) * (columns + 2 * left)
    if keys != padded or last > pixels:
        more = f" and a padding of {padding}: {padded} keys" if padded > pixels else ""
        raise ProblemError(
            f"there are {keys} keys, and queries up to position {last} (counted from 1); expected the {pixels} pixels "
            f"of the grid {rows} x {columns} that {owner} was built with{more}"
        )


def check_choice(owner: str, choices: tuple[str, ...], **names: Any) -> None:
    """Raise unless every name is one of the choices.

    Raises:
        ProblemError: If not; the message names the argument, its owner and its value.
    """
    for argument, name in names.items():
        one_of(*choices).check(f"{argument} of {owner}", name, ProblemError)


_PLAIN = (int, float, str, tuple, type(None))
"""Types of arguments with a short representation."""


def shown_arguments(module: nn.Module) -> str:
    """The arguments of a module, as stored under their names, that differ from the default.

    Example:
        >>> from fenchel.nn.preference import Window
        >>> shown_arguments(Window(2, None)), shown_arguments(Window(2, None, dilation=3))
        ('before=2, after=None', 'before=2, after=None, dilation=3')
    """
    stored = {name: repr(value) for name, value in vars(module).items() if isinstance(value, _PLAIN)}
    parameters = inspect.signature(type(module)).parameters.items()
    changed = [name for name, one in parameters if name in stored and stored[name] != repr(one.default)]
    return ", ".join(f"{name}={stored[name]}" for name in changed)


def check_parameters(owner: str, device: Any, dtype: Any) -> None:
    """Raise unless the device and dtype of parameters can be used; None is torch's default.

    Raises:
        ProblemError: If the device is not available, or the dtype not supported.
    """
    if dtype is not None and dtype not in FLOATING:
        raise ProblemError(
            f"dtype of {owner} is {shown(dtype)}; expected one of {', '.join(map(str, FLOATING))}, or None"
        )
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except Exception:  # its type depends on the name, and on the build of torch
        raise ProblemError(
            f"device of {owner} is {shown(device)}, which is not available; expected an available device, such as "
            "'cpu', or None"
        ) from None


def first_query_position(query_offset: int | None, queries: int, keys: int) -> int:
    """The position of the first query: the offset; if None, 0, which requires at least as many queries as keys.

    With fewer queries than keys, the keys may come from a cache or from another sequence: the offset is ambiguous.

    Args:
        query_offset: The offset, or None.
        queries: m.
        keys: n.

    Raises:
        ProblemError: If the offset is None and there are fewer queries than keys.

    Example:
        >>> first_query_position(None, 5, 5), first_query_position(4, 1, 5)
        (0, 4)
    """
    if query_offset is not None:
        return query_offset
    if 0 < queries < keys:
        raise ProblemError(
            f"query_offset is not given, and the position of the first query is ambiguous with {queries} queries and "
            f"{keys} keys; expected query_offset={keys - queries} (keys - queries) if keys come from a cache, or "
            "query_offset=0 if both start at the same position, as in cross-attention"
        )
    return 0


def check_widths(
    owner: str, embed_dim: int, num_heads: int, kdim: int | None, vdim: int | None, dropout: float
) -> None:
    """Check the arguments shared with ``torch.nn.MultiheadAttention``."""
    optional = {name: size for name, size in (("kdim", kdim), ("vdim", vdim)) if size is not None}
    check_sizes(owner, embed_dim=embed_dim, num_heads=num_heads, **optional)
    if embed_dim % num_heads:
        raise ProblemError(
            f"embed_dim is {embed_dim} and num_heads is {num_heads}; expected a number of heads that divides the width"
        )
    checked_argument("dropout", dropout)


def combined(terms: Sequence[Tensor | None]) -> Tensor | None:
    """The product of preferences, given as log-weights, bool masks (True = attend) or None for uniform.

    The product of masks is a mask; otherwise the log-weights are added, with -inf where a mask forbids.
    """
    masks = [term for term in terms if term is not None and term.dtype == torch.bool]
    weights = [term for term in terms if term is not None and term.dtype != torch.bool]
    mask = reduce(torch.logical_and, masks) if masks else None
    if not weights:
        return mask
    if not torch.compiler.is_compiling():
        # Small terms first, so that they are added before they are broadcast. A compiler needs no order, and its sizes
        # may be symbols.
        weights.sort(key=Tensor.numel)
    total = reduce(torch.add, weights)
    return total if mask is None else torch.where(mask, total, -torch.inf)


def with_added_templates(log_preference: Tensor | None, keys: int, added: int) -> Tensor | None:
    """Append weight 1 for templates added to the keys.

    Args:
        log_preference: Log weights, or bool with True = attend, broadcastable to (B, H, m, n); or None.
        keys: n.
        added: Number of added templates.

    Returns:
        The same, broadcastable to (B, H, m, n + added).

    Example:
        >>> with_added_templates(torch.tensor([[True, False]]), keys=2, added=1)
        tensor([[ True, False,  True]])
    """
    if log_preference is None or added == 0:
        return log_preference
    full = log_preference.expand(*log_preference.shape[:-1], keys)
    return nn.functional.pad(full, (0, added), value=1 if full.dtype == torch.bool else 0)


IndexFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""A function of the indices (b, h, q, k) of batch, head, query and key, each an integer tensor, often a scalar."""

MOST_POSITIONS = 2**31


@dataclass(frozen=True)
class AttentionInputs:
    """Inputs of a preference: sizes, positions, and the inputs of the attention layer.

    Letters: B batch, H heads of the queries, m queries, n keys. Key j is at position j; query i is at position
    ``query_offset + i`` on the same axis.

    Attributes:
        batch: B.
        heads: H.
        queries: m.
        keys: n.
        device: Of the layer.
        dtype: Of the layer and of log-weights.
        query_inputs: The layer's inputs at the queries, (B, m, width).
        key_inputs: The layer's inputs at the keys, the sentence or the image, (B, n, width).
        key_padding: True where a key is padding, bool (B, n), as in :class:`torch.nn.MultiheadAttention`.
        query_offset: Position of the first query; n - m when decoding with a cache. With None, preferences that depend
            on positions take 0 if m ≥ n, and raise if m < n, as :attr:`first_query`, :attr:`query_positions` and
            :meth:`query_position` do.
        query_padding: True where a query is padding, bool (B, m), for preferences that depend on the number of queries.

    Raises:
        ProblemError: If a size is negative, or a tensor has a wrong shape, device or dtype.

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
                "torch.jit.trace is not supported, since it turns sizes into tensors; use torch.export or torch.compile"
            )
        sizes = ("batch", "heads", "queries", "keys")
        for name in sizes if self.query_offset is None else (*sizes, "query_offset"):
            size = getattr(self, name)
            # Symbolic sizes have another type, and a comparison would become a guard.
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
        place: dict[str, Any] = {"device": self.device, "other": "the layer"}
        for of, count in (("query", self.queries), ("key", self.keys)):
            inputs, padding = getattr(self, f"{of}_inputs"), getattr(self, f"{of}_padding")
            if inputs is not None:
                form, sizes = "(batch, tokens, width)", (self.batch, count, None)
                check_tensor(f"{of}_inputs", inputs, form, sizes=sizes, **place)
            if padding is not None:
                form, sizes = f"(batch, tokens), True where a {of} is padding", (self.batch, count)
                check_tensor(f"{of}_padding", padding, form, dtypes=BOOL, sizes=sizes, **place)

    def required(self, name: str, *, reader: str, width: int | None = None) -> Tensor:
        """The tensor ``query_inputs`` or ``key_inputs``, for a preference that needs it.

        Args:
            name: Name of the tensor.
            reader: Name of the preference, for the message.
            width: Its last dimension, or None for any.

        Raises:
            ProblemError: If it is None or of another width.
        """
        tensor: Tensor | None = getattr(self, name)
        argument = name.removesuffix("_inputs")
        if tensor is None:
            raise ProblemError(
                f"{reader} needs {name}, which is None; pass the layer's {argument} argument, before projection, as "
                f"AttentionInputs(..., {name}={argument})."
            )
        if width is not None and tensor.shape[-1] != width:
            raise ProblemError(
                f"{name} (the layer's {argument} argument) has width {tensor.shape[-1]}, but {reader} was built with "
                f"{argument}_dim={width}."
            )
        return tensor

    def query_position(self) -> Callable[[Tensor], Tensor]:
        """The function from the index of a query to its position, for functions of indices.

        Raises:
            ProblemError: As :attr:`first_query`.
        """
        first = self.first_query
        if first == 0:
            return unchanged
        # A plain number would cause a recompilation for every offset.
        offset = torch.full((), first, dtype=torch.long, device=self.device)
        return lambda index: index + offset

    def by_distance(self, function: Callable[[Tensor, Tensor], Tensor]) -> IndexFunction:
        """A function of the head and of the key's position minus the query's, as a function of indices.

        Raises:
            ProblemError: As :attr:`first_query`.
        """
        position = self.query_position()
        return lambda b, h, q, k: function(h, k - position(q))

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
    """The position of a query if the first is at 0."""
    return index
