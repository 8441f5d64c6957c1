"""What the psychology of attention calls priority: where to look next, and what decides it."""

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

_FAMILY = "Mind"
_LOOKS = 4


def _returns_inhibited(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, inhibition: Tensor, memory: Tensor
) -> Tensor:
    log_u = torch.zeros_like(key[..., 0]).unsqueeze(-2)
    seen: list[Tensor] = []
    for _ in range(_LOOKS):
        weights = infer.weights(Parts(templates=key, evidence=query, values=value, log_preference=log_u))
        seen.append(weights @ value)
        log_u = memory * log_u + torch.log1p(-inhibition * weights)
    return torch.cat(seen, -2)


def _one_question(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=1, keys=6, dim=3)
    numbers = {"inhibition": 0.9, "memory": 0.8}
    return {
        "query": query,
        "key": key,
        "value": value,
        **{name: torch.tensor(number, dtype=dtype) for name, number in numbers.items()},
    }


def _guided(infer: Inferrer, features: Tensor, wanted: Tensor, value: Tensor, contrast: Tensor) -> Tensor:
    others = features.shape[-2] - 1
    salience = torch.cdist(features, features, p=1).sum(-1) / others
    log_u = (contrast * salience).unsqueeze(-2)
    return infer(Parts(templates=features, evidence=wanted, values=value, log_preference=log_u))


def _display(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "features": drawn(generator, dtype, 2, 1, 7, 3),
        "wanted": drawn(generator, dtype, 2, 1, 2, 3),
        "value": drawn(generator, dtype, 2, 1, 7, 2),
        "contrast": torch.tensor(0.5, dtype=dtype),
    }


def _gained(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, gain: Tensor) -> Tensor:
    return infer(Parts(templates=key, evidence=query, values=value, log_preference=gain.log()))


def _units_and_gains(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=3, keys=6, dim=3)
    return {
        "query": query,
        "key": key,
        "value": value,
        "gain": 1 + drawn(generator, dtype, 6).square(),
    }


def _precise(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, precision: Tensor) -> Tensor:
    return infer(Parts(templates=key, evidence=query, values=value, alpha=precision))


def _errors_and_precisions(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=4, keys=6, dim=3)
    return {
        "query": query,
        "key": key,
        "value": value,
        "precision": 0.2 + drawn(generator, dtype, 1, 2, 4).abs(),
    }


def _biased(infer: Inferrer, goal: Tensor, key: Tensor, value: Tensor, salience: Tensor) -> Tensor:
    log_u = salience.unsqueeze(-2)
    return infer(Parts(templates=key, evidence=goal, values=value, log_preference=log_u))


def _goal_and_salience(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    goal, key, value = heads(generator, dtype, queries=3, keys=6, dim=3)
    return {"goal": goal, "key": key, "value": value, "salience": drawn(generator, dtype, 1, 2, 6)}


ENTRIES = (
    Entry(
        name="inhibition-of-return",
        title="Inhibition of return",
        family=_FAMILY,
        paper=Paper("Posner and Cohen", 1984, "Components of visual orienting"),
        formula="p⁽ᵗ⁾_j ∝ u⁽ᵗ⁾_j exp⟨q, k_j⟩,  u⁽ᵗ⁺¹⁾_j ∝ (u⁽ᵗ⁾_j)^κ · (1 - ρ p⁽ᵗ⁾_j),  u⁽¹⁾ uniform",
        templates="k_j",
        preference="u⁽ᵗ⁾: less where one has just looked",
        evidence="q, the same at each look",
        meaning=(
            "Where one has looked is not believed in for a while, so that the same question finds another answer at "
            "the next look. ρ says how much of what was seen is taken away, κ how long that is remembered. The "
            "finding is one about reaction times; this rule for u is ours."
        ),
        verdict=Verdict.COMPOSITION,
        because="Each look is one inference, whose weights enter the preference of the next.",
        exact_because="Exact weights are spread otherwise, and so is what they inhibit at the next look.",
        written=_returns_inhibited,
        example=_one_question,
        symmetries=(Symmetry({"key": -2, "value": -2}, None),),
    ),
    Entry(
        name="guided-search",
        title="Guided search",
        family=_FAMILY,
        paper=Paper("Wolfe", 1994, "Guided search 2.0: a revised model of visual search"),
        formula="p_ij ∝ exp(c · mean_{l≠j} ‖f_j - f_l‖₁) · exp⟨w_i, f_j⟩",
        templates="f_j, the features of item j",
        preference="u_j ∝ exp(c · mean_{l≠j} ‖f_j - f_l‖₁): items unlike the others",
        evidence="w_i: weights on features that the target has",
        meaning=(
            "Activation is the sum of what stands out and what is looked for. Wolfe adds noise and visits items from "
            "the highest down; p is the chance to be visited first if the noise has Gumbel's distribution. He "
            "compares with near neighbours and by categories; here all others count and features are numbers."
        ),
        exact_because="What stands out has a mean of its own, from which the search for the target starts.",
        written=_guided,
        example=_display,
        symmetries=(Symmetry({"features": -2, "value": -2}, None), Symmetry({"wanted": -2})),
    ),
    Entry(
        name="gain-field",
        title="Gain field",
        family=_FAMILY,
        paper=Paper("Salinas and Abbott", 1997, "Invariant visual responses from attentional gain fields"),
        formula="o_i = Σ_j g_j r_ij v_j / Σ_j g_j r_ij,  r_ij = exp⟨q_i, k_j⟩",
        templates="k_j",
        preference="u_j ∝ g_j > 0",
        evidence="q_i",
        meaning=(
            "Attention multiplies a unit's response by a gain, whatever the response is to: u multiplies in just that "
            "way, so that odds change by the ratio of gains at every query. The paper sums the responses as they "
            "are; that they are divided by their total is ours."
        ),
        exact_because=(
            "Odds change by the ratio of gains at first order alone: a gain moves the mean that exact inference "
            "starts from."
        ),
        written=_gained,
        example=_units_and_gains,
        symmetries=(Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2, "gain": -1}, None)),
    ),
    Entry(
        name="precision",
        title="Attention as precision",
        family=_FAMILY,
        paper=Paper("Feldman and Friston", 2010, "Attention, uncertainty, and free-energy"),
        formula="p_ij ∝ exp(α_i ⟨q_i, k_j⟩)",
        templates="k_j",
        preference="uniform",
        evidence="q_i, with a reliability α_i for each query",
        meaning=(
            "To attend is to take evidence for reliable. α is the precision of a Gaussian error of the mean, and the "
            "exact dual point is a prediction error weighted by it: λ* = α(μ + z - h*). At first order, where the "
            "error is taken before any answer, λ = αz, α is an inverse temperature of the scores and nothing more."
        ),
        because="It is not the paper's generative model, only the part in it that precision has.",
        exact_because=(
            "What the answer explains is taken off the error; the larger α is, the smaller is the error that is "
            "left."
        ),
        written=_precise,
        example=_errors_and_precisions,
        symmetries=(
            Symmetry({"query": -2, "precision": -1}),
            Symmetry({"key": -2, "value": -2}, None),
        ),
    ),
    Entry(
        name="top-down",
        title="Top-down against bottom-up",
        family=_FAMILY,
        paper=Paper("Itti and Koch", 2001, "Computational modelling of visual attention"),
        formula="p_ij ∝ exp(s_j) · exp⟨g_i, k_j⟩",
        templates="k_j",
        preference="u_j ∝ exp(s_j), s the salience: bottom-up",
        evidence="g_i, the goal: top-down",
        meaning=(
            "What stands out is believed in before anything is asked; what is wanted is evidence. As α goes to 0 the "
            "answer is bottom-up alone, under a uniform u top-down alone. Asakawa's slides of 2020 call "
            "self-attention bottom-up; in these terms its query, though it comes from the input, is evidence."
        ),
        exact_because="Exact inference starts from the mean of what stands out.",
        written=_biased,
        example=_goal_and_salience,
        symmetries=(
            Symmetry({"goal": -2}),
            Symmetry({"key": -2, "value": -2, "salience": -1}, None),
        ),
    ),
)
