"""Mechanisms that keep weights near the preference otherwise than by relative entropy."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.entry import Entry, Inferrer, Paper, Symmetry, Verdict
from fenchel.catalogue.parts import Parts, TransportParts
from fenchel.catalogue.random_inputs import drawn, heads
from fenchel.closeness import Tsallis

_FAMILY = "Closeness, memory and linear attention"
_ROUNDS = 60


def _sparsemax(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    templates = key * key.shape[-1] ** -0.5
    return infer(Parts(templates=templates, evidence=query, values=value, closeness=Tsallis(2)))


def _entmax(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    templates = key * key.shape[-1] ** -0.5
    return infer(Parts(templates=templates, evidence=query, values=value, closeness=Tsallis(1.5)))


def _queries_keys_values(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=5, keys=7, dim=4, value_dim=3)
    return {"query": query, "key": key, "value": value}


def _transport(
    infer: Inferrer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    atoms: Tensor,
    atom_values: Tensor,
    gamma: Tensor,
) -> Tensor:
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


def _with_atoms(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=4, keys=5, dim=3)
    return {
        "query": query,
        "key": key,
        "value": value,
        "atoms": drawn(generator, dtype, 1, 2, 3, 3),
        "atom_values": drawn(generator, dtype, 1, 2, 3, 3),
        "gamma": torch.tensor([[2.0], [0.7]], dtype=dtype),
    }


def _sinkhorn(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    templates = key * key.shape[-1] ** -0.5
    scores = query @ templates.mT
    m, n = scores.shape[-2:]
    log_u = torch.zeros_like(scores[..., :1, :])
    for _ in range(_ROUNDS):
        log_p = (scores + log_u).log_softmax(-1)
        log_u = log_u - log_p.logsumexp(-2, keepdim=True) + math.log(m / n)
    return infer(Parts(templates=templates, evidence=query, values=value, log_preference=log_u))


_NO_FARTHER = (
    "As under relative entropy the mean never moves farther than at first order. Where evidence is so strong that both "
    "give all weight to one key, they agree."
)
_QUERIES_OR_KEYS = (Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2}, None))

ENTRIES = (
    Entry(
        name="sparsemax",
        title="Sparsemax attention",
        family=_FAMILY,
        paper=Paper(
            "Martins and Astudillo",
            2016,
            "From softmax to sparsemax: a sparse model of attention and multi-label classification",
            "eq. (2)",
        ),
        formula="p_i = argmin_p ‖p - s_i‖²,  s_ij = ⟨q_i, k_j⟩/√d: the scores projected to distributions",
        templates="k_j/√d",
        preference="uniform",
        evidence="q_i",
        closeness="Tsallis of order 2: ‖p - u‖²/2",
        meaning=(
            "Weights are kept near u in squared distance instead of relative entropy, and are exactly 0 where "
            "the query speaks against a key clearly enough."
        ),
        exact_because=_NO_FARTHER,
        written=_sparsemax,
        example=_queries_keys_values,
        symmetries=_QUERIES_OR_KEYS,
        takes_closeness=False,
        layer={"closeness": "Tsallis(2)"},
    ),
    Entry(
        name="entmax",
        title="Entmax attention of order 1.5",
        family=_FAMILY,
        paper=Paper("Peters et al.", 2019, "Sparse sequence-to-sequence models"),
        formula="p_ij = [s_ij/2 - τ_i]₊²,  τ_i such that Σ_j p_ij = 1,  s_ij = ⟨q_i, k_j⟩/√d",
        templates="k_j/√d",
        preference="uniform",
        evidence="q_i",
        closeness="Tsallis of order 1.5, Bregman's form",
        meaning=(
            "Between softmax (order 1) and sparsemax (order 2): weights may be exactly 0, and change smoothly until "
            "they are."
        ),
        exact_because=_NO_FARTHER,
        written=_entmax,
        example=_queries_keys_values,
        symmetries=_QUERIES_OR_KEYS,
        takes_closeness=False,
        layer={"closeness": "Tsallis(1.5)"},
    ),
    Entry(
        name="transport",
        title="Optimal-transport attention",
        family=_FAMILY,
        paper=Paper(
            "Anonymous",
            2024,
            "Deciphering attention mechanisms: optimization and Fenchel dual solutions",
            "section 9",
        ),
        formula="p_i(t) = Σ_j u_j s_ij(t),  s_ij(t) ∝ exp((⟨q_i, t⟩ - ‖t - k_j‖²)/γ),  t over keys and atoms",
        templates="k_j, and atoms that are not in the input",
        preference="uniform on the keys, 0 on the atoms",
        evidence="q_i",
        values="v_j, and a value for each atom",
        closeness="entropic transport from u, of strength γ",
        meaning=(
            "Each key spreads its weight over what is near it and fits the query, so that templates which are like a "
            "key get weight without being in the input."
        ),
        because="The cost and γ are choices; the paper's own cost is C - aᵀb.",
        exact_because="The mean at rest is that of u after it has spread.",
        written=_transport,
        example=_with_atoms,
        symmetries=(
            *_QUERIES_OR_KEYS,
            Symmetry({"atoms": -2, "atom_values": -2}, None),
        ),
        takes_closeness=False,
    ),
    Entry(
        name="sinkhorn",
        title="Doubly stochastic attention",
        family=_FAMILY,
        paper=Paper("Sander et al.", 2022, "Sinkformers: transformers with doubly stochastic attention"),
        formula="p_ij = exp(s_ij + f_i + g_j),  Σ_j p_ij = 1,  Σ_i p_ij = m/n,  s_ij = ⟨q_i, k_j⟩/√d",
        templates="k_j/√d",
        preference="u_j ∝ exp(g_j), fitted to all queries together",
        evidence="q_i",
        meaning=(
            "Every query gives out as much weight as any other and every key receives as much as any other: an "
            "entropic transport plan between queries and keys at cost -s. A key that everyone asks for is believed in "
            "less, until all get the same."
        ),
        verdict=Verdict.COMPOSITION,
        because=(
            "All queries are coupled by what keys receive, so it is not one inference a query: Sinkhorn's algorithm "
            "first fits u to all of them, then each row is the first-order answer under that u. It runs 60 rounds "
            "here; the paper's layers run a few."
        ),
        exact_because=(
            "Under the same u neither exact weights nor those of another closeness give every key as much: u was "
            "fitted to softmax."
        ),
        written=_sinkhorn,
        example=_queries_keys_values,
        symmetries=_QUERIES_OR_KEYS,
    ),
)
