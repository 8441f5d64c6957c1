"""What modules are built and called with, checked once: sizes, places, sequences, masks and their layouts."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fenchel.arguments import ARGUMENTS, one_of, shown
from fenchel.errors import ProblemError
from fenchel.nn.cache import KeyValueCache
from fenchel.tensors import (
    FLOATING,
    MASK,
    check_device,
    check_dtype,
    check_flags,
    check_tensor,
    checked_argument,
    is_causal_bias,
    may_attend,
    values_are_known,
    without_causal_bias,
)

# Where the table has a rule for a size under another name; else it is that for any size.
_RULES = {"max_steps": "max_steps", "width": "width", "heads": "head_count", "num_heads": "head_count"}


def check_sizes(owner: str, **sizes: Any) -> None:
    """Every size is a whole number of at least 1, and not beyond what any layer has.

    Raises:
        ProblemError: Naming the argument, its owner and what was got.

    Example:
        >>> check_sizes("ALiBi", heads=2.5)
        Traceback (most recent call last):
        fenchel.errors.ProblemError: heads of ALiBi is 2.5; expected a whole number from 1 to 65,536, such as 8.
    """
    for name, size in sizes.items():
        checked_argument(_RULES.get(name, "size"), size, name=f"{name} of {owner}")


def check_positive(owner: str, **numbers: Any) -> None:
    """Every number is finite and above 0, in float32 too.

    Raises:
        ProblemError: Naming the argument, its owner and what was got.
    """
    for name, number in numbers.items():
        rule = name if name in ARGUMENTS and name not in ("width", "scale") else "positive"
        checked_argument(rule, number, name=f"{name} of {owner}")


def number_of_heads(name: str) -> Any:
    """A property: a number above 0 of all heads; or (num_heads,), with gradient, where every head learns its own.

    What heads learn is the parameter ``log_NAME``, its logarithm. Either can be assigned a number.
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
    """Give a layer with :func:`number_of_heads` its number, and where heads learn their own the parameter."""
    logarithms = layer.out_proj.weight.new_empty(layer.num_heads)
    layer.register_parameter(f"log_{name}", nn.Parameter(logarithms) if learned else None)
    setattr(layer, name, number)


def shown_number(layer: Any, name: str, form: str = "") -> str:
    """What a layer's repr says of such a number."""
    return "learned" if getattr(layer, f"log_{name}") is not None else format(getattr(layer, name), form)


def check_grid(owner: str, grid: Any, argument: str = "grid") -> tuple[int, int]:
    """Rows and columns of a grid of places, or of what else has two sizes.

    Raises:
        ProblemError: Naming the owner and what was got.

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
        checked_argument("size", size, name=f"{name} of the {argument} of {owner}")
    return grid[0], grid[1]


def check_pixels(
    owner: str, grid: tuple[int, int], keys: int, last: int, padding: tuple[int, int] = (0, 0)
) -> None:
    """Keys are all pixels of a grid, and queries no more.

    Args:
        owner: Who was built with the grid.
        grid: Rows and columns.
        keys: How many there are.
        last: Place of the last query, from 1.
        padding: Rows and columns that the grid of the keys has more, on every side.

    Raises:
        ProblemError: Naming the numbers that were got, and the grid.
    """
    (rows, columns), (up, left) = grid, padding
    pixels, padded = rows * columns, (rows + 2 * up) * (columns + 2 * left)
    if keys != padded or last > pixels:
        more = f" and a padding of {padding}: {padded} keys" if padded > pixels else ""
        raise ProblemError(
            f"there are {keys} keys, and queries up to place {last} (counted from 1); expected the {pixels} pixels of "
            f"the grid {rows} x {columns} that {owner} was built with{more}"
        )


def check_indices(name: str, indices: Tensor, count: int, expected: str) -> None:
    """Indices, where values are known, are below a count, and at least 0, or -1 for none.

    Raises:
        ProblemError: Naming the argument, one that is not, and what was expected.
    """
    if indices.numel() and values_are_known(indices):
        smallest, largest = (int(end) for end in indices.aminmax())
        if smallest < -1 or largest >= count:
            wrong = smallest if smallest < -1 else largest
            raise ProblemError(f"{name} contain {wrong}; expected {expected}")


def check_choice(owner: str, choices: tuple[str, ...], **names: Any) -> None:
    """Every name is one of some.

    Raises:
        ProblemError: Naming the argument, its owner and what was got.
    """
    for argument, name in names.items():
        one_of(*choices).check(f"{argument} of {owner}", name, ProblemError)


_PLAIN = (int, float, str, tuple, type(None))
"""Types of arguments that say what they are in a few letters."""


def shown_arguments(module: nn.Module) -> str:
    """The arguments that a module was built with and keeps under their names, but for those that are the default.

    Example:
        >>> from fenchel.nn.preference import Window
        >>> shown_arguments(Window(2, None)), shown_arguments(Window(2, None, dilation=3))
        ('before=2, after=None', 'before=2, after=None, dilation=3')
    """
    kept = {name: repr(value) for name, value in vars(module).items() if isinstance(value, _PLAIN)}
    built = inspect.signature(type(module)).parameters.items()
    differs = [name for name, one in built if name in kept and kept[name] != repr(one.default)]
    return ", ".join(f"{name}={kept[name]}" for name in differs)


def check_parameters(owner: str, device: Any, dtype: Any) -> None:
    """Where parameters are to be, and in what; None is torch's default.

    Raises:
        ProblemError: If there is no such device here, or the dtype is not one to compute in.
    """
    if dtype is not None and dtype not in FLOATING:
        raise ProblemError(
            f"dtype of {owner} is {shown(dtype)}; expected one of {', '.join(map(str, FLOATING))}, or None"
        )
    if device is None:
        return
    try:
        torch.empty(0, device=device)
    except Exception:  # which type it is depends on the name, and on the build of torch
        raise ProblemError(
            f"device of {owner} is {shown(device)}, which torch does not have here; expected one that it has, such as "
            "'cpu', or None"
        ) from None


def first_query_position(query_offset: int | None, queries: int, keys: int) -> int:
    """The position of the first query: the offset that was given, or 0 where there are no fewer queries than keys.

    Fewer queries than keys may follow the keys of a cache, or begin where the keys do, as between two sequences.

    Args:
        query_offset: What was given, or None.
        queries: m.
        keys: n.

    Raises:
        ProblemError: If nothing was given and there are fewer queries than keys.

    Example:
        >>> first_query_position(None, 5, 5), first_query_position(4, 1, 5)
        (0, 4)
    """
    if query_offset is not None:
        return query_offset
    if 0 < queries < keys:
        raise ProblemError(
            f"query_offset is not given, and of {queries} queries and {keys} keys the position of the first query is "
            f"not known; expected query_offset={keys - queries} (keys - queries) where keys come from a cache, or "
            "query_offset=0 where both begin at the same place, as between two sequences"
        )
    return 0


_OWNER = "MultiheadAttention"


class _TorchLayer(Protocol):
    """What of a layer its sequences are checked against."""

    batch_first: bool
    kdim: Any
    vdim: Any
    embed_dim: Any
    num_heads: int

    @property
    def out_proj(self) -> nn.Linear: ...


def template_scale(scale: float | None, templates: Tensor) -> float:
    """A scale that was given, or 1/√d of templates (..., d)."""
    return templates.shape[-1] ** -0.5 if scale is None else scale


def check_pair(query: Tensor, key: Tensor) -> None:
    """Both have the layout of attention, and at least one dimension.

    Raises:
        ProblemError: Naming the one that has not.
    """
    for name, tensor in (("query", query), ("key", key)):
        check_tensor(name, tensor, "(batch, heads, tokens, dim)", dims=4)
        if tensor.shape[-1] == 0:
            raise ProblemError(f"{name} has shape {tuple(tensor.shape)}; expected a last dimension above 0")


def check_heads(owner: str, heads: int, query: Tensor) -> None:
    """A module of one head serves any number of them; of more, that number.

    Raises:
        ProblemError: Naming the module, its heads and those of the query.
    """
    if heads not in (1, query.shape[1]):
        raise ProblemError(
            f"{owner} was built for {heads} heads, but query has {query.shape[1]} (shape {tuple(query.shape)}); "
            f"build it with heads={query.shape[1]}, or heads=1 to share it."
        )


def check_dim(owner: str, dim: int, *, argument: str = "dim", **tensors: Tensor) -> None:
    """Tensors have the last dimension that a module was built with.

    Raises:
        ProblemError: Naming the one that has not, and the module.
    """
    for name, tensor in tensors.items():
        if tensor.shape[-1] != dim:
            raise ProblemError(
                f"{name} has shape {tuple(tensor.shape)}, but {owner} was built with {argument}={dim}, the last."
            )


def check_built(owner: str, query: Tensor, key: Tensor, parameter: Tensor, dim: int) -> None:
    """Query and key fit a module of evidence with a parameter (heads, ...)."""
    check_pair(query, key)
    check_heads(owner, parameter.shape[0], query)
    check_dim(owner, dim, query=query, key=key)
    check_dtype("query", query, parameter.dtype, owner)
    check_device("query", query, parameter.device, owner)


def check_widths(
    embed_dim: int,
    num_heads: int,
    kdim: int | None,
    vdim: int | None,
    dropout: float,
    *,
    owner: str = _OWNER,
) -> None:
    """Check what ``torch.nn.MultiheadAttention`` is built with too."""
    given = {"embed_dim": embed_dim, "num_heads": num_heads, "kdim": kdim, "vdim": vdim}
    optional = ("kdim", "vdim")
    check_sizes(owner, **{n: size for n, size in given.items() if size is not None or n not in optional})
    if embed_dim % num_heads:
        raise ProblemError(
            f"embed_dim is {embed_dim} and num_heads is {num_heads}; expected a number of heads that divides the width"
        )
    checked_argument("dropout", dropout)


def _check_sequences(layer: _TorchLayer, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Check the three sequences of a call against one another and against the layer.

    Raises:
        ProblemError: If anything does not fit, with its name, what was got and what was expected.
    """
    layout = "(N, L, E)" if layer.batch_first else "(L, N, E)"
    for name, sequence in (("query", query), ("key", key), ("value", value)):
        check_tensor(name, sequence, f"{layout}, or (L, E) unbatched")
    if query.dim() not in (2, 3):
        raise ProblemError(f"query has shape {tuple(query.shape)}; expected {layout}, or (L, E) unbatched")
    widths = {
        "query": ("embed_dim", layer.embed_dim),
        "key": ("kdim", layer.kdim),
        "value": ("vdim", layer.vdim),
    }
    weight = layer.out_proj.weight
    for (name, (argument, width)), tensor in zip(widths.items(), (query, key, value), strict=True):
        shape = tuple(tensor.shape)
        if tensor.dim() != query.dim():
            raise ProblemError(
                f"{name} has shape {shape} and query {tuple(query.shape)}; expected all batched (3-D) or all unbatched "
                "(2-D)"
            )
        if shape[-1] != width:
            raise ProblemError(f"{name} has width {shape[-1]} (shape {shape}); expected {argument} = {width}")
        check_device(name, tensor, weight.device, "the layer")
        check_dtype(name, tensor, weight.dtype, "the layer")
    if key.shape[:-1] != value.shape[:-1]:
        raise ProblemError(
            f"key has shape {tuple(key.shape)} and value {tuple(value.shape)}; expected the same batch and length"
        )
    batch_at = 0 if layer.batch_first else 1
    if query.dim() == 3 and query.shape[batch_at] != key.shape[batch_at]:
        raise ProblemError(
            f"query has batch size {query.shape[batch_at]} (shape {tuple(query.shape)}) and key {key.shape[batch_at]} "
            f"(shape {tuple(key.shape)}) with batch_first={layer.batch_first}; expected the same"
        )


def combined(terms: Sequence[Tensor | None]) -> Tensor | None:
    """The product of preferences, given as log-weights, bool masks (True = attend) or None for uniform.

    Masks alone stay a mask; otherwise the log-weights add up, with -inf where a mask forbids.
    """
    given = [term for term in terms if term is not None]
    masks = [term for term in given if term.dtype == torch.bool]
    weights = [term for term in given if term.dtype != torch.bool]
    mask = reduce(torch.logical_and, masks) if masks else None
    if not weights:
        return mask
    if not torch.compiler.is_compiling():
        # Small ones first, so that what is broadcast is added up before it is spread out. A compiler knows by itself,
        # and its sizes may be symbols.
        weights.sort(key=Tensor.numel)
    total = reduce(torch.add, weights)
    return total if mask is None else torch.where(mask, total, -torch.inf)


@dataclass(frozen=True)
class TorchMasks:
    """Both masks of a call, in the sense of preferences: log weights, or bool with True = attend.

    Attributes:
        attention: (L, S) or (N, heads, L, S), or None.
        keys: (N, S), or None.
    """

    attention: Tensor | None
    keys: Tensor | None

    @property
    def preference(self) -> Tensor | None:
        """Their product, broadcastable to (N, heads, L, S); None without masks."""
        return combined([self.attention, None if self.keys is None else self.keys[:, None, None]])

    @property
    def key_padding(self) -> Tensor | None:
        """True where a key is padding, bool (N, S)."""
        return None if self.keys is None else ~may_attend(self.keys)

    @property
    def is_key_padding(self) -> bool:
        """Whether :attr:`key_padding` says all that the masks say."""
        return self.attention is None and (self.keys is None or self.keys.dtype == torch.bool)


def torch_masks(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    *,
    sizes: tuple[int, int, int, int],
    batched: bool,
    device: torch.device,
) -> TorchMasks:
    """Check the masks of a call and turn them to the sense of preferences.

    Args:
        attn_mask: (L, S) or (N * num_heads, L, S), bool with True = masked, or float, which is added to the scores; or
            a ``torch.nn.attention.bias.CausalBias`` of L and S.
        key_padding_mask: (N, S), or (S,) for a call without a batch; bool with True = padding, or float.
        sizes: N, num_heads, L and S.
        batched: Whether the call has a batch.
        device: Where the masks have to be.

    Raises:
        ProblemError: On a wrong shape, dtype or device.
    """
    batch, heads, queries, keys = sizes
    attention = padding = None
    if is_causal_bias(attn_mask):
        attention = without_causal_bias("attn_mask", attn_mask, queries, keys, device)
    elif attn_mask is not None:
        shared, of_heads = (queries, keys), (batch * heads, queries, keys)
        form = f"(L, S) = {shared} or (N * num_heads, L, S) = {of_heads}"
        _check("attn_mask", attn_mask, form, (shared, of_heads), device)
        attention = _as_preference(attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(sizes))
    if key_padding_mask is not None:
        name, expected = ("(N, S)", (batch, keys)) if batched else ("(S,)", (keys,))
        _check("key_padding_mask", key_padding_mask, f"{name} = {expected}", (expected,), device)
        padding = _as_preference(key_padding_mask.reshape(batch, keys))
    return TorchMasks(attention, padding)


def _check(
    name: str, mask: Tensor, form: str, shapes: tuple[tuple[int, ...], ...], device: torch.device
) -> None:
    check_tensor(name, mask, "of bool (True = masked) or floating point (added to the scores)", dtypes=MASK)
    check_device(name, mask, device)
    if mask.shape not in shapes:
        raise ProblemError(f"{name} has shape {tuple(mask.shape)}; expected {form}")


def _as_preference(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else mask


def with_added_templates(log_preference: Tensor | None, keys: int, added: int) -> Tensor | None:
    """Let templates that follow the given ones be attended to with weight 1.

    Args:
        log_preference: Log weights, or bool with True = attend, broadcastable to (B, H, m, n); or None.
        keys: n.
        added: How many follow.

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


@dataclass(frozen=True)
class SequenceLayout:
    """Where the batch is in the sequences of one call.

    Attributes:
        batch_first: (B, tokens, width) rather than (tokens, B, width).
        batched: Whether there is a batch; without one sequences are (tokens, width), and B is 1 inside.
    """

    batch_first: bool
    batched: bool

    def to_batch_first(self, sequence: Tensor) -> Tensor:
        """A sequence of the caller as (B, tokens, width)."""
        if not self.batched:
            return sequence.unsqueeze(0)
        return sequence if self.batch_first else sequence.transpose(0, 1)

    def to_heads(self, sequence: Tensor, heads: int) -> Tensor:
        """A sequence of the caller, cut into heads, as (B, H, tokens, d)."""
        return self.to_batch_first(sequence).unflatten(-1, (heads, -1)).transpose(1, 2)

    def from_heads(self, sequence: Tensor) -> Tensor:
        """From (B, H, tokens, d) to a sequence of the caller, of width H·d."""
        if not self.batched:
            return sequence.squeeze(0).transpose(0, 1).flatten(1)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return sequence.permute(order).flatten(2)

    def without_batch(self, statistic: Tensor) -> Tensor:
        """From (B, ...) to what a caller without a batch expects."""
        return statistic if self.batched else statistic.squeeze(0)

    def weights(self, weights: Tensor, *, average: bool) -> Tensor:
        """Weights (B, H, m, n) as a caller expects them, averaged over heads or not."""
        return self.without_batch(weights.mean(1) if average else weights)


class TorchCall(NamedTuple):
    """The arguments of a call of ``MultiheadAttention``, as its ``forward`` explains them."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False
    query_offset: int | None = None
    cache: KeyValueCache | None = None


def checked_call(layer: _TorchLayer, call: TorchCall, advice: str = "") -> tuple[SequenceLayout, TorchMasks]:
    """The layout and the masks of a call, if it fits a layer.

    Args:
        layer: The layer.
        call: Sequences and masks.
        advice: What else to do where there is no mask that ``is_causal`` is a hint of.

    Raises:
        ProblemError: If anything does not fit, with its name, what was got and what was expected.
    """
    check_flags(
        **{name: getattr(call, name) for name in ("need_weights", "average_attn_weights", "is_causal")}
    )
    query, key = call.query, call.key
    _check_sequences(layer, query, key, call.value)
    if call.is_causal and call.attn_mask is None:
        raise ProblemError(
            "is_causal is True and attn_mask is None; the hint needs the mask that it is a hint of "
            f"(torch.nn.Transformer.generate_square_subsequent_mask){advice}"
        )
    layout = SequenceLayout(layer.batch_first, batched=query.dim() == 3)
    (batch, queries), keys = layout.to_batch_first(query).shape[:2], layout.to_batch_first(key).shape[1]
    if call.cache is not None:
        keys += call.cache.length
    sizes = (batch, layer.num_heads, queries, keys)
    return layout, torch_masks(
        call.attn_mask, call.key_padding_mask, sizes=sizes, batched=layout.batched, device=query.device
    )


def nested_self_attention(layer: nn.MultiheadAttention, call: TorchCall) -> Tensor:
    """Pad, attend without the padding, and nest again.

    ``torch.nn.TransformerEncoder`` turns padded input into a nested tensor in inference if it was built from layers
    that its fused path can run, and gives that to whatever attention its layers have by then. So this one form
    has to work; it is also the only one that torch's own attention layer takes.

    Args:
        layer: What attends to padded sequences.
        call: With one nested tensor of the strided layout as ``query``, ``key`` and ``value``.

    Returns:
        Outputs, nested as ``query`` is.

    Raises:
        ProblemError: On any other use of nested tensors.
    """
    query = call.query
    plain = (
        call.attn_mask is None
        and call.key_padding_mask is None
        and not call.need_weights
        and call.cache is None
    )
    if query is not call.key or query is not call.value or not plain or not layer.batch_first:
        raise ProblemError(
            "query, key or value is a nested tensor; expected one in self-attention only (query is key is value), with "
            "batch_first=True, need_weights=False and no mask or cache. Give query.to_padded_tensor(0.0) and "
            "key_padding_mask"
        )
    if query.layout != torch.strided:
        raise ProblemError(
            f"query is a nested tensor of layout {query.layout}; expected torch.strided. Give "
            "query.to_padded_tensor(0.0) and key_padding_mask"
        )
    lengths = [len(sequence) for sequence in query.unbind()]
    padded = query.to_padded_tensor(0.0)
    places = torch.arange(padded.shape[1], device="cpu")
    padding = (places >= torch.tensor(lengths, device="cpu").unsqueeze(1)).to(padded.device)
    outputs, _ = layer(padded, padded, padded, padding, need_weights=False, query_offset=call.query_offset)
    return torch.nested.as_nested_tensor([out[:length] for out, length in zip(outputs, lengths, strict=True)])
