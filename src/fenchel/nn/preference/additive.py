"""A network that looks at the query and the key together."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fenchel.arguments.tensor import checked_argument
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.sizes import check_sizes

__all__ = ["Additive"]


class Additive(AbstractPreference):
    r"""Bahdanau's additive score, :math:`\log u_{hij} = v_h^\top \tanh(W_h x_i + U_h y_j + c_h)`.

    :math:`x_i` is the query's input and :math:`y_j` the key's, both before projection. With evidence 0 this is
    Bahdanau's attention; with a layer's own evidence it is a product of both.

    It costs B·heads·m·n·hidden operations, each way. Memory stays bounded: queries are done in blocks, which are
    computed again in the backward pass. An entry needs a whole network, so it does not lower to a fused kernel.

    Args:
        heads: Number of heads, or 1 to share it.
        query_dim: Width of the layer's query argument.
        key_dim: Width of the layer's key argument; None is ``query_dim``.
        hidden: Width of the hidden layer of each head.
        block_entries: How many hidden units a block may hold at once.

    Raises:
        ProblemError: If a size is not a whole number of at least 1; when called, if ``query_inputs`` or
            ``key_inputs`` is None or of another width.

    Reference:
        Bahdanau et al. 2015, Neural machine translation by jointly learning to align and translate, appendix A.1.2.

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> x, y = torch.randn(2, 3, 16), torch.randn(2, 5, 16)
        >>> inputs = AttentionInputs(2, 4, 3, 5, x.device, x.dtype, query_inputs=x, key_inputs=y)
        >>> Additive(heads=4, query_dim=16)(inputs).shape
        torch.Size([2, 4, 3, 5])
    """

    def __init__(
        self,
        heads: int,
        query_dim: int,
        key_dim: int | None = None,
        *,
        hidden: int = 64,
        block_entries: int = 2**22,
    ) -> None:
        super().__init__()
        key_dim = query_dim if key_dim is None else key_dim
        sizes = {"heads": heads, "query_dim": query_dim, "key_dim": key_dim, "hidden": hidden}
        check_sizes("Additive", **sizes)
        checked_argument("entries", block_entries, name="block_entries of Additive")
        self.heads, self.hidden, self.block_entries = heads, hidden, block_entries
        self.of_query = nn.Linear(query_dim, heads * hidden)
        self.of_key = nn.Linear(key_dim, heads * hidden, bias=False)
        self.score = nn.Parameter(torch.empty(heads, hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def forward(self, inputs: AttentionInputs) -> Tensor:
        """The log-weights (B, heads, m, n)."""
        self.check(inputs)
        x = inputs.required("query_inputs", reader="Additive", width=self.of_query.in_features)
        y = inputs.required("key_inputs", reader="Additive", width=self.of_key.in_features)
        return self.scores(x, self.keys(y)).to(inputs.dtype)

    def keys(self, y: Tensor) -> Tensor:
        """What is made of the keys alone, (B, heads, n, hidden), once for all queries that come one after the other.

        Args:
            y: The layer's inputs at the keys, (B, n, key_dim).
        """
        return self.of_key(y).unflatten(-1, self.score.shape).transpose(1, 2)

    def scores(self, x: Tensor, keys: Tensor) -> Tensor:
        """The log-weights (B, heads, m, n).

        Args:
            x: The layer's inputs at the queries, (B, m, query_dim).
            keys: From ``keys``.
        """
        queries = self.of_query(x).unflatten(-1, self.score.shape).transpose(1, 2)
        entries_per_query = max(1, keys.numel())
        blocks = queries.split(max(1, self.block_entries // entries_per_query), dim=2)
        if len(blocks) == 1 or not torch.is_grad_enabled():
            scores = [_scores(block, keys, self.score) for block in blocks]
        else:
            scores = [
                checkpoint(_scores, block, keys, self.score, use_reentrant=False, preserve_rng_state=False)
                for block in blocks
            ]
        return torch.cat(scores, dim=2)

    def extra_repr(self) -> str:
        """Sizes."""
        return (
            f"heads={self.heads}, query_dim={self.of_query.in_features}, key_dim={self.of_key.in_features}, "
            f"hidden={self.hidden}"
        )


def _scores(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """(B, H, m, n) from (B, H, m, hidden), (B, H, n, hidden) and (H, hidden)."""
    activation = torch.tanh(queries.unsqueeze(3) + keys.unsqueeze(2))
    return (activation @ score[:, None, :, None]).squeeze(-1)
