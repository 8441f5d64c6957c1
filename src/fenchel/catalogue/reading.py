"""The mechanisms by which a textbook's networks read sentences and images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.believed import believed
from fenchel.catalogue.drawn import drawn, drawn_module, heads
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts
from fenchel.catalogue.verdict import Verdict
from fenchel.closeness import Hard
from fenchel.nn.preference import Additive

__all__ = ["ENTRIES"]

_FAMILY = "Textbook"


def _additive(infer: Inferrer, state: Tensor, annotations: Tensor, network: Additive) -> Tensor:
    query, values = state.unsqueeze(1), annotations.unsqueeze(1)
    belief = believed(network, query, values, query_inputs=state, key_inputs=annotations)
    nothing = values.new_zeros(*query.shape[:-1], values.shape[-1])
    return infer(Parts(templates=values, evidence=nothing, values=values, log_preference=belief))


def _states_and_annotations(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "state": drawn(generator, dtype, 2, 3, 4),
        "annotations": drawn(generator, dtype, 2, 6, 5),
        "network": drawn_module(generator, dtype, Additive(heads=1, query_dim=4, key_dim=5, hidden=6)),
    }


def _attention_pooling(
    infer: Inferrer, tokens: Tensor, weight: Tensor, bias: Tensor, query: Tensor
) -> Tensor:
    hidden = torch.tanh(tokens @ weight + bias)
    return infer(Parts(templates=hidden, evidence=query.expand(*tokens.shape[:2], 1, -1), values=tokens))


def _tokens_and_a_query(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "tokens": drawn(generator, dtype, 2, 1, 6, 4),
        "weight": drawn(generator, dtype, 4, 3),
        "bias": drawn(generator, dtype, 3),
        "query": drawn(generator, dtype, 3),
    }


def _decomposable(
    infer: Inferrer,
    premise: Tensor,
    hypothesis: Tensor,
    attend: nn.Module,
    compare: nn.Module,
    aggregate: nn.Module,
) -> Tensor:
    a, b = premise.unsqueeze(1), hypothesis.unsqueeze(1)
    of_a, of_b = attend(a), attend(b)
    beside_a = infer(Parts(templates=of_b, evidence=of_a, values=b))
    beside_b = infer(Parts(templates=of_a, evidence=of_b, values=a))
    compared = (
        compare(torch.cat([own, other], -1)).sum((1, 2)) for own, other in ((a, beside_a), (b, beside_b))
    )
    return aggregate(torch.cat(tuple(compared), -1))


def _two_sentences(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    networks = {
        "attend": nn.Sequential(nn.Linear(4, 5), nn.ReLU()),
        "compare": nn.Sequential(nn.Linear(8, 5), nn.ReLU()),
        "aggregate": nn.Linear(10, 3),
    }
    return {
        "premise": drawn(generator, dtype, 2, 5, 4),
        "hypothesis": drawn(generator, dtype, 2, 6, 4),
        **{name: drawn_module(generator, dtype, network) for name, network in networks.items()},
    }


def _soft(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(Parts(templates=key, evidence=query, values=value))


def _hard(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(Parts(templates=key, evidence=query, values=value, closeness=Hard()))


def _glimpses(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=4, keys=6, dim=3)
    return {"query": query, "key": key, "value": value}


_QUERIES_OR_KEYS = (Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2}, None))
_CAPTIONS = "Show, attend and tell: neural image caption generation with visual attention"

ENTRIES = (
    Entry(
        name="additive",
        title="Additive attention",
        family=_FAMILY,
        paper=Paper(
            "Bahdanau et al.",
            2015,
            "Neural machine translation by jointly learning to align and translate",
            "section 3.1 and appendix A.1.2",
        ),
        formula="c_i = Σ_j p_ij h_j,  p_ij ∝ exp(v · tanh(W s_{i−1} + U h_j))",
        templates="h_j, which do not matter",
        preference="u_ij ∝ exp(v · tanh(W s_{i−1} + U h_j))",
        evidence="0",
        values="h_j",
        meaning=(
            "A network looks at the state that the decoder was in and at each word of the source together and says how "
            "likely that word is: all of it is belief. A bias inside tanh is allowed, which the paper's formulas leave "
            "out."
        ),
        because=(
            "A score that a network makes of both is no evidence on templates that queries share. On templates of "
            "pairs, tanh(W s_{i−1} + U h_j), v would be evidence: the same weights at first order, other exact ones."
        ),
        exact_differs=False,
        exact_because="With z = 0 the answer is u itself.",
        written=_additive,
        example=_states_and_annotations,
        symmetries=(Symmetry({"state": -2}), Symmetry({"annotations": -2}, None)),
        layer={"preference": "Additive(heads, query_dim=width)", "evidence": "NoEvidence()"},
    ),
    Entry(
        name="attention-pooling",
        title="Attention pooling",
        family=_FAMILY,
        paper=Paper(
            "Yang et al.", 2016, "Hierarchical attention networks for document classification", "eqs. (5)-(7)"
        ),
        formula="s = Σ_j p_j h_j,  p_j ∝ exp⟨tanh(W h_j + b), q⟩",
        templates="tanh(W h_j + b)",
        preference="uniform",
        evidence="q, learned: the same for every input",
        values="h_j",
        meaning=(
            "A sentence becomes one vector. What is asked of it, such as which words carry its class, is learned and "
            "the same for all sentences."
        ),
        exact_because="Exact inference moves the mean less, where words vary along the query.",
        written=_attention_pooling,
        example=_tokens_and_a_query,
        symmetries=(Symmetry({"tokens": -2}, None),),
    ),
    Entry(
        name="decomposable",
        title="Decomposable attention",
        family=_FAMILY,
        paper=Paper(
            "Parikh et al.",
            2016,
            "A decomposable attention model for natural language inference",
            "eqs. (1)-(5)",
        ),
        formula=(
            "β_i = Σ_j p_ij b_j,  p_ij ∝ exp⟨F(a_i), F(b_j)⟩ over j;  α_j = Σ_i r_ij a_i,  r_ij ∝ the same over i\n"
            "y = H(Σ_i G(a_i, β_i), Σ_j G(b_j, α_j))"
        ),
        templates="F(b_j); F(a_i)",
        preference="uniform",
        evidence="F(a_i); F(b_j)",
        values="b_j; a_i",
        meaning=(
            "Each word of a premise asks the hypothesis what it corresponds to, and each word of the hypothesis the "
            "premise; a network compares each word with the answer that it got."
        ),
        verdict=Verdict.COMPOSITION,
        because="Two inferences from one table of scores, along its rows and along its columns, compared and summed.",
        exact_because="The two directions start from the same scores, and are corrected by different covariances.",
        written=_decomposable,
        example=_two_sentences,
        symmetries=(Symmetry({"premise": -2}, None), Symmetry({"hypothesis": -2}, None)),
    ),
    Entry(
        name="soft",
        title="Soft attention",
        family=_FAMILY,
        paper=Paper("Xu et al.", 2015, _CAPTIONS, "section 4.2"),
        formula="o_i = Σ_j p_ij v_j = E[v_s] for a place s drawn from p_i,  p_ij ∝ exp⟨q_i, k_j⟩",
        templates="k_j",
        preference="uniform",
        evidence="q_i",
        meaning=(
            "The mean of what a single look would see, if the place were drawn from the inferred distribution. The "
            "paper scores with a network, as additive attention does; here the score is an inner product, and its "
            "gate on the whole answer is left out."
        ),
        exact_because="Places would be drawn from other weights.",
        written=_soft,
        example=_glimpses,
        symmetries=_QUERIES_OR_KEYS,
    ),
    Entry(
        name="hard",
        title="Hard attention",
        family=_FAMILY,
        paper=Paper("Xu et al.", 2015, _CAPTIONS, "section 4.1"),
        formula="o_i = v_j for the j with the largest ⟨q_i, k_j⟩; keys that tie share in proportion to u",
        templates="k_j",
        preference="uniform",
        evidence="q_i",
        closeness="0 on the support of u, infinite elsewhere: no closeness",
        meaning=(
            "Nothing holds the answer near the preference, so that one key gets all the weight. That is the textbook's "
            "hard attention. The paper's draws one place from soft weights instead, whose mean is soft attention, and "
            "learns by reinforcement; weights that jump pass no gradient to scores."
        ),
        because=(
            "It is the first-order answer at temperature 0. The exact problem is the point nearest to μ + q_i among "
            "all means of keys: its weights need not be unique, nor those of any dual point, so that no other "
            "estimator here finds them."
        ),
        written=_hard,
        example=_glimpses,
        symmetries=_QUERIES_OR_KEYS,
        estimators=("first_order",),
        takes_closeness=False,
    ),
)
