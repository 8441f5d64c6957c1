"""Mechanisms of a textbook: soft dictionaries, masks, kernels, dot products, and models of sentences and images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.catalogue.declaration import (
    QUERIES_KEYS_VALUES,
    QUERIES_OR_KEYS,
    UNORDERED,
    Draw,
    Family,
    cited,
    heads,
    log_weights_of,
    queries_or_keys,
)
from fenchel.catalogue.entry import Inferrer, Symmetry, Verdict
from fenchel.catalogue.parts import Parts
from fenchel.closeness import Hard
from fenchel.nn.preference import Additive

FAMILY = Family("Textbook")


def _city_block(query: Tensor, key: Tensor) -> Tensor:
    return -torch.cdist(query, key, p=1)


@FAMILY.entry(
    title="Soft dictionary look-up",
    paper=cited("murphy2022", "section 15.4.1"),
    formula="o_i = Σ_j p_ij v_j,  p_ij ∝ exp a(q_i, k_j)",
    templates="k_j, without effect",
    preference="u_ij ∝ exp a(q_i, k_j), for any function a",
    evidence="0",
    because=(
        "For an arbitrary function a this says little, since all positive weights have this form; entries with an "
        "inner product as score say which part of it is evidence."
    ),
    exact_differs=False,
    exact_because=(
        "With z = 0 the result is u itself. The same scores as evidence, for example with one-hot templates e_j and z "
        "= a(q_i, ·), have the same first-order result and another exact one."
    ),
    example={**QUERIES_KEYS_VALUES, "score": _city_block},
    symmetries=QUERIES_OR_KEYS,
)
def _soft_dictionary(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, score: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Any score can be read as a preference without evidence.

    The example's score is minus the city-block distance, which is not an inner product of q and k.
    """
    nothing = torch.zeros_like(query)
    return infer(Parts(templates=key, evidence=nothing, values=value, log_preference=score(query, key)))


def _with_mask(draw: Draw) -> dict[str, Any]:
    visible = torch.rand(5, 7, generator=draw.generator) < 0.6
    visible[:, 3] = True
    return {**draw.inputs(QUERIES_KEYS_VALUES), "visible": visible}


@FAMILY.entry(
    title="Masked attention",
    paper=cited("murphy2022", "section 15.4.1"),
    formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) if j is visible to i, else 0",
    preference="u_ij uniform on the visible keys, 0 elsewhere",
    exact_because="Mean and covariance under u are those of the visible keys.",
    example=_with_mask,
    symmetries=queries_or_keys({"visible": -2}, {"visible": -1}),
    layer={"preference": "KeyPadding()"},
)
def _masked(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Masked keys have preference 0, which no evidence changes.

    The book uses a score of -10⁶ instead of -∞: in floating point the weights are the same if a key is visible. If none
    is, setting scores to -10⁶ gives all masked keys the same weight, and adding -10⁶ to scores masks nothing. Here such
    a row is 0.
    """
    return infer(Parts.scaled_dot(query, key, value, visible))


@FAMILY.entry(
    title="Kernel regression",
    paper=cited("nadaraya1964"),
    formula="p_ij ∝ exp(-w²‖q_i - k_j‖²/2)",
    templates="k_j",
    preference="u_j ∝ exp(-w²‖k_j‖²/2)",
    evidence="q_i, with α = w²",
    exact_because=(
        "The choice of the origin determines what is preference and what is evidence. Kernel regression does not "
        "depend on it; the exact result does."
    ),
    example=lambda draw: {**draw.inputs(QUERIES_KEYS_VALUES), "w": 0.5 + 0.1 * draw(2, 1).abs()},
    symmetries=QUERIES_OR_KEYS,
)
def _nadaraya_watson(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
    """Keys near the origin have a higher preference.

    The query is evidence about the shift from there, and the squared inverse bandwidth is its reliability. Notes on the
    textbook's section 15.4.2 print the softmax of the kernel, p_ij ∝ exp(exp(-w²(q_i - k_j)²/2)), a double exponential
    under which no key has less than 1/e of the weight of another; kernel regression, as here, divides the kernel by its
    sum.
    """
    alpha = w.square()
    log_u = -alpha.unsqueeze(-1) / 2 * key.square().sum(-1).unsqueeze(-2)
    return infer(Parts(templates=key, evidence=query, values=value, log_preference=log_u, alpha=alpha))


@FAMILY.entry(
    title="Dot-product attention",
    paper=cited("luong2015", "section 3.1, dot"),
    formula="p_ij ∝ exp⟨q_i, k_j⟩",
    templates="k_j",
    exact_because="Exact inference moves the mean less, where keys vary along the query.",
    layer={"evidence": "ScaledDot(scale=1.0)"},
    **UNORDERED,
)
def _dot(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The query is evidence about the shift of the mean of the keys.

    Scores of independent entries with mean 0 and variance 1 have variance d; in many dimensions one key gets nearly all
    weight.
    """
    return infer(Parts(templates=key, evidence=query, values=value))


@FAMILY.entry(
    title="Scaled dot-product attention",
    paper=cited("vaswani2017", "eq. (1)"),
    formula="o_i = Σ_j p_ij v_j,  p_ij ∝ exp(⟨q_i, k_j⟩/√d)",
    exact_because="Exact inference moves the mean less, where keys vary along the query.",
    layer={"evidence": "ScaledDot()"},
    **UNORDERED,
)
def _scaled_dot(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All keys have the same preference, and the query is evidence about the shift of the mean of the scaled keys.

    Scores of independent entries with mean 0 and variance 1 have variance 1.
    """
    return infer(Parts.scaled_dot(query, key, value))


@FAMILY.entry(
    title="Additive attention",
    paper=cited("bahdanau2015", "section 3.1 and appendix A.1.2"),
    formula="c_i = Σ_j p_ij h_j,  p_ij ∝ exp(v · tanh(W s_{i−1} + U h_j + b)),  b = 0 in the paper",
    templates="h_j, without effect",
    preference="u_ij ∝ exp(v · tanh(W s_{i−1} + U h_j + b))",
    evidence="0",
    values="h_j",
    because=(
        "A nonlinear score of both is not evidence on templates shared by queries. On templates of pairs, tanh(W "
        "s_{i−1} + U h_j + b), v would be evidence: the same weights at first order, other exact ones."
    ),
    exact_differs=False,
    exact_because="With z = 0 the result is u itself.",
    example=lambda draw: {
        "state": draw(2, 3, 4),
        "annotations": draw(2, 6, 5),
        "network": draw.module(Additive(heads=1, query_dim=4, key_dim=5, hidden=6)),
    },
    symmetries=(Symmetry({"state": -2}), Symmetry({"annotations": -2}, None)),
    layer={"preference": "Additive(heads, query_dim=width)", "evidence": "NoEvidence()"},
)
def _additive(infer: Inferrer, state: Tensor, annotations: Tensor, network: Additive) -> Tensor:
    """A network scores each word of the source from the word and the previous state of the decoder.

    All of it is preference.
    """
    query, values = state.unsqueeze(1), annotations.unsqueeze(1)
    belief = log_weights_of(network, query, values, query_inputs=state, key_inputs=annotations)
    nothing = values.new_zeros(*query.shape[:-1], values.shape[-1])
    return infer(Parts(templates=values, evidence=nothing, values=values, log_preference=belief))


@FAMILY.entry(
    title="Attention pooling",
    paper=cited("yang2016", "eqs. (5)-(7)"),
    formula="s = Σ_j p_j h_j,  p_j ∝ exp⟨tanh(W h_j + b), q⟩",
    templates="tanh(W h_j + b)",
    evidence="q, learned: the same for every input",
    values="h_j",
    exact_because="Exact inference moves the mean less, where words vary along the query.",
    example={"tokens": (2, 1, 6, 4), "weight": (4, 3), "bias": (3,), "query": (3,)},
    symmetries=(Symmetry({"tokens": -2}, None),),
)
def _attention_pooling(
    infer: Inferrer, tokens: Tensor, weight: Tensor, bias: Tensor, query: Tensor
) -> Tensor:
    """A sentence becomes one vector.

    The query, such as which words indicate its class, is learned and the same for all sentences.
    """
    hidden = torch.tanh(tokens @ weight + bias)
    return infer(Parts(templates=hidden, evidence=query.expand(*tokens.shape[:2], 1, -1), values=tokens))


def _two_sentences(draw: Draw) -> dict[str, Any]:
    networks = {
        "attend": nn.Sequential(nn.Linear(4, 5), nn.ReLU()),
        "compare": nn.Sequential(nn.Linear(8, 5), nn.ReLU()),
        "aggregate": nn.Linear(10, 3),
    }
    return {
        "premise": draw(2, 5, 4),
        "hypothesis": draw(2, 6, 4),
        **{name: draw.module(network) for name, network in networks.items()},
    }


@FAMILY.entry(
    title="Decomposable attention",
    paper=cited("parikh2016", "eqs. (1)-(5)"),
    formula=(
        "β_i = Σ_j p_ij b_j,  p_ij ∝ exp⟨F(a_i), F(b_j)⟩ over j;  α_j = Σ_i r_ij a_i,  r_ij ∝ the same over i\n"
        "y = H(Σ_i G(a_i, β_i), Σ_j G(b_j, α_j))"
    ),
    templates="F(b_j); F(a_i)",
    evidence="F(a_i); F(b_j)",
    values="b_j; a_i",
    verdict=Verdict.COMPOSITION,
    because="Two inferences from one matrix of scores, along its rows and along its columns, compared and summed.",
    exact_because="The two directions have the same scores but different covariances.",
    example=_two_sentences,
    symmetries=(Symmetry({"premise": -2}, None), Symmetry({"hypothesis": -2}, None)),
)
def _decomposable(
    infer: Inferrer,
    premise: Tensor,
    hypothesis: Tensor,
    attend: nn.Module,
    compare: nn.Module,
    aggregate: nn.Module,
) -> Tensor:
    """Each word of a premise attends to the hypothesis, and each word of the hypothesis to the premise.

    A network compares each word with its result.
    """
    a, b = premise.unsqueeze(1), hypothesis.unsqueeze(1)
    of_a, of_b = attend(a), attend(b)
    beside_a = infer(Parts(templates=of_b, evidence=of_a, values=b))
    beside_b = infer(Parts(templates=of_a, evidence=of_b, values=a))
    compared = (
        compare(torch.cat([own, other], -1)).sum((1, 2)) for own, other in ((a, beside_a), (b, beside_b))
    )
    return aggregate(torch.cat(tuple(compared), -1))


_GLIMPSES = heads(queries=4, keys=6, dim=3)


@FAMILY.entry(
    title="Soft attention",
    paper=cited("xu2015", "section 4.2"),
    formula="o_i = Σ_j p_ij v_j = E[v_s] for a position s drawn from p_i,  p_ij ∝ exp⟨q_i, k_j⟩",
    templates="k_j",
    exact_because="Positions would be drawn from other weights.",
    example=_GLIMPSES,
    symmetries=QUERIES_OR_KEYS,
)
def _soft(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The mean of the value at a single position drawn from the inferred distribution.

    The paper scores with a network, as in additive attention; here the score is an inner product, and the paper's gate
    on the output is omitted.
    """
    return infer(Parts(templates=key, evidence=query, values=value))


@FAMILY.entry(
    title="Hard attention",
    paper=cited("xu2015", "section 4.1"),
    formula="o_i = v_j for the j with the largest ⟨q_i, k_j⟩; ties share in proportion to u",
    templates="k_j",
    closeness="0 on the support of u, infinite elsewhere: no closeness",
    because=(
        "It is the first-order estimate at temperature 0. The exact solution is the mean of keys nearest to μ + q_i: "
        "its weights may not be unique and may not belong to any dual point, so no other estimator is available."
    ),
    example=_GLIMPSES,
    symmetries=QUERIES_OR_KEYS,
    estimators=("first_order",),
    takes_closeness=False,
)
def _hard(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Without a closeness one key gets all weight.

    This is the textbook's hard attention. The paper's draws one position from soft weights instead, with soft attention
    as its mean, and learns by reinforcement; discontinuous weights have no gradient to scores.
    """
    return infer(Parts(templates=key, evidence=query, values=value, closeness=Hard()))
