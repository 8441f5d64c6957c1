"""Keys and values of earlier calls, so that a layer can be called with the new tokens of a sequence alone."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.tensors import check_tensor, checked_argument

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
