"""Attention's weights and the exact ones of a few queries of a call, solved once more because nobody kept them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fenchel.auditing.capture import AttentionCall
from fenchel.auditing.layer import LayerProblem, layer_problem
from fenchel.auditing.solving import solutions_of
from fenchel.closeness import AbstractCloseness

__all__ = ["Answers", "Solving", "answers"]

_MOST_STEPS = 50


@dataclass(frozen=True)
class Solving:
    """How the queries of an audit are solved.

    Attributes:
        space: ``"input"`` or ``"key"``.
        alpha: α > 0.
        tol: Relative tolerance on λ.
        memory_budget: Bytes of working memory.
        closeness: D; None is softmax.
    """

    space: str
    alpha: float
    tol: float
    memory_budget: int
    closeness: AbstractCloseness | None = None


@dataclass(frozen=True)
class Answers:
    """The weights of some queries of some heads, on the CPU.

    Attributes:
        first_order: Those of the model's attention, (heads, queries, n).
        exact: Those of the exact answer, (heads, queries, n).
    """

    first_order: Tensor
    exact: Tensor


def answers(
    call: AttentionCall, row: int, heads: Sequence[int], queries: Sequence[Sequence[int]], solving: Solving
) -> Answers:
    """The weights of a few queries.

    Args:
        call: The attention call.
        row: Row of the batch, from 0.
        heads: The heads, from 1.
        queries: For each head the positions of its queries, from 0, as many for each; none may be padding.
        solving: How they are solved.

    Returns:
        Weights over all templates.
    """
    with torch.no_grad():
        problem = _of_queries(layer_problem(_of_row(call, row), solving.space, heads), queries)
        shape = (*problem.queries.shape[:3], problem.vectors.shape[1])
        found = [problem.queries.new_zeros(shape) for _ in range(2)]
        counted = torch.ones(shape[:3], dtype=torch.bool, device=problem.queries.device)
        for solution in solutions_of(
            problem,
            counted,
            closeness=solving.closeness,
            alpha=solving.alpha,
            tol=solving.tol,
            max_steps=_MOST_STEPS,
            memory_budget=solving.memory_budget,
        ):
            g, h, q = solution.block.where
            for into, weights in zip(found, solution.weights(), strict=True):
                into[g, h, q] = weights.reshape(into[g, h, q].shape)
        first_order, exact = (part.flatten(0, 1).float().cpu() for part in found)
        return Answers(first_order, exact)


def _of_row(call: AttentionCall, row: int) -> AttentionCall:
    """The call with one row of its batch."""
    own = slice(row, row + 1)
    preference = call.preference
    return replace(
        call,
        query=call.query[own],
        key=call.key[own],
        preference=preference if preference is None or len(preference) == 1 else preference[own],
        counted=call.counted[own],
        inputs=None if call.inputs is None else call.inputs[own],
    )


def _of_queries(problem: LayerProblem, queries: Sequence[Sequence[int]]) -> LayerProblem:
    """The problem of some queries of each head, whose places are those of ``queries``."""
    groups, heads = problem.queries.shape[:2]
    index = torch.as_tensor(queries, device=problem.queries.device).reshape(groups, heads, -1, 1)

    def chosen(values: Tensor) -> Tensor:
        return values.gather(2, index.expand(*index.shape[:3], values.shape[-1]))

    preference = problem.log_preference
    if preference.shape[2] > 1:
        preference = chosen(preference.expand(groups, heads, *preference.shape[2:]))
    return replace(problem, queries=chosen(problem.queries), log_preference=preference)
