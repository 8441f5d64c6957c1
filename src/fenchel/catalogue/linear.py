"""Mechanisms that cost no table of scores: kernels of features, decay, regression and rules that rewrite a state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import drawn, heads
from fenchel.catalogue.entry import ESTIMATORS, Entry, Paper, Symmetry
from fenchel.catalogue.gaussian_parts import GaussianParts
from fenchel.catalogue.parts import Parts
from fenchel.catalogue.verdict import Verdict

__all__ = ["ENTRIES"]

_FAMILY = "Beyond"


def _linear(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # φ(x) is eˣ below 0, which elu(x) + 1 rounds to 0 from -18 on in float32, and log φ(x) simply x.
    of_query, of_key = (torch.where(x > 0, x.clamp(min=0).log1p(), x) for x in (query, key))
    features = torch.eye(key.shape[-1], dtype=key.dtype, device=key.device)
    return infer(
        Parts(
            templates=features.expand(*key.shape[:2], -1, -1),
            evidence=of_query,
            values=of_key.softmax(-2).mT @ value,
            log_preference=of_key.logsumexp(-2, keepdim=True),
        )
    )


def _queries_keys_values(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=5, keys=7, dim=4, value_dim=3)
    return {"query": query, "key": key, "value": value}


def _tokens(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=6, dim=4, value_dim=3)
    return {"query": query, "key": key, "value": value}


def _retention(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Tensor:
    n = key.shape[-2]
    ago = torch.arange(n, device=key.device).unsqueeze(-1) - torch.arange(n, device=key.device)
    counts = torch.where(ago >= 0, decay[:, None, None] ** ago.clamp(min=0), 0)
    return infer(GaussianParts(templates=key, evidence=query, values=value, counts=counts))


def _tokens_and_decays(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_tokens(generator, dtype), "decay": torch.tensor([0.9, 0.6], dtype=dtype)}


def _forgetting(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    n = key.shape[-2]
    kept = gate.log().cumsum(-1)
    causal = torch.ones(n, n, dtype=torch.bool, device=key.device).tril()
    log_u = (kept.unsqueeze(-1) - kept.unsqueeze(-2)).masked_fill(~causal, -torch.inf)
    return infer(Parts.scaled_dot(query, key, value, log_u))


def _tokens_and_gates(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_tokens(generator, dtype), "gate": drawn(generator, dtype, 1, 2, 6).sigmoid()}


def _mesa(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, ridge: Tensor) -> Tensor:
    counts = seen.to(key.dtype)
    return infer(GaussianParts(templates=key, evidence=query, values=value, counts=counts, alpha=1 / ridge))


def _tokens_and_ridge(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    return {**_tokens(generator, dtype), "seen": seen, "ridge": torch.tensor(0.5, dtype=dtype)}


def _gated_delta(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, rate: Tensor, gate: Tensor
) -> Tensor:
    del infer
    state = key.new_zeros(*key.shape[:2], value.shape[-1], key.shape[-1])
    outputs: list[Tensor] = []
    for q, k, v, b, a in zip(*(x.unbind(2) for x in (query, key, value, rate, gate)), strict=True):
        state = a[..., None, None] * state
        error = v - (state @ k.unsqueeze(-1)).squeeze(-1)
        state = state + b[..., None, None] * error.unsqueeze(-1) * k.unsqueeze(-2)
        outputs.append((state @ q.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 2)


def _tokens_rates_and_gates(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    tokens = _tokens(generator, dtype)
    unit = torch.nn.functional.normalize(tokens["key"], dim=-1)
    rate, gate = (drawn(generator, dtype, 1, 2, 6).sigmoid() for _ in range(2))
    return {**tokens, "key": unit, "rate": rate, "gate": gate}


_RELATIVE_ENTROPY = "KL: no other is here of normal distributions"

ENTRIES = (
    Entry(
        name="linear-attention",
        title="Linear attention",
        family=_FAMILY,
        paper=Paper(
            "Katharopoulos et al.",
            2020,
            "Transformers are RNNs: fast autoregressive transformers with linear attention",
            "eqs. (4)-(7)",
        ),
        formula="o_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ v_j / Σ_j ⟨φ(q_i), φ(k_j)⟩,  φ(x) = elu(x) + 1",
        templates="e_r, one for each feature r",
        preference="u_r ∝ Σ_j φ_r(k_j)",
        evidence="log φ(q_i)",
        values="Σ_j φ_r(k_j) v_j / Σ_j φ_r(k_j)",
        meaning=(
            "Each feature holds one mean of the values, and a query infers which features it is about: as many "
            "templates as features, whatever the number of keys, which is where the saving comes from. Causal, u and "
            "values would be those of the keys so far."
        ),
        because=(
            "Over features. Over keys all of it would be preference, u_ij ∝ ⟨φ(q_i), φ(k_j)⟩ and z = 0, as any weights "
            "above 0 can be: the logarithm of a sum of products is no inner product of the query and the key."
        ),
        exact_because=(
            "Templates are one-hot, so that what a feature's weight has gained is taken off its evidence: λ_r = log "
            "φ_r(q_i) - (p_r - u_r)."
        ),
        written=_linear,
        example=_queries_keys_values,
        symmetries=(Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2}, None)),
    ),
    Entry(
        name="retention",
        title="Retention",
        family=_FAMILY,
        paper=Paper(
            "Sun et al.",
            2023,
            "Retentive network: a successor to transformer for large language models",
            "section 2.1",
        ),
        formula="o_i = Σ_{j ≤ i} γ^{i−j} ⟨q_i, k_j⟩ v_j",
        templates="k of a pair (k, v)",
        preference="normal on pairs, of mean 0 and second moments Σ_{j ≤ i} γ^{i−j} (k_j, v_j)(k_j, v_j)ᵀ",
        evidence="q_i",
        values="v of the pair",
        closeness=_RELATIVE_ENTROPY,
        meaning=(
            "What is believed of pairs of keys and values is a normal distribution with the moments of those seen, of "
            "which older ones count less. Without decay it is causal linear attention, with φ the identity and without "
            "its denominator. The paper's rotation, scaling and group norm are left out."
        ),
        because=(
            "Under a Gaussian preference, and none over the keys: coefficients γ^{i−j}⟨q_i, k_j⟩ "
            "may be negative and sum to anything, and the paper's normalisations keep their signs. The same decay "
            "under softmax is ALiBi's preference."
        ),
        exact_because=(
            "Exact is ridge regression, ρ = 1, in which pairs count by their decay: the Mesa layer with forgetting."
        ),
        written=_retention,
        example=_tokens_and_decays,
        takes_closeness=False,
    ),
    Entry(
        name="forgetting",
        title="Forget gates under softmax",
        family=_FAMILY,
        paper=Paper("Lin et al.", 2025, "Forgetting transformer: softmax attention with a forget gate"),
        formula="p_ij ∝ Π_{j < l ≤ i} f_l · exp(⟨q_i, k_j⟩/√d) for j ≤ i",
        templates="k_j/√d",
        preference="u_ij ∝ Π_{j < l ≤ i} f_l for j ≤ i",
        evidence="q_i",
        meaning=(
            "Each token says how much of what came before it is still likely. With one f for all it is ALiBi of slope "
            "-log f."
        ),
        because="Decay is a preference wherever weights are normalised.",
        exact_because="Mean and covariance under u are those of what is not yet forgotten.",
        written=_forgetting,
        example=_tokens_and_gates,
    ),
    Entry(
        name="mesa",
        title="Mesa layer",
        family=_FAMILY,
        paper=Paper("von Oswald et al.", 2023, "Uncovering mesa-optimization algorithms in transformers"),
        formula="o_i = W_i q_i,  W_i = argmin_W Σ_{j seen by i} ‖v_j - W k_j‖² + ρ‖W‖²",
        templates="k of a pair (k, v)",
        preference="normal on pairs, of mean 0 and second moments Σ_j (k_j, v_j)(k_j, v_j)ᵀ over those seen",
        evidence="q_i, with α = 1/ρ",
        values="v of the pair",
        closeness=_RELATIVE_ENTROPY,
        meaning=(
            "It solves ridge regression of values on keys exactly, o_i = Σ_j v_j ⟨k_j, (ρI + Σ_l k_l k_lᵀ)⁻¹ q_i⟩. "
            "That is to linear attention without its denominator what exact attention is to softmax: the exact answer "
            "of an inference whose first-order answer is the other, divided by ρ."
        ),
        because=(
            "Under a Gaussian preference, and none over the keys: coefficients of values may be "
            "negative and need not sum to 1, where exact attention gives weights on the keys themselves."
        ),
        exact_differs=False,
        exact_because="A Gaussian's second order is exact; first order leaves the keys' moments out.",
        written=_mesa,
        example=_tokens_and_ridge,
        symmetries=(
            Symmetry({"query": -2, "seen": -2}),
            Symmetry({"key": -2, "value": -2, "seen": -1}, None),
        ),
        estimators=tuple(reversed(ESTIMATORS)),
        takes_closeness=False,
    ),
    Entry(
        name="gated-delta",
        title="Gated delta rule",
        family=_FAMILY,
        paper=Paper("Yang et al.", 2025, "Gated delta networks: improving Mamba2 with delta rule"),
        formula="S_i = a_i S_{i−1}(I - b_i k_i k_iᵀ) + b_i v_i k_iᵀ,  o_i = S_i q_i",
        templates="–",
        preference="–",
        evidence="–",
        values="v_j",
        closeness="–",
        meaning=(
            "A state is rewritten: what it answers to a key is moved towards the key's value by the rate b, after "
            "everything was forgotten by the gate a."
        ),
        verdict=Verdict.NOT_ONE,
        because=(
            "Each step is one step of gradient descent on ‖v_i - S k_i‖²/2 from the decayed state: a way, not the "
            "optimum that it leads to. Coefficients of values may be negative, and what is left of a pair is its "
            "value beside a key that all later keys have cut down, so that the state is no sum of counted pairs v_j "
            "k_jᵀ, which is how retention and the Mesa layer are read here. Recursive least squares, which keeps a "
            "covariance as well, would arrive at the Mesa layer."
        ),
        exact_differs=False,
        exact_because="There is no inference to be exact about.",
        written=_gated_delta,
        example=_tokens_rates_and_gates,
        estimators=("first_order",),
        takes_closeness=False,
    ),
)
