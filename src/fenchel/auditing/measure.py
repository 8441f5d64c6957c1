r"""How far the attention of one layer is from the inference that it approximates, query by query.

With λ = αz what attention uses, λ* the exact dual point, λ₂ the second-order one, p̂, p* and ĥ, h* weights and means:

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
makes of the relative deviation (fact 14). λ* is a point whose own certificate, computed in float64, meets the tolerance
(:mod:`fenchel.auditing.solution`); a query for which there is none is not ``converged``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fenchel.auditing.heads import MEASURES
from fenchel.auditing.solution import LayerProblem, Solving, layer_problem, solutions_of
from fenchel.auditing.weight_moves import MOVE_COLUMNS, TokenClasses, largest_moves, moves_by_class
from fenchel.integrations.capture import AttentionCall

OF_A_WINDOW = 4

"""How many queries of a window are looked at for each head."""


@dataclass(frozen=True)
class FarthestQueries:
    """The counted queries of each sequence and head with the largest total variation.

    Attributes:
        positions: Their positions, farthest first and the first of equals, or -1 where no query is left;
            (batch, heads, some).
        first_order: Their weights in the model's attention, (batch, heads, some, n).
        exact: Their weights in the exact answer, (batch, heads, some, n).
    """

    positions: Tensor
    first_order: Tensor
    exact: Tensor


class FarthestSearch:
    """Keeps the farthest queries of every head while blocks go by; how queries are parted leaves no trace.

    Args:
        problem: The layer.
    """

    def __init__(self, problem: LayerProblem) -> None:
        groups, heads, queries = problem.queries.shape[:3]
        self._some = min(OF_A_WINDOW, queries)
        new = problem.queries.new_zeros
        self._values = new(groups, heads, self._some) - 1
        self._positions = torch.full_like(self._values, -1, dtype=torch.int64)
        self._weights = new(2, groups, heads, self._some, problem.vectors.shape[1])

    def look(
        self,
        where: tuple[slice, slice, slice],
        variation: Tensor,
        counted: Tensor,
        weights: tuple[Tensor, Tensor],
    ) -> None:
        """Look at a block of queries; those of a head come in their order.

        Args:
            where: Its groups, heads and queries.
            variation: Their total variation, (g, h, q).
            counted: Whether they count, (g, h, q).
            weights: Attention's weights and the exact ones, each (g, h * q, n).
        """
        g, h, q = where
        result = variation.masked_fill(~counted, -1)
        both = torch.cat((self._values[g, h], result), -1)
        values, order = both.sort(dim=-1, descending=True, stable=True)
        values, order = values[..., : self._some], order[..., : self._some]
        positions = torch.arange(q.start, q.start + result.shape[-1], device=result.device)
        places = torch.cat((self._positions[g, h], positions.expand_as(result)), -1).gather(-1, order)
        new, own = order >= self._some, (order - self._some).clamp(min=0)
        for number, of_rows in enumerate(weights):
            n = of_rows.shape[-1]
            kept = self._weights[number, g, h]
            chosen = of_rows.reshape(*result.shape, n).gather(2, own.unsqueeze(-1).expand(*own.shape, n))
            before = kept.gather(2, order.clamp(max=self._some - 1).unsqueeze(-1).expand(*order.shape, n))
            self._weights[number, g, h] = torch.where(new.unsqueeze(-1), chosen, before)
        self._values[g, h] = values
        self._positions[g, h] = places.masked_fill(values < 0, -1)

    def found(self, problem: LayerProblem) -> FarthestQueries:
        """The farthest of all blocks."""
        shape = problem.batch, -1, self._some
        first_order, exact = (weights.reshape(*shape, weights.shape[-1]) for weights in self._weights)
        return FarthestQueries(self._positions.reshape(shape), first_order, exact)


_PLACES = ("leaves", "reaches")


@dataclass(frozen=True)
class Measures:
    """What was measured on one attention call.

    Attributes:
        values: Each of ``MEASURES``, ``leaves_weight``, ``reaches_weight`` and, where the tokens were given,
            ``MOVE_COLUMNS``, a number a query, (batch, heads, m); ``leaves`` and ``reaches`` are positions from 0.
            Meaningless where a query is not counted.
        newton_steps: Steps that the exact solve took, (batch, heads, m).
        converged: Whether the float64 certificate of the exact point meets the tolerance, bool (batch, heads, m); false
            where a query is not counted.
        farthest: The queries that may be shown, with their weights.
    """

    values: dict[str, Tensor]
    newton_steps: Tensor
    converged: Tensor
    farthest: FarthestQueries


def measure(
    call: AttentionCall,
    solving: Solving,
    *,
    heads: Sequence[int] | None = None,
    tokens: TokenClasses | None = None,
) -> Measures:
    """Measure every query of a captured attention call.

    Args:
        call: What reached the attention function.
        solving: How its queries are solved.
        heads: Heads to measure, from 1; all where None.
        tokens: What queries and keys are, to see what moves between them.

    Returns:
        The measures, in float64 for a float64 model and float32 otherwise.
    """
    with torch.no_grad():
        problem = layer_problem(call, solving.space, heads)
        shape = problem.queries.shape[:3]
        names = [*MEASURES, "leaves_weight", "reaches_weight", *(() if tokens is None else MOVE_COLUMNS)]
        values = {name: problem.queries.new_zeros(shape) for name in names}
        steps = torch.zeros(shape, dtype=torch.int64, device=problem.queries.device)
        values |= {name: torch.zeros_like(steps) for name in _PLACES}
        converged = torch.zeros(shape, dtype=torch.bool, device=problem.queries.device)
        counted = problem.counted(call)
        sequences = torch.arange(len(counted), device=counted.device) // (len(counted) // problem.batch)
        farthest = FarthestSearch(problem)
        read = _values_read(call, problem, heads)
        for solution in solutions_of(problem, counted, solving):
            where = g, h, q = solution.block.where
            weights, result = solution.weights(), solution.measures()
            first, exact = (part.reshape(*steps[where].shape, -1) for part in weights)
            moved = first - exact
            result["output_error"] = _output_error(first, moved, None if read is None else read[g, h])
            result |= largest_moves(moved)
            if tokens is not None:
                result |= moves_by_class(first, moved, tokens.of_block(sequences[g], q))
            for name, value in result.items():
                values[name][where] = value.to(values[name].dtype)
            steps[where] = solution.steps
            converged[where] = solution.converged
            farthest.look(where, result["total_variation"], counted[where], weights)
        return Measures(
            {name: problem.by_head(value) for name, value in values.items()},
            problem.by_head(steps),
            problem.by_head(converged),
            farthest.found(problem),
        )


def _values_read(call: AttentionCall, problem: LayerProblem, heads: Sequence[int] | None) -> Tensor | None:
    """What the heads read with their weights, (groups, heads or 1, n, d_v); None where the call has none."""
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
