"""Places that a query asks for, whatever is there."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import cut
from fenchel.nn.sizes import check_sizes

__all__ = ["Location"]


class Location(AbstractPreference):
    r"""Luong's location-based score, :math:`\log u_{hij} = w_{hj}^\top x_i`, from the query's input alone.

    Position j is absolute. The parameter ``weight`` (heads, max_keys, query_dim) is drawn from a normal distribution
    with standard deviation 0.02, so that a fresh layer is close to uniform. What it says of m queries and n keys is a
    matrix of m·n entries by nature, so it does not lower to a fused kernel.

    Args:
        heads: Number of heads, or 1 to share it.
        query_dim: Width of the layer's query argument.
        max_keys: How many positions a key can have.

    Raises:
        ProblemError: If a size is not a whole number of at least 1; when called, if there are more keys, or
            ``query_inputs`` is None or of another width.

    Reference:
        Luong et al. 2015, Effective approaches to attention-based neural machine translation, eq. (8).

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> x = torch.randn(2, 3, 16)
        >>> inputs = AttentionInputs(2, 4, 3, 5, x.device, x.dtype, query_inputs=x)
        >>> Location(heads=4, query_dim=16, max_keys=100)(inputs).shape
        torch.Size([2, 4, 3, 5])
    """

    def __init__(self, heads: int, query_dim: int, max_keys: int) -> None:
        super().__init__()
        check_sizes("Location", heads=heads, query_dim=query_dim, max_keys=max_keys)
        self.heads = heads
        self.weight = nn.Parameter(0.02 * torch.randn(heads, max_keys, query_dim))

    def forward(self, inputs: AttentionInputs) -> Tensor:
        """The log-weights (B, heads, m, n)."""
        self.check(inputs)
        _, max_keys, query_dim = self.weight.shape
        if inputs.keys > max_keys:
            raise ProblemError(
                f"Location was built with max_keys={max_keys}, but there are {inputs.keys} keys."
            )
        x = inputs.required("query_inputs", reader="Location", width=query_dim)
        weight = cut(self.weight, 1, 0, inputs.keys)
        return (x.unsqueeze(1) @ weight.mT).to(inputs.dtype)

    def extra_repr(self) -> str:
        """Sizes."""
        heads, max_keys, query_dim = self.weight.shape
        return f"heads={heads}, query_dim={query_dim}, max_keys={max_keys}"
