"""Preferences that learn the importance of keys from their position, their content, or query and key together."""

from __future__ import annotations

import inspect
import math

import torch
from torch import Tensor, nn

from fenchel.blocks import recomputed
from fenchel.errors import ProblemError
from fenchel.nn.arguments import check_positive, check_sizes
from fenchel.nn.calls import AttentionInputs, IndexFunction
from fenchel.nn.preference.abstract import AbstractPreference, cut, table
from fenchel.tensors import check_tensor, check_type, checked_argument


def _check_most(owner: str, **positions: tuple[int, int]) -> None:
    """Raise if the last position, counted from 1, is beyond the number that a preference was built for."""
    for argument, (most, last) in positions.items():
        if last > most:
            raise ProblemError(
                f"{owner} was built with {argument}={most}, but the last position, counted from 1, is {last}."
            )


class LearnedBias(AbstractPreference):
    r"""A learned log-weight for every head and absolute position of query and key, :math:`\log u_{ij} = w_{hij}`.

    The parameter ``bias`` (heads, max_queries, max_keys) starts at 0: a uniform preference. With ``max_queries=1``
    queries share it, which makes inference cheaper: (1, heads, 1, n).

    Args:
        heads: Number of heads, or 1 to share the bias.
        max_queries: Number of positions of queries, or 1 to share the bias.
        max_keys: Number of positions of keys.

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
        super().__init__(heads=heads, max_queries=max_queries, max_keys=max_keys)
        self.max_queries, self.max_keys = max_queries, max_keys
        self.bias = nn.Parameter(torch.zeros(heads, max_queries, max_keys))

    def forward(self, inputs: AttentionInputs) -> Tensor:
        """The part of the bias for these positions, (1, heads, m or 1, n)."""
        self.check(inputs)
        return self._placed(inputs).to(inputs.dtype).unsqueeze(0)

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The entry of the bias at the positions of q and k."""
        placed = self._placed(inputs)
        is_shared = placed.shape[1] == 1
        return lambda b, h, q, k: placed[h, torch.zeros_like(q) if is_shared else q, k]

    def check(self, inputs: AttentionInputs) -> None:
        """Raise unless heads, device and positions match the bias."""
        super().check(inputs)
        _check_most("LearnedBias", max_keys=(self.max_keys, inputs.keys))
        if self.max_queries > 1:
            last = inputs.first_query + inputs.queries
            _check_most("LearnedBias", max_queries=(self.max_queries, last))

    def _placed(self, inputs: AttentionInputs) -> Tensor:
        """(heads, m or 1, n)."""
        placed = cut(self.bias, 2, 0, inputs.keys)
        return placed if self.bias.shape[1] == 1 else cut(placed, 1, inputs.first_query, inputs.queries)


class Location(AbstractPreference):
    r"""Luong's location-based score, :math:`\log u_{hij} = w_{hj}^\top x_i`, a function of the query's input.

    Position j is absolute. The parameter ``weight`` (heads, max_keys, query_dim) is drawn from a normal distribution
    with standard deviation 0.02, so a new layer is close to uniform. The log-weights are a full (m, n) matrix, which
    cannot be used in a fused kernel.

    Args:
        heads: Number of heads, or 1 to share it.
        query_dim: Width of the layer's query argument.
        max_keys: Number of positions of keys.

    Raises:
        ProblemError: If a size is not a whole number of at least 1; when called, if there are more keys, or
            ``query_inputs`` is None or has another width.

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
        super().__init__(heads=heads, query_dim=query_dim, max_keys=max_keys)
        self.query_dim, self.max_keys = query_dim, max_keys
        self.weight = nn.Parameter(0.02 * torch.randn(heads, max_keys, query_dim))

    def forward(self, inputs: AttentionInputs) -> Tensor:
        """The log-weights (B, heads, m, n)."""
        self.check(inputs)
        _check_most("Location", max_keys=(self.max_keys, inputs.keys))
        x = inputs.required("query_inputs", reader="Location", width=self.query_dim)
        weight = cut(self.weight, 1, 0, inputs.keys)
        return (x.unsqueeze(1) @ weight.mT).to(inputs.dtype)


class Recency(AbstractPreference):
    r"""Importance decays with time, :math:`\log u_{hj} = -\rho_h g_j`, for events at irregular times.

    The gap :math:`g_j \ge 0`, how long ago key j was, is the last entry of the layer's input at that key. The rate
    :math:`\rho_h` is the exponential of a parameter. Queries share the log-weights, (B, heads, 1, n).

    Args:
        heads: Number of heads, or 1 to share the rate.
        rate: Initial value of every :math:`\rho`, in units of 1 / gap.

    Raises:
        ProblemError: If a size or the rate is not positive; when called, if ``key_inputs`` is None.

    Reference:
        Rajkomar et al. 2018, Scalable and accurate deep learning with electronic health records: attention to events
        at times; the textbook's 15.4.5.

    Example:
        >>> from fenchel.nn.preference import AttentionInputs
        >>> events = torch.tensor([[[0.3, 2.0], [0.1, 1.0]]])  # a number, and how long ago
        >>> inputs = AttentionInputs(1, 1, 1, 2, events.device, events.dtype, key_inputs=events)
        >>> Recency(heads=1, rate=0.5)(inputs).flatten().tolist()
        [-1.0, -0.5]
    """

    def __init__(self, heads: int, rate: float = 0.1) -> None:
        super().__init__(heads=heads)
        check_positive("Recency", rate=rate)
        self.log_rate = nn.Parameter(torch.full((heads,), math.log(rate)))

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """Minus the rate times the gap of key k, from a table with an entry for every key and head."""
        gaps = inputs.required("key_inputs", reader="Recency")[..., -1]
        decay = table(gaps.unsqueeze(-1) * -self.log_rate.exp())
        return lambda b, h, q, k: decay[b, k, h]


class Context(AbstractPreference):
    r"""The importance of each key from a network, :math:`\log u_{hj} = f_h(X)_j`, where X is the layer's whole input.

    Queries share it, (B, heads, 1, n), so inference costs little more than with a uniform preference. Padded keys keep
    the network's value: multiply by :class:`KeyPadding`, or give the layer a padding mask.

    Args:
        heads: Number of heads, or 1 to share it.
        key_dim: Width of the layer's key argument, for the default network :class:`ContextNetwork`, which starts
            uniform.
        hidden: Hidden width of the default network.
        network: Any module from (B, n, width) to (B, n, heads), in place of the default. If its ``forward`` has
            an argument ``key_padding``, it is given ``inputs.key_padding`` (or None) under that name.

    Raises:
        ProblemError: If not exactly one of ``key_dim`` and ``network`` is given; when called, if ``key_inputs`` is None
            or has another width, or the network's output has a wrong shape.

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
        self, heads: int, key_dim: int | None = None, *, hidden: int = 64, network: nn.Module | None = None
    ) -> None:
        super().__init__(heads=heads)
        if network is not None and key_dim is not None:
            raise ProblemError(
                f"Context got key_dim={key_dim} and a network; key_dim is for the default network: give only one of "
                "them."
            )
        if network is None:
            if key_dim is None:
                raise ProblemError("Context needs key_dim, the width of the layer's key, or a network.")
            network = ContextNetwork(heads, key_dim, hidden)
        check_type("network of Context", network, nn.Module, "a torch.nn.Module")
        self.key_dim, self.network = key_dim, network
        self._takes_padding = "key_padding" in inspect.signature(network.forward).parameters

    def log_weight(self, inputs: AttentionInputs) -> IndexFunction | None:
        """The importance of key k to head h, from a table with an entry for every key and head."""
        importance = table(self._importance(inputs))
        return lambda b, h, q, k: importance[b, k, h]

    def _importance(self, inputs: AttentionInputs) -> Tensor:
        """(B, n, heads)."""
        tokens = inputs.required("key_inputs", reader="Context", width=self.key_dim)
        padding = {"key_padding": inputs.key_padding} if self._takes_padding else {}
        importance = self.network(tokens, **padding)
        sizes = (inputs.batch, inputs.keys, self.heads)
        check_tensor("the output of Context's network", importance, "(batch, keys, heads)", sizes=sizes)
        return importance

    def extra_repr(self) -> str:
        """Heads, and the source of the importance."""
        source = f"key_dim={self.key_dim}" if self.key_dim else f"network={type(self.network).__name__}"
        return f"heads={self.heads}, {source}"


class ContextNetwork(nn.Module):
    r"""Score each token given the mean of all, :math:`v_h^\top \mathrm{GELU}(W x_j + U \bar x + c)`.

    :math:`\bar x` is the mean over the tokens that are not padding. v starts at 0, and so do all scores.

    Args:
        heads: Number of scores of a token.
        key_dim: Width of a token.
        hidden: Width of the hidden layer.

    Raises:
        ProblemError: If a size is not a whole number of at least 1.

    Example:
        >>> ContextNetwork(heads=4, key_dim=6)(torch.ones(2, 3, 6)).shape
        torch.Size([2, 3, 4])
    """

    def __init__(self, heads: int, key_dim: int, hidden: int = 64) -> None:
        super().__init__()
        check_sizes("ContextNetwork", heads=heads, key_dim=key_dim, hidden=hidden)
        self.own = nn.Linear(key_dim, hidden)
        self.among = nn.Linear(key_dim, hidden, bias=False)
        self.score = nn.Linear(hidden, heads, bias=False)
        nn.init.zeros_(self.score.weight)

    def forward(self, tokens: Tensor, key_padding: Tensor | None = None) -> Tensor:
        """The scores.

        Args:
            tokens: (B, n, key_dim).
            key_padding: True where a token is padding, bool (B, n), and excluded from the mean.

        Returns:
            (B, n, heads).
        """
        if key_padding is None:
            key_padding = torch.zeros(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        real = ~key_padding.unsqueeze(-1)
        # Padding may contain NaN: it is left out, not multiplied by 0.
        mean = torch.where(real, tokens, 0.0).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)
        return self.score(nn.functional.gelu(self.own(tokens) + self.among(mean)))


class Additive(AbstractPreference):
    r"""Bahdanau's additive score, :math:`\log u_{hij} = v_h^\top \tanh(W_h x_i + U_h y_j + b_h)`.

    :math:`x_i` is the query's input and :math:`y_j` the key's, both before projection. With evidence 0 this is
    Bahdanau's attention; with the layer's usual evidence the two are multiplied.

    It costs B·heads·m·n·hidden operations in each pass. Memory is bounded: queries are computed in blocks, which are
    recomputed in the backward pass. It cannot be used in a fused kernel, since each entry evaluates a network.

    Args:
        heads: Number of heads, or 1 to share it.
        query_dim: Width of the layer's query argument.
        key_dim: Width of the layer's key argument; None is ``query_dim``.
        hidden: Width of the hidden layer of each head.
        block_entries: Maximum number of hidden units in a block.

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
        key_dim = query_dim if key_dim is None else key_dim
        super().__init__(heads=heads, query_dim=query_dim, key_dim=key_dim, hidden=hidden)
        checked_argument("entries", block_entries, name="block_entries of Additive")
        self.query_dim, self.key_dim = query_dim, key_dim
        self.hidden, self.block_entries = hidden, block_entries
        self.of_query = nn.Linear(query_dim, heads * hidden)
        self.of_key = nn.Linear(key_dim, heads * hidden, bias=False)
        self.score = nn.Parameter(torch.empty(heads, hidden).uniform_(-(hidden**-0.5), hidden**-0.5))

    def forward(self, inputs: AttentionInputs) -> Tensor:
        """The log-weights (B, heads, m, n)."""
        self.check(inputs)
        x = inputs.required("query_inputs", reader="Additive", width=self.query_dim)
        y = inputs.required("key_inputs", reader="Additive", width=self.key_dim)
        return self.scores(x, self.keys(y)).to(inputs.dtype)

    def keys(self, y: Tensor) -> Tensor:
        """The hidden units of the keys, (B, heads, n, hidden), which queries of several calls can share.

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
        each = max(1, self.block_entries // entries_per_query)
        # The number of blocks may not depend on sizes in an exported graph.
        blocks = (queries,) if torch.compiler.is_exporting() else queries.split(each, dim=2)
        if len(blocks) == 1:
            return _scores(queries, keys, self.score)
        return torch.cat([recomputed(_scores, block, keys, self.score) for block in blocks], dim=2)


def _scores(queries: Tensor, keys: Tensor, score: Tensor) -> Tensor:
    """(B, H, m, n) from (B, H, m, hidden), (B, H, n, hidden) and (H, hidden)."""
    activation = torch.tanh(queries.unsqueeze(3) + keys.unsqueeze(2))
    return (activation @ score[:, None, :, None]).squeeze(-1)
