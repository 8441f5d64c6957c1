r"""Measures of the difference between attention and exact inference for every query of a layer.

With dual points λ = αz (first order), λ₂ (second order) and λ* (exact), weights p̂, p* and means ĥ, h*:

=========================  ================================================================================
relative_deviation         :math:`\lVert\lambda^\star - \alpha z\rVert / \lVert\lambda^\star\rVert`
second_order_deviation     :math:`\lVert\lambda^\star - \lambda_2\rVert / \lVert\lambda^\star\rVert`
total_variation            :math:`\frac12\sum_i\lvert \hat p_i - p^\star_i\rvert`
mean_error                 :math:`\lVert\hat h - h^\star\rVert / \lVert h^\star\rVert`
certificate                :math:`\lVert\hat h - \mu\rVert / (\lVert z\rVert - \lVert\hat h - \mu\rVert)`, or infinity
gap                        :math:`\frac\alpha2\lVert\hat h - \mu\rVert^2`
predicted_deviation        :math:`\lVert\lambda_2 - \alpha z\rVert / \lVert\lambda_2\rVert`
entropy                    :math:`-\sum_i\hat p_i\log\hat p_i`, in nats
evidence_norm              :math:`\lVert z\rVert`
dual_error                 the certificate of λ*: a bound on its error over :math:`\lVert\lambda^\star\rVert`
output_error               :math:`\lVert(p^\star - \hat p)V\rVert / \lVert\hat p V\rVert`, V the values of the head
=========================  ================================================================================

The certificate bounds the relative deviation (fact 2) and the gap bounds attention's suboptimality (fact 1); neither
needs the exact solution. As λ₂ - αz = -αΣλ₂, the predicted deviation is what the covariance Σ of the preference alone
makes of the relative deviation (fact 14). λ* is a point whose certificate, computed in float64, meets the tolerance
(:mod:`fenchel.auditing.solution`); queries without one are not ``converged``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from fenchel.auditing.heads import HeadKey
from fenchel.auditing.solution import LayerProblem, layer_problem, solutions_of
from fenchel.auditing.weight_moves import TokenClasses, largest_moves, moves_by_class
from fenchel.errors import InputError
from fenchel.integrations.capture import AttentionCall
from fenchel.io.batches import Batch
from fenchel.run_options import AuditOptions

# Number of example candidates of each window and head.
OF_A_WINDOW = 4


class FarthestSearch:
    """Collects the farthest queries of every head block by block; the result does not depend on the blocks.

    Args:
        problem: The layer.
    """

    def __init__(self, problem: LayerProblem) -> None:
        groups, heads, queries = problem.queries.shape[:3]
        shape = groups, heads, min(OF_A_WINDOW, queries)
        self._values = problem.queries.new_full(shape, -1)
        self._positions = torch.full_like(self._values, -1, dtype=torch.int64)
        self._weights = [problem.queries.new_zeros(*shape, problem.vectors.shape[1]) for _ in range(2)]

    def look(
        self, where: tuple[slice, slice, slice], variation: Tensor, weights: tuple[Tensor, Tensor]
    ) -> None:
        """Add a block of queries; the blocks of a head come in order.

        Args:
            where: Its groups, heads and queries.
            variation: Their total variation, -1 for those that do not count, (g, h, q).
            weights: Attention's weights and the exact ones, each (g, h * q, n).
        """
        g, h, q = where
        best = _largest(variation, self._values.shape[-1])  # so that only the weights of these are copied
        values = torch.cat((self._values[g, h], variation.gather(-1, best)), -1)
        order = _largest(values, self._values.shape[-1])
        self._values[g, h] = values = values.gather(-1, order)
        positions = torch.cat((self._positions[g, h], q.start + best), -1)
        self._positions[g, h] = positions.gather(-1, order).masked_fill(values < 0, -1)
        for kept, of_block in zip(self._weights, weights, strict=True):
            of_best = of_block.unflatten(1, variation.shape[1:]).take_along_dim(best.unsqueeze(-1), 2)
            kept[g, h] = torch.cat((kept[g, h], of_best), 2).take_along_dim(order.unsqueeze(-1), 2)

    def result(self, problem: LayerProblem) -> tuple[Tensor, ...]:
        """Positions and weights of the farthest of all blocks, as in :class:`Measures`."""
        weights = (weights.reshape(problem.batch, -1, *weights.shape[2:]) for weights in self._weights)
        return problem.by_head(self._positions), *weights


def _largest(values: Tensor, number: int) -> Tensor:
    """Indices of the largest values along the last dimension, largest first; of equal ones the earliest."""
    return values.argsort(dim=-1, descending=True, stable=True)[..., :number]


@dataclass(frozen=True)
class Measures:
    """Measures of one attention call.

    Attributes:
        values: Of every query, (batch, heads, m): each of ``MEASURES``; ``newton_steps`` of the exact
            solve, int64, and ``converged``, whether the float64 certificate of the exact point meets the tolerance,
            bool; ``leaves`` and ``reaches``, positions from 0, and ``leaves_weight`` and ``reaches_weight``; where
            the tokens were given, ``MOVE_COLUMNS``. Where a query is not counted, ``converged`` is false and the others
            are meaningless.
        positions: (batch, heads, k), positions of the counted queries with the largest total variation, farthest first
            and of equal ones the earliest; -1 where there are fewer.
        first_order: (batch, heads, k, n), their weights in the model's attention.
        exact: (batch, heads, k, n), their exact weights.
    """

    values: dict[str, Tensor]
    positions: Tensor
    first_order: Tensor
    exact: Tensor


@dataclass(frozen=True)
class MeasuredCall:
    """An attention call with its tokens and measures.

    Attributes:
        call: The call.
        heads: Numbers of the measured heads, from 1.
        batch: The batch as the layer sees it (:meth:`fenchel.io.batches.Batch.of_sequences`).
        tokens: Types and classes of its tokens, of the measured queries only.
        measures: The measures, (B, heads, N).
        sample: The N queries of each window that were measured.
    """

    call: AttentionCall
    heads: Sequence[int]
    batch: Batch
    tokens: TokenClasses
    measures: Measures
    sample: SampledQueries

    @property
    def keys(self) -> list[HeadKey]:
        """The measured heads."""
        return [HeadKey(self.call.site.kind, self.call.site.layer, head) for head in self.heads]


def measure(
    call: AttentionCall,
    solving: AuditOptions,
    *,
    heads: Sequence[int] | None = None,
    tokens: TokenClasses | None = None,
) -> Measures:
    """Measure every query of a captured attention call.

    Args:
        call: Arguments of the attention function.
        solving: Options with those of the solver.
        heads: Heads to measure, from 1; all where None.
        tokens: Types and classes of queries and keys, to measure the moved weight by class.

    Returns:
        The measures, in float64 for a float64 model and float32 otherwise.
    """
    with torch.no_grad():
        problem = layer_problem(call, solving.space, heads)
        counted = problem.counted(call)
        sequences = torch.arange(len(counted), device=counted.device) // (len(counted) // problem.batch)
        values: dict[str, Tensor] = {}
        farthest = FarthestSearch(problem)
        read = _values_read(call, problem, heads)
        for solution in solutions_of(problem, counted, solving):
            where = g, h, q = solution.block.where
            weights, result = solution.weights(), solution.measures()
            first, moved = (
                part.unflatten(1, solution.converged.shape[1:]) for part in (weights[0], solution.moved)
            )
            result["output_error"] = _output_error(first, moved, None if read is None else read[g, h])
            result |= largest_moves(moved)
            if tokens is not None:
                sizes = solution.sizes.view_as(moved)
                result |= moves_by_class(first, moved, sizes, tokens.of_block(sequences[g], q))
            result |= {"newton_steps": solution.steps, "converged": solution.converged}
            for name, value in result.items():
                if name not in values:
                    values[name] = value.new_zeros(counted.shape)
                values[name][where] = value
            farthest.look(where, result["total_variation"].masked_fill(~counted[where], -1), weights)
        by_head = {name: problem.by_head(value) for name, value in values.items()}
        return Measures(by_head, *farthest.result(problem))


def _values_read(call: AttentionCall, problem: LayerProblem, heads: Sequence[int] | None) -> Tensor | None:
    """Values of the heads, (groups, heads or 1, n, d_v); None where the call has none."""
    if call.value is None:
        return None
    groups, count = problem.queries.shape[:2]
    repeats = call.query.shape[1] // call.value.shape[1]
    of_heads = torch.arange(call.query.shape[1]) if heads is None else torch.as_tensor(heads) - 1
    value = call.value.to(problem.queries.dtype)
    if repeats > 1 or heads is not None:
        value = value.index_select(1, (of_heads // repeats).to(value.device))
    return value.reshape(groups, count, *value.shape[2:])


def _output_error(first: Tensor, moved: Tensor, value: Tensor | None) -> Tensor:
    if value is None:
        return first.new_full(first.shape[:-1], torch.nan)
    before = (first @ value).norm(dim=-1)
    change = (moved @ value).norm(dim=-1)
    return torch.where(change == 0, 0, change / before)


@dataclass(frozen=True)
class SampledQueries:
    """The sampled queries of an attention call.

    Attributes:
        index: (B, N), their positions in the windows, from 0, ascending; 0 where a window has fewer.
        there: (B, N) bool, whether there is a query that counts.
        population: (B,), the number of counted queries of each window, on the CPU.
    """

    index: Tensor
    there: Tensor
    population: Tensor

    def of_call(self, call: AttentionCall) -> AttentionCall:
        """The attention call with only these queries and all of its keys."""
        preference = call.preference
        if preference is not None and preference.shape[2] > 1:
            preference = self._taken(preference.expand(len(self.index), -1, -1, -1), 2)
        return replace(call, query=self._taken(call.query, 2), counted=self.there, preference=preference)

    def of_tokens(self, tokens: TokenClasses) -> TokenClasses:
        """Types and classes of these queries, given those of all."""
        return tokens.each_query(lambda of: self._taken(of, 1))

    def _taken(self, tensor: Tensor, dim: int) -> Tensor:
        """Select these queries from a tensor (B, ...) along ``dim``."""
        shape = [1] * tensor.dim()
        shape[0], shape[dim] = self.index.shape
        return tensor.take_along_dim(self.index.reshape(shape), dim)


_BYTES = 8  # of the number that a position is drawn by


def sampled_queries(call: AttentionCall, batch: Batch, size: int | str, *, seed: int) -> SampledQueries:
    """A uniform random sample of the counted queries of each window.

    Each position has a pseudorandom number that depends only on the seed, the kind of attention, the document and the
    window; the counted positions with the smallest numbers are drawn. So batches, shards and layers do not matter, the
    twin answers the same queries, and a larger sample contains a smaller one.

    Args:
        call: The attention call.
        batch: The batch as the layer sees it (:meth:`fenchel.io.batches.Batch.of_sequences`).
        size: Number of queries of a window; all of them if it has fewer, or for ``"all"``.
        seed: Seed of the draw.
    """
    counted, rows = call.counted.cpu(), list[Tensor]()
    if not isinstance(size, int):
        index = torch.arange(counted.shape[1], device=call.counted.device).expand_as(call.counted)
        return SampledQueries(index, call.counted, counted.sum(1))
    for document, window, marked in zip(batch.documents, batch.windows, counted, strict=True):
        places = marked.nonzero().flatten()
        if len(places) > size:
            # The numbers of the first positions do not depend on the length.
            name = f"{seed}/{call.site.kind}/{document}/{window}".encode()
            drawn = hashlib.shake_128(name).digest(_BYTES * len(marked))
            numbers = torch.frombuffer(bytearray(drawn), dtype=torch.int64)[places]
            places = places[numbers.argsort(stable=True)[:size]].sort().values
        rows.append(places)
    index = pad_sequence(rows, batch_first=True)
    there = torch.arange(index.shape[1]) < torch.tensor([len(row) for row in rows]).unsqueeze(1)
    device = call.counted.device
    return SampledQueries(index.to(device), there.to(device), counted.sum(1))


_LEAST_QUERIES = 16
_SHARE = 0.4
_MOST_ROWS = 10**7


def sample_size(
    queries: int | str, model: nn.Module, *, length: int | None, max_tokens: int | None = None
) -> int | None:
    r"""Number of queries of each window to measure; None for all of them.

    Of a model of width d and windows of n positions, ``"auto"`` takes

    .. math:: \max\Bigl(16, \Bigl\lceil 0.4\, n\, \frac{12 d + n}{4400 + 60 n} \Bigr\rceil\Bigr),

    for which the audit takes about 0.4 of the time of the forward pass: 12d + n is the cost of a token in a layer and
    4400 + 60n that of a query in the audit, in the same unit, as measured on the bundled encoder. Where ``max_tokens``
    is known, it takes fewer if the table would have more than ten million rows.

    Args:
        queries: A number, ``"auto"`` or ``"all"``.
        model: The model.
        length: Positions of a window; None if not known beforehand (images, ready-made inputs): all queries are taken.
        max_tokens: Maximum number of tokens that are read.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 384, "intermediate_size": 8, "num_attention_heads": 12}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1))
        >>> [sample_size("auto", model, length=n) for n in (12, 128, 512)]
        [None, 21, 30]
    """
    if queries == "all":
        return None
    if queries != "auto":
        return int(queries)
    config: Any = getattr(model, "config", None)
    if hasattr(config, "get_text_config"):  # of models of text and images, a part of the configuration
        config = config.get_text_config(decoder=True)
    width = getattr(config, "hidden_size", None)
    if length is None or not isinstance(width, int):
        return None
    size = max(_LEAST_QUERIES, math.ceil(_SHARE * length * (12 * width + length) / (4400 + 60 * length)))
    heads = getattr(config, "num_hidden_layers", 1) * getattr(config, "num_attention_heads", 1)
    if max_tokens is not None:
        size = min(size, max(1, _MOST_ROWS * length // (heads * max_tokens)))
    return size if size < length else None


def require_fewer(queries: int | None, longest: int | None) -> None:
    """Raise if a sample would contain every query of the longest window.

    Args:
        queries: Number of queries of a window; None for all.
        longest: Number of positions of the longest window; None where that is not known yet.

    Raises:
        InputError: If ``queries`` is not less than ``longest``.
    """
    if queries is None or longest is None or queries < longest:
        return
    raise InputError(
        f"queries is {queries}, but the longest window has {longest} positions; expected fewer. Ask for "
        f"{'fewer' if longest > 1 else 'none'}, or give queries='all' (--queries all) to measure all."
    )
