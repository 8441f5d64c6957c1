"""The masks of ``torch.nn.MultiheadAttention`` as preferences."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fenchel.arguments.causal_bias import is_causal_bias, without_causal_bias
from fenchel.arguments.tensor import MASK, check_device, check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.preference.dense import combined

__all__ = ["TorchMasks", "torch_masks", "with_added_templates"]


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
        if self.keys is None:
            return None
        return ~self.keys if self.keys.dtype == torch.bool else self.keys == -torch.inf

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
        _check("attn_mask", attn_mask, device)
        shared, own = (queries, keys), (batch * heads, queries, keys)
        if attn_mask.shape not in (shared, own):
            raise ProblemError(
                f"attn_mask has shape {tuple(attn_mask.shape)}; expected (L, S) = {shared} or "
                f"(N * num_heads, L, S) = {own}"
            )
        attention = _as_preference(attn_mask if attn_mask.dim() == 2 else attn_mask.reshape(sizes))
    if key_padding_mask is not None:
        _check("key_padding_mask", key_padding_mask, device)
        name, expected = ("(N, S)", (batch, keys)) if batched else ("(S,)", (keys,))
        if key_padding_mask.shape != expected:
            raise ProblemError(
                f"key_padding_mask has shape {tuple(key_padding_mask.shape)}; expected {name} = {expected}"
            )
        padding = _as_preference(key_padding_mask.reshape(batch, keys))
    return TorchMasks(attention, padding)


def _check(name: str, mask: Tensor, device: torch.device) -> None:
    check_tensor(name, mask, "of bool (True = masked) or floating point (added to the scores)", dtypes=MASK)
    check_device(name, mask, device)


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
