"""What the sentence or the image says is important, before any query."""

from __future__ import annotations

import inspect

from torch import Tensor, nn

from fenchel.arguments.tensor import check_tensor
from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.context_network import ContextNetwork
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import head_row, table
from fenchel.nn.sizes import check_sizes

__all__ = ["Context"]


class Context(AbstractPreference):
    r"""A network proposes how important each key is, :math:`\log u_{hj} = f_h(X)_j`, X being all of the layer's inputs.

    Queries share it, (B, heads, 1, n), so inference costs little more than with a uniform preference. Padded keys keep
    the network's value: multiply by :class:`KeyPadding`, or leave it to a layer that is given a padding mask.

    Args:
        heads: Number of heads, or 1 to share it.
        key_dim: Width of the layer's key argument, for the default network :class:`ContextNetwork`, which starts
            uniform.
        hidden: Hidden width of the default network.
        network: Any module from (B, n, width) to (B, n, heads), in place of the default. If its ``forward`` has
            an argument ``key_padding``, it is given ``inputs.key_padding`` (or None) under that name.

    Raises:
        ProblemError: If not exactly one of ``key_dim`` and ``network`` is given; when called, if ``key_inputs`` is None
            or of another width, or the network's answer has another shape.

    Reference:
        The papers' generalisation of attention by a preference that depends on the whole input.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> sentence = torch.randn(2, 5, 16)
        >>> inputs = AttentionInputs(2, 4, 5, 5, sentence.device, sentence.dtype, key_inputs=sentence)
        >>> Context(heads=4, key_dim=16)(inputs).shape
        torch.Size([2, 4, 1, 5])
    """

    def __init__(
        self,
        heads: int,
        key_dim: int | None = None,
        *,
        hidden: int = 64,
        network: nn.Module | None = None,
    ) -> None:
        super().__init__()
        check_sizes("Context", heads=heads)
        if network is not None and key_dim is not None:
            raise ProblemError(
                f"Context got key_dim={key_dim} and a network; key_dim is for the default network: give one of them."
            )
        if network is None:
            if key_dim is None:
                raise ProblemError("Context needs key_dim, the width of the layer's key, or a network.")
            network = ContextNetwork(heads, key_dim, hidden)
        if not isinstance(network, nn.Module):
            raise ProblemError(
                f"network of Context is a {type(network).__name__}; expected a torch.nn.Module"
            )
        self.heads, self.key_dim, self.network = heads, key_dim, network
        self._takes_padding = "key_padding" in inspect.signature(network.forward).parameters

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The importance of key k to head h, from a table with an entry for every key and head."""
        importance, heads = table(self._importance(inputs)), self.heads or 1

        def of_key(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return importance[b, k, head_row(h, heads)]

        return of_key

    def _importance(self, inputs: AttentionInputs) -> Tensor:
        """(B, n, heads)."""
        tokens = inputs.required("key_inputs", reader="Context", width=self.key_dim)
        padding = {"key_padding": inputs.key_padding} if self._takes_padding else {}
        importance = self.network(tokens, **padding)
        expected = (inputs.batch, inputs.keys, self.heads)
        check_tensor("the answer of Context's network", importance, "(batch, keys, heads)")
        if tuple(importance.shape) != expected:
            raise ProblemError(
                f"Context's network answered with shape {tuple(importance.shape)}; "
                f"expected (batch, keys, heads) = {expected}."
            )
        return importance

    def extra_repr(self) -> str:
        """Heads and where importance comes from."""
        source = f"key_dim={self.key_dim}" if self.key_dim else f"network={type(self.network).__name__}"
        return f"heads={self.heads}, {source}"
