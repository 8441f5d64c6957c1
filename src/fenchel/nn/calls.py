"""Arguments of layer calls: sequences, layout and masks, earlier keys and values, and the inputs of preferences."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.tensors import (
    BOOL,
    MASK,
    check_flags,
    check_floating,
    check_indices,
    check_tensor,
    check_type,
    checked_argument,
    is_causal_bias,
    may_attend,
    without_causal_bias,
)

INDEX = (torch.int32, torch.int64)


class KeyValueCache:
    r"""Keys, values and positions of the tokens that a :class:`~fenchel.nn.MultiheadAttention` has seen.

    A call ``layer(x, x, x, cache=cache)`` with new tokens x appends their keys and values to the cache. The queries are
    at the positions of the new tokens and attend to all keys in the cache. With a causal preference the outputs equal
    those of one call with the whole sequence, for every estimator, evidence and preference that does not depend on the
    number of keys. Every layer needs its own cache.

    Args:
        window: Number of newest tokens kept for the next call; None is all. Outputs then equal those of a full call
            only if queries attend to at most as many earlier tokens, as with ``Causal() * Window(window, 0)``. The
            inputs of keys are not kept, and a preference that depends on them raises.

    Attributes:
        keys: Projected keys, (B, H, length, d); None while the cache is empty.
        values: Projected values, likewise.
        key_inputs: The layer's inputs at the keys, (B, length, kdim), for preferences that depend on them; None while
            the cache is empty, or with a window.
        seen: Number of tokens appended; the position of the next one.

    Raises:
        ProblemError: If ``window`` is not a whole number of at least 1.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> from fenchel.nn.preference import Causal
        >>> layer = MultiheadAttention(16, 4, batch_first=True, preference=Causal(), estimator="exact").double()
        >>> x = torch.randn(2, 5, 16, dtype=torch.float64)
        >>> whole, _ = layer(x, x, x)
        >>> cache = KeyValueCache()
        >>> steps = [layer(token, token, token, cache=cache)[0] for token in x.split(1, dim=1)]
        >>> torch.allclose(torch.cat(steps, 1), whole, atol=1e-6), cache.length
        (True, 5)
    """

    def __init__(self, window: int | None = None) -> None:
        if window is not None:
            checked_argument("size", window, name="window of KeyValueCache")
        self.window = window
        self.clear()

    def clear(self) -> None:
        """Forget all tokens."""
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.key_inputs: Tensor | None = None
        self.seen = 0
        self._layer: weakref.ref[nn.Module] | None = None

    @property
    def length(self) -> int:
        """Number of keys in the cache."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def dropped(self) -> int:
        """Number of tokens that were appended and are no longer in the cache."""
        return self.seen - self.length

    def reorder(self, index: Tensor) -> None:
        """Select the sequences of a batch that beam search continues.

        Args:
            index: Index of the sequence that each new one continues, int32 or int64 (new B,); sequences may repeat.

        Raises:
            ProblemError: If the cache is empty, or ``index`` has another shape, dtype or device.
        """
        if self.keys is None or self.values is None:
            raise ProblemError("the cache is empty and cannot be reordered; call the layer with it first")
        form, device, count = "(sequences,), int32 or int64", self.keys.device, self.keys.shape[0]
        check_tensor("index", index, form, dtypes=INDEX, dims=1, device=device, other="the cache")
        check_indices("index", index, 0, count, f"indices of the {count} sequences of the cache, from 0")
        self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)
        if self.key_inputs is not None:
            self.key_inputs = self.key_inputs.index_select(0, index)

    def keep_to(self, layer: nn.Module) -> None:
        """Accept calls of this layer alone until the cache is cleared; a copy accepts any.

        Raises:
            ProblemError: If the cache has tokens of another layer.
        """
        if torch.compiler.is_compiling():
            return
        if self.length and self._layer is not None and self._layer() is not layer:
            raise ProblemError(
                "cache has the tokens of another layer; expected one KeyValueCache for each layer, such as "
                "[KeyValueCache() for _ in layers]"
            )
        self._layer = weakref.ref(layer)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_layer": None}

    def joined(
        self, keys: Tensor, values: Tensor, key_inputs: Tensor, queries: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Cached and new keys, values and inputs, concatenated. The cache itself is unchanged until :meth:`keep`.

        Args:
            keys: Projected keys of the new tokens, (B, H, m, d).
            values: Likewise.
            key_inputs: The layer's inputs at them, (B, m, kdim).
            queries: Number of queries of the call.

        Raises:
            ProblemError: If the numbers of queries and new keys differ, or the keys do not match the cached ones.
        """
        if queries != keys.shape[2]:
            raise ProblemError(
                f"query has {queries} tokens and key {keys.shape[2]}; expected equal numbers with a cache, since "
                "queries are at the positions of the new keys"
            )
        inputs = None if self.window is not None else key_inputs
        if self.keys is None or self.values is None:
            return keys, values, inputs
        for name, new, held in (("key", keys, self.keys), ("value", values, self.values)):
            sizes, form = (
                (*held.shape[:2], None, held.shape[3]),
                "(batch, heads, tokens, dim) as in the cache",
            )
            remedy = "; every layer needs its own cache, empty at the start of a sequence"
            check_tensor(name, new, f"{form}{remedy}", sizes=sizes, like=held, other="the cache")
        if inputs is not None and self.key_inputs is not None:
            inputs = torch.cat((self.key_inputs, inputs), 1)
        return torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2), inputs

    def keep(self, keys: Tensor, values: Tensor, key_inputs: Tensor | None) -> None:
        """Store the result of :meth:`joined`, or its newest tokens if there is a window."""
        self.seen += keys.shape[2] - self.length
        start = 0 if self.window is None else max(0, keys.shape[2] - self.window)
        # A copy: a view would keep all of it in memory.
        self.keys, self.values = (part[:, :, start:].clone() if start else part for part in (keys, values))
        self.key_inputs = key_inputs

    def __repr__(self) -> str:
        return f"KeyValueCache(window={self.window}): {self.length} keys, {self.seen} tokens seen"


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


@dataclass(frozen=True)
class TorchMasks:
    """Both masks of a call as preferences: log weights, or bool with True = attend.

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
        """Whether the masks are equivalent to :attr:`key_padding`."""
        return self.attention is None and (self.keys is None or self.keys.dtype == torch.bool)


@dataclass(frozen=True)
class TorchCall:
    """The arguments of a call of a layer, as ``MultiheadAttention.forward`` explains them, and their layout.

    Attributes:
        batch_first: Whether batched sequences are (N, tokens, width) rather than (tokens, N, width).
    """

    query: Tensor
    key: Tensor
    value: Tensor
    key_padding_mask: Tensor | None = None
    need_weights: bool = True
    attn_mask: Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False
    batch_first: bool = False
    query_offset: int | None = None
    cache: KeyValueCache | None = None
    variances: Tensor | None = None

    @property
    def batched(self) -> bool:
        """Whether there is a batch; otherwise sequences are (tokens, width), and N is 1 inside."""
        return self.query.dim() == 3

    def to_batch_first(self, sequence: Tensor) -> Tensor:
        """A sequence of the caller as (N, tokens, width)."""
        if not self.batched:
            return sequence.unsqueeze(0)
        return sequence if self.batch_first else sequence.transpose(0, 1)

    def to_heads(self, sequence: Tensor, heads: int) -> Tensor:
        """A sequence of the caller, split into heads, as (N, H, tokens, d)."""
        return self.to_batch_first(sequence).unflatten(-1, (heads, -1)).transpose(1, 2)

    def from_heads(self, sequence: Tensor) -> Tensor:
        """From (N, H, tokens, d) to a sequence of the caller, of width H·d."""
        if not self.batched:
            return sequence.squeeze(0).transpose(0, 1).flatten(1)
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        return sequence.permute(order).flatten(2)

    def without_batch(self, statistic: Tensor) -> Tensor:
        """From (N, ...) to (...) if the call has no batch."""
        return statistic if self.batched else statistic.squeeze(0)

    def returned_weights(self, weights: Tensor) -> Tensor:
        """Weights (N, H, L, S) as the caller expects them, averaged over heads or not."""
        return self.without_batch(weights.mean(1) if self.average_attn_weights else weights)

    def checked_masks(self, layer: Any, advice: str = "") -> TorchMasks:
        """The masks, after checking that the call fits a layer.

        Args:
            layer: Any layer with the sizes of ``torch.nn.MultiheadAttention``.
            advice: Appended to the error raised when ``is_causal`` has no mask.

        Raises:
            ProblemError: If an argument does not match the layer or the other arguments.
        """
        names = ("need_weights", "average_attn_weights", "is_causal")
        check_flags(**{name: getattr(self, name) for name in names})
        self._check_sequences(layer)
        if self.is_causal and self.attn_mask is None:
            raise ProblemError(
                "is_causal is True and attn_mask is None; is_causal is only a hint and needs the mask "
                f"(torch.nn.Transformer.generate_square_subsequent_mask){advice}"
            )
        mask, device, heads = self.attn_mask, self.query.device, layer.num_heads
        batch, queries = self.to_batch_first(self.query).shape[:2]
        keys = self.to_batch_first(self.key).shape[1] + (0 if self.cache is None else self.cache.length)
        attention = padding = None
        if is_causal_bias(mask):
            attention = without_causal_bias("attn_mask", mask, queries, keys, device)
        elif mask is not None:
            shapes = {"(L, S)": (queries, keys), "(N * num_heads, L, S)": (batch * heads, queries, keys)}
            attention = _as_preference("attn_mask", mask, shapes, device)
            attention = attention if mask.dim() == 2 else attention.reshape(batch, heads, queries, keys)
        if self.key_padding_mask is not None:
            shapes = {"(N, S)": (batch, keys)} if self.batched else {"(S,)": (keys,)}
            padding = _as_preference("key_padding_mask", self.key_padding_mask, shapes, device)
            padding = padding.reshape(batch, keys)
        return TorchMasks(attention, padding)

    def _check_sequences(self, layer: Any) -> None:
        """Raise unless the three sequences match one another and the layer."""
        weight, unbatched = layer.out_proj.weight, isinstance(self.query, Tensor) and self.query.dim() == 2
        letters = "L" if unbatched else "N, L" if self.batch_first else "L, N"
        lead: list[int | None] = [None] if unbatched else [None, None]
        for name, argument in (("query", "embed_dim"), ("key", "kdim"), ("value", "vdim")):
            sequence, sizes = getattr(self, name), (*lead, getattr(layer, argument))
            form = f"({letters}, {argument}), batched as query is, with batch_first={self.batch_first}"
            check_tensor(name, sequence, form, sizes=sizes, like=weight, other="the layer")
            # Keys have the batch size of the query, and values also the length of the keys.
            if name == "key":
                lead = list(sequence.shape[:-1])
            elif not unbatched:
                batch = 0 if self.batch_first else 1
                lead[batch] = sequence.shape[batch]


def _as_preference(
    name: str, mask: Tensor, shapes: dict[str, tuple[int, ...]], device: torch.device
) -> Tensor:
    """A mask in torch's convention, checked, as a preference: bool with True = attend, or log weights."""
    form = "of bool (True = masked) or floating point (added to the scores)"
    check_tensor(name, mask, form, dtypes=MASK, device=device)
    if mask.shape not in tuple(shapes.values()):
        expected = " or ".join(f"{letters} = {shape}" for letters, shape in shapes.items())
        raise ProblemError(f"{name} has shape {tuple(mask.shape)}; expected {expected}")
    return ~mask if mask.dtype == torch.bool else mask


def nested_self_attention(layer: nn.MultiheadAttention, call: TorchCall) -> Tensor:
    """Pad, attend with a padding mask, and nest again.

    In inference ``torch.nn.TransformerEncoder`` converts padded input to a nested tensor if it was built from layers
    that its fused path supports, even if their attention was replaced later. Torch's own layer also supports only this
    form.

    Args:
        layer: The layer that attends to the padded sequences.
        call: A call with one nested tensor of strided layout as ``query``, ``key`` and ``value``.

    Returns:
        The outputs, nested like ``query``.

    Raises:
        ProblemError: On any other use of nested tensors.
    """
    query = call.query
    has_more = call.need_weights or any(
        option is not None for option in (call.attn_mask, call.key_padding_mask, call.cache)
    )
    if query is not call.key or query is not call.value or has_more or not layer.batch_first:
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
    positions = torch.arange(padded.shape[1], device="cpu")
    padding = (positions >= torch.tensor(lengths, device="cpu").unsqueeze(1)).to(padded.device)
    outputs, _ = layer(padded, padded, padded, padding, need_weights=False, query_offset=call.query_offset)
    return torch.nested.as_nested_tensor([out[:length] for out, length in zip(outputs, lengths, strict=True)])


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


# A function of the indices (b, h, q, k) of batch, head, query and key, each an integer tensor, often a scalar.
IndexFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]

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
        check_floating("dtype", self.dtype)
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
        built = "" if width is None else f", as {reader} was built with {argument}_dim={width}"
        check_tensor(name, tensor, f"(batch, tokens, width){built}", sizes=(None, None, width))
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
