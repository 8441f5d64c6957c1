"""What layers are called with: sequences, their masks and layout, and the keys and values of earlier calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.nn.arguments import combined
from fenchel.tensors import (
    MASK,
    check_device,
    check_dtype,
    check_flags,
    check_tensor,
    checked_argument,
    is_causal_bias,
    may_attend,
    without_causal_bias,
)

INDEX = (torch.int32, torch.int64)


class KeyValueCache:
    r"""Keys, values and positions of the tokens that a :class:`~fenchel.nn.MultiheadAttention` has seen.

    A call ``layer(x, x, x, cache=cache)`` with new tokens x appends their keys and values to the cache. The queries
    stand at the positions of the new tokens and infer from all keys that the cache holds. With a causal preference the
    outputs are those of one call with the whole sequence, for every estimator, evidence and preference that does not
    read how many keys there are. Every layer needs a cache of its own.

    Args:
        window: How many of the newest tokens are kept after a call; None is all. For the outputs of a full call, give
            the layer a preference that sees no farther, such as ``Causal() * Window(window - 1, 0)``. The inputs of
            keys are not kept then, and a preference that looks at them is an error.

    Attributes:
        keys: Projected keys, (B, H, length, d); None while the cache is empty.
        values: Projected values, likewise.
        key_inputs: The layer's inputs at the keys, (B, length, kdim), for preferences that look at them; None while
            the cache is empty, or with a window.
        seen: How many tokens were appended; the position of the next one.

    Raises:
        ProblemError: If ``window`` is no whole number of at least 1.

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

    @property
    def length(self) -> int:
        """How many keys are held."""
        return 0 if self.keys is None else self.keys.shape[2]

    @property
    def dropped(self) -> int:
        """How many of the tokens that were seen are no longer held."""
        return self.seen - self.length

    def reorder(self, index: Tensor) -> None:
        """Keep the sequences of a batch that beam search goes on with.

        Args:
            index: Which sequence each new one continues, int32 or int64 (new B,); sequences may repeat.

        Raises:
            ProblemError: If the cache is empty, or ``index`` has another shape, dtype or device.
        """
        if self.keys is None or self.values is None:
            raise ProblemError(
                "the cache is empty, so there is nothing to reorder; call the layer with it first"
            )
        form, device, count = "(sequences,), int32 or int64", self.keys.device, self.keys.shape[0]
        check_tensor("index", index, form, dtypes=INDEX, dims=1, device=device, other="the cache")
        if index.numel() and not 0 <= int(index.min()) <= int(index.max()) < count:
            raise ProblemError(
                f"index has entries from {int(index.min())} to {int(index.max())}; expected numbers of the "
                f"{count} sequences of the cache, from 0"
            )
        self.keys, self.values = self.keys.index_select(0, index), self.values.index_select(0, index)
        if self.key_inputs is not None:
            self.key_inputs = self.key_inputs.index_select(0, index)

    def joined(
        self, keys: Tensor, values: Tensor, key_inputs: Tensor, queries: int
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """What is held and what is new, one after the other. The cache itself stays as it is until :meth:`keep`.

        Args:
            keys: Projected keys of the new tokens, (B, H, m, d).
            values: Likewise.
            key_inputs: The layer's inputs at them, (B, m, kdim).
            queries: How many queries the call has.

        Raises:
            ProblemError: If there are fewer or more queries than new keys, or the keys do not fit those held.
        """
        if queries != keys.shape[2]:
            raise ProblemError(
                f"query has {queries} tokens and key {keys.shape[2]}; expected the same with a cache, since queries "
                "are at the positions of the new keys"
            )
        inputs = None if self.window is not None else key_inputs
        if self.keys is None or self.values is None:
            return keys, values, inputs
        for name, new, held in (("key", keys, self.keys), ("value", values, self.values)):
            own, expected = ((*t.shape[:2], t.shape[3], t.dtype, t.device) for t in (new, held))
            if own != expected:
                raise ProblemError(
                    f"{name} gives {_shown(new)} and the cache holds {_shown(held)}; expected the same batch, "
                    "heads, dimension, dtype and device. Every layer needs a cache of its own, empty at the start of a "
                    "sequence"
                )
        if inputs is not None and self.key_inputs is not None:
            inputs = torch.cat((self.key_inputs, inputs), 1)
        return torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2), inputs

    def keep(self, keys: Tensor, values: Tensor, key_inputs: Tensor | None) -> None:
        """Hold what :meth:`joined` returned, or the newest of it."""
        self.seen += keys.shape[2] - self.length
        start = 0 if self.window is None else max(0, keys.shape[2] - self.window)
        # A copy, since a view would hold on to all of it.
        self.keys, self.values = (part[:, :, start:].clone() if start else part for part in (keys, values))
        self.key_inputs = key_inputs

    def __repr__(self) -> str:
        return f"KeyValueCache(window={self.window}): {self.length} keys, {self.seen} tokens seen"


def _shown(part: Tensor) -> str:
    """Sizes, dtype and device of keys or values, for errors."""
    batch, heads, _, dim = part.shape
    return f"{batch} sequences of {heads} heads of dimension {dim} in {shown(part.dtype)} on {part.device}"


class _TorchLayer(Protocol):
    """What of a layer its sequences are checked against."""

    batch_first: bool
    kdim: Any
    vdim: Any
    embed_dim: Any
    num_heads: int

    @property
    def out_proj(self) -> nn.Linear: ...


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
        _check("attn_mask", attn_mask, {"(L, S)": shared, "(N * num_heads, L, S)": of_heads}, device)
        attention = _as_preference(attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(sizes))
    if key_padding_mask is not None:
        name, expected = ("(N, S)", (batch, keys)) if batched else ("(S,)", (keys,))
        _check("key_padding_mask", key_padding_mask, {name: expected}, device)
        padding = _as_preference(key_padding_mask.reshape(batch, keys))
    return TorchMasks(attention, padding)


def _check(name: str, mask: Tensor, shapes: dict[str, tuple[int, ...]], device: torch.device) -> None:
    check_tensor(name, mask, "of bool (True = masked) or floating point (added to the scores)", dtypes=MASK)
    check_device(name, mask, device)
    if mask.shape not in tuple(shapes.values()):
        expected = " or ".join(f"{letters} = {shape}" for letters, shape in shapes.items())
        raise ProblemError(f"{name} has shape {tuple(mask.shape)}; expected {expected}")


def _as_preference(mask: Tensor) -> Tensor:
    return ~mask if mask.dtype == torch.bool else mask


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
    """The arguments of a call of ``MultiheadAttention`` or ``MixtureAttention``, as their ``forward`` explains them."""

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
    variances: Tensor | None = None


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
