"""One number for every place."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.dense import IndexFunction
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.table import cut, head_row
from fenchel.nn.sizes import check_sizes

__all__ = ["LearnedBias"]


class LearnedBias(AbstractPreference):
    r"""A learned log-weight for every head and absolute position of query and key, :math:`\log u_{ij} = w_{hij}`.

    The parameter ``bias`` (heads, max_queries, max_keys) starts at 0, where the preference is uniform. With
    ``max_queries=1`` queries share it, which makes inference cheaper: (1, heads, 1, n).

    Args:
        heads: Number of heads, or 1 to share the bias.
        max_queries: How many positions a query can have, or 1 to share the bias.
        max_keys: How many positions a key can have.

    Raises:
        ProblemError: If a size is not a whole number of at least 1; when called, if there are more positions.

    Example:
        >>> import torch
        >>> from fenchel.nn.preference import AttentionInputs
        >>> inputs = AttentionInputs(2, 8, 5, 7, torch.device("cpu"), torch.float32)
        >>> LearnedBias(heads=8, max_queries=1, max_keys=16)(inputs).shape
        torch.Size([1, 8, 1, 7])
    """

    def __init__(self, heads: int, max_queries: int, max_keys: int) -> None:
        super().__init__()
        check_sizes("LearnedBias", heads=heads, max_queries=max_queries, max_keys=max_keys)
        self.heads = heads
        self.bias = nn.Parameter(torch.zeros(heads, max_queries, max_keys))

    def forward(self, inputs: AttentionInputs) -> Tensor:
        """The part of the bias for these positions, (1, heads, m or 1, n)."""
        self.check(inputs)
        return self._placed(inputs).to(inputs.dtype).unsqueeze(0)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The entry of the bias at the positions of q and k, read from the parameter itself."""
        placed, heads = self._placed(inputs), self.heads or 1
        is_shared = placed.shape[1] == 1

        def entry(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return placed[head_row(h, heads), torch.zeros_like(q) if is_shared else q, k]

        return entry

    def check(self, inputs: AttentionInputs) -> None:
        """Hold heads, device and positions against those of the bias."""
        super().check(inputs)
        _, max_queries, max_keys = self.bias.shape
        if inputs.keys > max_keys:
            raise ProblemError(
                f"LearnedBias was built with max_keys={max_keys}, but there are {inputs.keys} keys."
            )
        if max_queries == 1:
            return
        queries = inputs.first_query + inputs.queries
        if max_queries < queries:
            raise ProblemError(
                f"LearnedBias was built with max_queries={max_queries}, but the last query is at position {queries} "
                "(counted from 1)."
            )

    def _placed(self, inputs: AttentionInputs) -> Tensor:
        """(heads, m or 1, n)."""
        placed = cut(self.bias, 2, 0, inputs.keys)
        return placed if self.bias.shape[1] == 1 else cut(placed, 1, inputs.first_query, inputs.queries)

    def extra_repr(self) -> str:
        """Sizes."""
        heads, max_queries, max_keys = self.bias.shape
        return f"heads={heads}, max_queries={max_queries}, max_keys={max_keys}"
