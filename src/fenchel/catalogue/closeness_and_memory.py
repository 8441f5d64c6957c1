"""Other closenesses, associative memories, induced points, sinks, linear attention and its update rules."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import ESTIMATORS
from fenchel.catalogue.declaration import (
    NO_INFERENCE,
    QUERIES_OR_KEYS,
    UNORDERED,
    Draw,
    Family,
    cited,
    heads,
    queries_or_keys,
)
from fenchel.catalogue.entry import Inferrer, Symmetry, Verdict
from fenchel.catalogue.parts import GaussianParts, Parts, TransportParts
from fenchel.closeness import Tsallis

FAMILY = Family("Closeness, memory and linear attention")


_NO_FARTHER = (
    "As under relative entropy, the mean never shifts more than at first order. If the evidence is strong enough for "
    "both to give all weight to one key, they agree."
)


@FAMILY.entry(
    title="Sparsemax attention",
    paper=cited("martins2016", "eq. (2)"),
    formula="p_i = argmin_p ‖p - s_i‖²,  s_ij = ⟨q_i, k_j⟩/√d: the scores projected to distributions",
    closeness="Tsallis of order 2: ‖p - u‖²/2",
    exact_because=_NO_FARTHER,
    takes_closeness=False,
    layer={"closeness": "Tsallis(2)"},
    **UNORDERED,
)
def _sparsemax(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The closeness is squared distance instead of relative entropy.

    Weights are exactly 0 for keys with low enough scores.
    """
    return infer(replace(Parts.scaled_dot(query, key, value), closeness=Tsallis(2)))


@FAMILY.entry(
    title="Entmax attention of order 1.5",
    paper=cited("peters2019"),
    formula="p_ij = [s_ij/2 - τ_i]₊²,  τ_i such that Σ_j p_ij = 1,  s_ij = ⟨q_i, k_j⟩/√d",
    closeness="Tsallis of order 1.5, Bregman's form",
    exact_because=_NO_FARTHER,
    takes_closeness=False,
    layer={"closeness": "Tsallis(1.5)"},
    **UNORDERED,
)
def _entmax(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Between softmax (order 1) and sparsemax (order 2).

    Weights may be exactly 0, and change smoothly until they are.
    """
    return infer(replace(Parts.scaled_dot(query, key, value), closeness=Tsallis(1.5)))


@FAMILY.entry(
    title="Optimal-transport attention",
    paper=cited("anonymous2024", "section 9"),
    formula="p_i(t) = Σ_j u_j s_ij(t),  s_ij(t) ∝ exp((⟨q_i, t⟩ - ‖t - k_j‖²)/γ),  t over keys and atoms",
    templates="k_j, and atoms, which are not in the input",
    preference="uniform on the keys, 0 on the atoms",
    values="v_j, and a value for each atom",
    closeness="entropic transport from u, of strength γ",
    because="The cost and γ are free choices; the paper's cost is C - aᵀb.",
    exact_because="The mean without evidence is that of u after transport.",
    example={
        **heads(queries=4, keys=5, dim=3),
        "atoms": (1, 2, 3, 3),
        "atom_values": (1, 2, 3, 3),
        "gamma": [[2.0], [0.7]],
    },
    symmetries=(*QUERIES_OR_KEYS, Symmetry({"atoms": -2, "atom_values": -2}, None)),
    takes_closeness=False,
)
def _transport(
    infer: Inferrer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atoms: Tensor,
    atom_values: Tensor,
    gamma: Tensor,
) -> Tensor:
    """Each key distributes its weight over nearby templates that match the query.

    Templates similar to a key can get weight without being in the input.
    """
    return infer(
        TransportParts(
            templates=key,
            atoms=atoms,
            evidence=query,
            values=torch.cat([value, atom_values], -2),
            gamma=gamma,
            cost="squared_euclidean",
        )
    )


_ROUNDS = 60


@FAMILY.entry(
    title="Doubly stochastic attention",
    paper=cited("sander2022"),
    formula="p_ij = exp(s_ij + f_i + g_j),  Σ_j p_ij = 1,  Σ_i p_ij = m/n,  s_ij = ⟨q_i, k_j⟩/√d",
    preference="u_j ∝ exp(g_j), fitted to all queries jointly",
    verdict=Verdict.COMPOSITION,
    because=(
        "The constraint on keys couples all queries, so it is not one inference per query: Sinkhorn's algorithm first "
        "fits u to all queries, then each row is the first-order estimate under that u. Here it runs 60 iterations; "
        "the paper's layers run a few."
    ),
    exact_because=(
        "u is fitted to softmax: under the same u, the keys' totals differ in exact inference and under another "
        "closeness."
    ),
    **UNORDERED,
)
def _sinkhorn(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All queries give equal total weight and all keys receive equal total weight.

    It is an entropic transport plan between queries and keys with cost -s. Keys with high scores for many queries get a
    lower preference, until all keys receive the same.
    """
    templates = key * key.shape[-1] ** -0.5
    scores = query @ templates.mT
    m, n = scores.shape[-2:]
    log_u = torch.zeros_like(scores[..., :1, :])
    for _ in range(_ROUNDS):
        log_p = (scores + log_u).log_softmax(-1)
        log_u = log_u - log_p.logsumexp(-2, keepdim=True) + math.log(m / n)
    return infer(Parts(templates=templates, evidence=query, values=value, log_preference=log_u))


_UPDATES = 3


@FAMILY.entry(
    title="Modern Hopfield network",
    paper=cited("ramsauer2021", "eq. (3)"),
    formula="ξ⁽ᵗ⁺¹⁾ = Σ_j p_j x_j,  p_j ∝ exp(β⟨x_j, ξ⁽ᵗ⁾⟩),  three updates",
    templates="x_j, the stored patterns",
    evidence="ξ⁽ᵗ⁾, with α = β",
    values="x_j",
    verdict=Verdict.COMPOSITION,
    because=(
        "Outputs become queries. At a fixed point the output equals the query, ξ = h(βξ), whereas exact inference "
        "subtracts the output, λ* = α(μ + z - h(λ*)): the iteration does not converge to it."
    ),
    exact_because=(
        "Iterated exact inference is not a memory: if the output equals the query, λ* = α(μ + ξ - ξ) = βμ, so the only "
        "fixed point is h(βμ), for every query."
    ),
    example={"state": (1, 2, 4, 5), "patterns": (1, 2, 6, 5), "beta": 0.7},
    symmetries=(Symmetry({"state": -2}), Symmetry({"patterns": -2}, None)),
)
def _hopfield(infer: Inferrer, state: Tensor, patterns: Tensor, beta: Tensor) -> Tensor:
    """One update is attention with the patterns as keys and values.

    It is iterated with each output as the next query, and converges to a fixed point: a pattern for large β, a mean of
    several patterns for small β.
    """
    for _ in range(_UPDATES):
        state = infer(Parts(templates=patterns, evidence=state, values=patterns, alpha=beta))
    return state


@FAMILY.entry(
    title="Induced points",
    paper=cited("lee2019", "section 3.1, ISAB"),
    formula="h_a = Σ_j p_aj v_j,  p_aj ∝ exp(⟨i_a, k_j⟩/√d);  o_i = Σ_a r_ia h_a,  r_ia ∝ exp(⟨q_i, h_a⟩/√d)",
    templates="k_j/√d; h_a/√d",
    evidence="i_a, learned; q_i",
    values="v_j; h_a",
    verdict=Verdict.COMPOSITION,
    because=(
        "The outputs of one inference are the templates of the next. The product of the weights has rank at most k."
    ),
    exact_because="Both inferences differ, and the second one attends to a different summary.",
    example={**heads(), "points": (1, 2, 3, 4)},
    symmetries=(*QUERIES_OR_KEYS, Symmetry({"points": -2}, None)),
)
def _induced_points(infer: Inferrer, points: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """A few learned queries summarise the set, and the elements of the set attend to the summary.

    This takes m·k + k·n scores instead of m·n. The paper's projections of h, residuals and feed-forward layers are
    omitted.
    """
    scale = key.shape[-1] ** -0.5
    summary = infer(Parts(templates=key * scale, evidence=points, values=value))
    return infer(Parts(templates=summary * summary.shape[-1] ** -0.5, evidence=query, values=summary))


@FAMILY.entry(
    title="Attention sink",
    paper=cited("xiao2024"),
    formula="p_ij = exp(s_ij) / (exp(b_h) + Σ_l exp(s_il)),  s_ij = ⟨q_i, k_j⟩/√d",
    templates="k_j/√d, and 0",
    preference="u_j ∝ 1 for keys, exp(b_h) for the sink",
    values="v_j, and 0",
    because="Weights on keys sum to less than 1 only because the sink's weight, on a value of 0, is not shown.",
    exact_because=(
        "First order depends only on the sink's score, 0 for a template of 0. Exact inference also depends on the "
        "template itself, which shifts the mean towards the origin."
    ),
    example={**heads(queries=5, keys=6, value_dim=3), "sink": (2,)},
    symmetries=QUERIES_OR_KEYS,
)
def _sink(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, sink: Tensor) -> Tensor:
    """An additional template without content takes weight when no key matches.

    b_h is learned, as in gpt-oss; b = 0 is the softmax off by one, and torch's add_zero_attn. The paper finds that
    trained models use their first tokens in this way.
    """
    templates = torch.nn.functional.pad(key * key.shape[-1] ** -0.5, (0, 0, 0, 1))
    values = torch.nn.functional.pad(value, (0, 0, 0, 1))
    log_u = torch.cat([sink.new_zeros(len(sink), 1, key.shape[-2]), sink[:, None, None]], -1)
    return infer(Parts(templates=templates, evidence=query, values=values, log_preference=log_u))


@FAMILY.entry(
    title="Linear attention",
    paper=cited("katharopoulos2020", "eqs. (4)-(7)"),
    formula="o_i = Σ_j ⟨φ(q_i), φ(k_j)⟩ v_j / Σ_j ⟨φ(q_i), φ(k_j)⟩,  φ(x) = elu(x) + 1",
    templates="e_r, one for each feature r",
    preference="u_r ∝ Σ_j φ_r(k_j)",
    evidence="log φ(q_i)",
    values="Σ_j φ_r(k_j) v_j / Σ_j φ_r(k_j)",
    because=(
        "This is inference over features. Over keys it would be all preference, u_ij ∝ ⟨φ(q_i), φ(k_j)⟩ and z = 0, as "
        "is possible for any positive weights: the logarithm of a sum of products is not an inner product of query and "
        "key."
    ),
    exact_because=(
        "Templates are one-hot, so the increase of a feature's weight is subtracted from its evidence: λ_r = log "
        "φ_r(q_i) - (p_r - u_r)."
    ),
    **UNORDERED,
)
def _linear_attention(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    # φ(x) is eˣ below 0, which elu(x) + 1 rounds to 0 from -18 on in float32, and log φ(x) simply x.
    """Each feature has one mean of the values, and a query infers which features match.

    The number of templates is that of the features and does not grow with the number of keys, which saves time and
    memory. In causal attention u and values are those of the keys so far.
    """
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


_RELATIVE_ENTROPY = "KL: the only one available for normal distributions"


_TOKENS = heads(value_dim=3)


@FAMILY.entry(
    title="Retention",
    paper=cited("sun2023", "section 2.1"),
    formula="o_i = Σ_{j ≤ i} γ^{i−j} ⟨q_i, k_j⟩ v_j",
    templates="k of a pair (k, v)",
    preference="normal on pairs, with mean 0 and second moments Σ_{j ≤ i} γ^{i−j} (k_j, v_j)(k_j, v_j)ᵀ",
    values="v of the pair",
    closeness=_RELATIVE_ENTROPY,
    because=(
        "Inference under a Gaussian preference, not over the keys: coefficients γ^{i−j}⟨q_i, k_j⟩ may be negative with "
        "any sum, and the paper's normalisations keep their signs. The same decay in softmax attention is ALiBi's "
        "preference."
    ),
    exact_because=(
        "Exact inference is ridge regression with ρ = 1 and pairs weighted by decay: the Mesa layer with forgetting."
    ),
    example={**_TOKENS, "decay": [0.9, 0.6]},
    takes_closeness=False,
)
def _retention(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, decay: Tensor) -> Tensor:
    """The preference over pairs of keys and values is a normal distribution.

    Its moments are those of the pairs seen so far, older ones with less weight. Without decay it is causal linear
    attention, with φ the identity and without the denominator. The paper's rotation, scaling and group norm are
    omitted.
    """
    n = key.shape[-2]
    ago = torch.arange(n, device=key.device).unsqueeze(-1) - torch.arange(n, device=key.device)
    counts = torch.where(ago >= 0, decay[:, None, None] ** ago.clamp(min=0), 0)
    return infer(GaussianParts(templates=key, evidence=query, values=value, counts=counts))


@FAMILY.entry(
    title="Softmax attention with forget gates",
    paper=cited("lin2025"),
    formula="p_ij ∝ Π_{j < l ≤ i} f_l · exp(⟨q_i, k_j⟩/√d) for j ≤ i",
    preference="u_ij ∝ Π_{j < l ≤ i} f_l for j ≤ i",
    because="Decay is a preference if weights are normalised.",
    exact_because="Mean and covariance under u are weighted by the gates.",
    example=lambda draw: {**draw.inputs(_TOKENS), "gate": draw(1, 2, 6).sigmoid()},
)
def _forgetting(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, gate: Tensor) -> Tensor:
    """The gate of each token multiplies the preference of all earlier keys.

    With one f for all tokens it is ALiBi with slope -log f.
    """
    n = key.shape[-2]
    kept = gate.log().cumsum(-1)
    causal = torch.ones(n, n, dtype=torch.bool, device=key.device).tril()
    log_u = (kept.unsqueeze(-1) - kept.unsqueeze(-2)).masked_fill(~causal, -torch.inf)
    return infer(Parts.scaled_dot(query, key, value, log_u))


# A tilt by ⟨k, λ⟩ is a tilt of pairs by (λ, 0), which moves the mean by the covariance times (λ, 0): E[v] = Σ c v kᵀλ.
# First order is λ = αz; the exact point is (ρI + Σ)⁻¹z with Σ = Σ c k kᵀ. And W = Σ c v kᵀ(ρI + Σ)⁻¹ minimises
# Σ c ‖v - W k‖² + ρ‖W‖².
@FAMILY.entry(
    title="Mesa layer",
    paper=cited("vonoswald2023"),
    formula="o_i = W_i q_i,  W_i = argmin_W Σ_{j seen by i} ‖v_j - W k_j‖² + ρ‖W‖²",
    templates="k of a pair (k, v)",
    preference="normal on pairs, with mean 0 and second moments Σ_j (k_j, v_j)(k_j, v_j)ᵀ of those seen",
    evidence="q_i, with α = 1/ρ",
    values="v of the pair",
    closeness=_RELATIVE_ENTROPY,
    because=(
        "Inference under a Gaussian preference, not over the keys: coefficients of values may be negative and need not "
        "sum to 1, whereas exact attention gives weights over the keys."
    ),
    exact_differs=False,
    exact_because="Second order is exact for a Gaussian; first order ignores the moments of the keys.",
    example={**_TOKENS, "seen": torch.ones(6, 6, dtype=torch.bool).tril(), "ridge": 0.5},
    symmetries=queries_or_keys({"seen": -2}, {"seen": -1}),
    estimators=tuple(reversed(ESTIMATORS)),
    takes_closeness=False,
)
def _mesa(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, seen: Tensor, ridge: Tensor) -> Tensor:
    """It solves ridge regression of values on keys exactly, o_i = Σ_j v_j ⟨k_j, (ρI + Σ_l k_l k_lᵀ)⁻¹ q_i⟩.

    It relates to linear attention without denominator as exact attention does to softmax attention: it is the exact
    result of an inference whose first-order estimate is linear attention divided by ρ.
    """
    counts = seen.to(key.dtype)
    return infer(GaussianParts(templates=key, evidence=query, values=value, counts=counts, alpha=1 / ridge))


def _tokens_rates_and_gates(draw: Draw) -> dict[str, Any]:
    tokens = draw.inputs(_TOKENS)
    unit = torch.nn.functional.normalize(tokens["key"], dim=-1)
    rate, gate = (draw(1, 2, 6).sigmoid() for _ in range(2))
    return {**tokens, "key": unit, "rate": rate, "gate": gate}


@FAMILY.entry(
    title="Gated delta rule",
    paper=cited("yang2025"),
    formula="S_i = a_i S_{i−1}(I - b_i k_i k_iᵀ) + b_i v_i k_iᵀ,  o_i = S_i q_i",
    because=(
        "Each step is one gradient step on ‖v_i - S k_i‖²/2 from the decayed state, not the optimum. Coefficients of "
        "values may be negative, and later keys change the key with which each value is stored; unlike in retention "
        "and the Mesa layer, the state is therefore not a weighted sum of pairs v_j k_jᵀ. Recursive least squares, "
        "which also stores a covariance, would give the Mesa layer."
    ),
    exact_because="There is no inference to solve exactly.",
    example=_tokens_rates_and_gates,
    **NO_INFERENCE,
)
def _gated_delta(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, rate: Tensor, gate: Tensor
) -> Tensor:
    """A state is updated.

    It first decays by the gate a, then its output for the key moves towards the key's value at rate b.
    """
    del infer
    state = key.new_zeros(*key.shape[:2], value.shape[-1], key.shape[-1])
    outputs: list[Tensor] = []
    for q, k, v, b, a in zip(*(x.unbind(2) for x in (query, key, value, rate, gate)), strict=True):
        state = a[..., None, None] * state
        error = v - (state @ k.unsqueeze(-1)).squeeze(-1)
        state = state + b[..., None, None] * error.unsqueeze(-1) * k.unsqueeze(-2)
        outputs.append((state @ q.unsqueeze(-1)).squeeze(-1))
    return torch.stack(outputs, 2)
