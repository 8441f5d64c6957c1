"""Mechanisms with a memory of their own: associative memories, induced points and sinks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import drawn, heads
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.catalogue.verdict import Verdict

__all__ = ["ENTRIES"]

_FAMILY = "Beyond"
_UPDATES = 3


def _hopfield(infer: Inferrer, state: Tensor, patterns: Tensor, beta: Tensor) -> Tensor:
    for _ in range(_UPDATES):
        state = infer(Parts(templates=patterns, evidence=state, values=patterns, alpha=beta))
    return state


def _states_and_patterns(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "state": drawn(generator, dtype, 1, 2, 4, 5),
        "patterns": drawn(generator, dtype, 1, 2, 6, 5),
        "beta": torch.tensor(0.7, dtype=dtype),
    }


def _induced(infer: Inferrer, points: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scale = key.shape[-1] ** -0.5
    summary = infer(Parts(templates=key * scale, evidence=points, values=value))
    return infer(Parts(templates=summary * summary.shape[-1] ** -0.5, evidence=query, values=summary))


def _points_and_set(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=6, dim=4)
    return {"points": drawn(generator, dtype, 1, 2, 3, 4), "query": query, "key": key, "value": value}


def _sink(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> Tensor:
    templates = torch.nn.functional.pad(key * key.shape[-1] ** -0.5, (0, 0, 0, 1))
    values = torch.nn.functional.pad(value, (0, 0, 0, 1))
    log_u = torch.cat([sink.new_zeros(len(sink), 1, key.shape[-2]), sink[:, None, None]], -1)
    return infer(Parts(templates=templates, evidence=query, values=values, log_preference=log_u))


def _heads_and_sinks(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=5, keys=6, dim=4, value_dim=3)
    return {"query": query, "key": key, "value": value, "sink": drawn(generator, dtype, 2)}


ENTRIES = (
    Entry(
        name="hopfield",
        title="Modern Hopfield network",
        family=_FAMILY,
        paper=Paper("Ramsauer et al.", 2021, "Hopfield networks is all you need", "eq. (3)"),
        formula="ξ⁽ᵗ⁺¹⁾ = Σ_j p_j x_j,  p_j ∝ exp(β⟨x_j, ξ⁽ᵗ⁾⟩),  three updates",
        templates="x_j, the stored patterns",
        preference="uniform",
        evidence="ξ⁽ᵗ⁾, with α = β",
        values="x_j",
        meaning=(
            "One update is attention with the patterns for keys and values. Repeated, each answer is the next "
            "question, and the state settles where it answers itself: on a pattern where β is large, on a mean of "
            "several where it is small."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "Answers are asked again. At a fixed point the answer is the question, ξ = h(βξ), where exact inference "
            "takes the answer off the question, λ* = α(μ + z - h(λ*)): iterating is no way to it."
        ),
        exact_because=(
            "Iterated exact inference is no memory: where an answer repeats its question, λ* = α(μ + ξ - ξ) = βμ, so "
            "that every state settles on the one h(βμ), whatever was asked."
        ),
        written=_hopfield,
        example=_states_and_patterns,
        symmetries=(Symmetry({"state": -2}), Symmetry({"patterns": -2}, None)),
    ),
    Entry(
        name="induced-points",
        title="Induced points",
        family=_FAMILY,
        paper=Paper(
            "Lee et al.",
            2019,
            "Set transformer: a framework for attention-based permutation-invariant neural networks",
            "section 3.1, ISAB",
        ),
        formula="h_a = Σ_j p_aj v_j,  p_aj ∝ exp(⟨i_a, k_j⟩/√d);  o_i = Σ_a r_ia h_a,  r_ia ∝ exp(⟨q_i, h_a⟩/√d)",
        templates="k_j/√d; h_a/√d",
        preference="uniform",
        evidence="i_a, learned; q_i",
        values="v_j; h_a",
        meaning=(
            "A few learned questions summarise the set, and the set's elements ask the summary: m·k + k·n scores "
            "instead of m·n. The paper's projections of h, residuals and feed-forward layers are left out."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "The answers of one inference are the templates of the next. The weights' product has rank k at most."
        ),
        exact_because="Both inferences are corrected, the second for a summary that is another already.",
        written=_induced,
        example=_points_and_set,
        symmetries=(
            Symmetry({"query": -2}),
            Symmetry({"key": -2, "value": -2}, None),
            Symmetry({"points": -2}, None),
        ),
    ),
    Entry(
        name="sink",
        title="Attention sink",
        family=_FAMILY,
        paper=Paper("Xiao et al.", 2024, "Efficient streaming language models with attention sinks"),
        formula="p_ij = exp(s_ij) / (exp(b_h) + Σ_l exp(s_il)),  s_ij = ⟨q_i, k_j⟩/√d",
        templates="k_j/√d, and 0",
        preference="u_j ∝ 1 for keys, exp(b_h) for the sink",
        evidence="q_i",
        values="v_j, and 0",
        meaning=(
            "One more template, which stands for nothing of interest: weight that no key deserves goes there. b_h is "
            "learned, as in gpt-oss; b = 0 is the softmax off by one, and torch's add_zero_attn. The paper finds that "
            "trained models use their first tokens so."
        ),
        because="Weights on keys sum to less than 1 only because the sink's share, of value 0, is not shown.",
        exact_because=(
            "First order sees the sink's score alone, which is 0 for a template of 0. Exact inference sees where it "
            "is, too: its template draws the mean to the origin."
        ),
        written=_sink,
        example=_heads_and_sinks,
        symmetries=(Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2}, None)),
    ),
)
