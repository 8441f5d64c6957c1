"""The mechanisms with which a textbook begins: soft dictionaries, masks, kernels and dot products."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import drawn, heads
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts

__all__ = ["ENTRIES"]

_FAMILY = "Textbook"
_BOOK = "Probabilistic machine learning: an introduction"


def _soft_dictionary(
    infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, score: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    nothing = torch.zeros_like(query)
    return infer(Parts(templates=key, evidence=nothing, values=value, log_preference=score(query, key)))


def _masked(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    return infer(Parts.scaled_dot(query, key, value, visible))


def _nadaraya_watson(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor, w: Tensor) -> Tensor:
    alpha = w.square()
    log_u = -alpha.unsqueeze(-1) / 2 * key.square().sum(-1).unsqueeze(-2)
    return infer(Parts(templates=key, evidence=query, values=value, log_preference=log_u, alpha=alpha))


def _dot(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(Parts(templates=key, evidence=query, values=value))


def _scaled_dot(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(Parts.scaled_dot(query, key, value))


def _queries_keys_values(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=5, keys=7, dim=4, value_dim=3)
    return {"query": query, "key": key, "value": value}


def _city_block(query: Tensor, key: Tensor) -> Tensor:
    return -torch.cdist(query, key, p=1)


def _with_score(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_queries_keys_values(generator, dtype), "score": _city_block}


def _with_mask(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    visible = torch.rand(5, 7, generator=generator) < 0.6
    visible[:, 3] = True
    return {**_queries_keys_values(generator, dtype), "visible": visible}


def _with_bandwidths(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {**_queries_keys_values(generator, dtype), "w": 0.5 + 0.1 * drawn(generator, dtype, 2, 1).abs()}


_QUERIES_OR_KEYS = (Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2}, None))

ENTRIES = (
    Entry(
        name="soft-dictionary",
        title="Soft dictionary look-up",
        family=_FAMILY,
        paper=Paper("Murphy", 2022, _BOOK, "section 15.4.1"),
        formula="o_i = Σ_j p_ij v_j,  p_ij ∝ exp a(q_i, k_j)",
        templates="k_j, which do not matter",
        preference="u_ij ∝ exp a(q_i, k_j), for any function a",
        evidence="0",
        meaning=(
            "Any score can be read as belief: a query believes in the keys that it scores high, and asks nothing more. "
            "The example's score is minus the city-block distance, which no inner product of q and k is."
        ),
        because=(
            "It says little where a is any function, since all weights above 0 can be written so; entries whose score "
            "is an inner product say what of it is evidence."
        ),
        exact_differs=False,
        exact_because=(
            "With z = 0 the answer is u itself. The same scores as evidence, say with one-hot templates e_j and "
            "z = a(q_i, ·), have the same first-order answer and another exact one."
        ),
        written=_soft_dictionary,
        example=_with_score,
        symmetries=_QUERIES_OR_KEYS,
    ),
    Entry(
        name="masked",
        title="Masked attention",
        family=_FAMILY,
        paper=Paper("Murphy", 2022, _BOOK, "section 15.4.1"),
        formula="p_ij ∝ exp(⟨q_i, k_j⟩/√d) where j is visible to i, and 0 elsewhere",
        templates="k_j/√d",
        preference="u_ij uniform on the visible keys, 0 elsewhere",
        evidence="q_i",
        meaning=(
            "What is masked is impossible before looking, and no evidence brings it back. The book writes -10⁶ for "
            "its score instead of -∞: in floating point the same weights while a key is visible, but where none is, "
            "scores that are all -10⁶ give every masked key the same weight, and -10⁶ added to scores masks nothing. "
            "Here such a row is 0."
        ),
        exact_because="Mean and covariance under u are those of the visible keys.",
        written=_masked,
        example=_with_mask,
        symmetries=(
            Symmetry({"query": -2, "visible": -2}),
            Symmetry({"key": -2, "value": -2, "visible": -1}, None),
        ),
        layer={"preference": "KeyPadding()"},
    ),
    Entry(
        name="nadaraya-watson",
        title="Kernel regression",
        family=_FAMILY,
        paper=Paper("Nadaraya; Watson", 1964, "On estimating regression; Smooth regression analysis"),
        formula="p_ij ∝ exp(-w²‖q_i - k_j‖²/2)",
        templates="k_j",
        preference="u_j ∝ exp(-w²‖k_j‖²/2)",
        evidence="q_i, with α = w²",
        meaning=(
            "Keys near the origin are more likely before looking, the query says where to look from there, and the "
            "squared inverse bandwidth is the reliability of what it says. Notes on the textbook's section 15.4.2 "
            "print the softmax of the kernel, p_ij ∝ exp(exp(-w²(q_i - k_j)²/2)), a double exponential under which no "
            "key has less than 1/e of the weight of another; kernel regression, as here, divides the kernel by its sum."
        ),
        exact_because=(
            "Where the origin is decides what is preference and what evidence. Kernel regression does not see it; the "
            "exact answer does."
        ),
        written=_nadaraya_watson,
        example=_with_bandwidths,
        symmetries=_QUERIES_OR_KEYS,
    ),
    Entry(
        name="dot",
        title="Dot-product attention",
        family=_FAMILY,
        paper=Paper(
            "Luong et al.",
            2015,
            "Effective approaches to attention-based neural machine translation",
            "section 3.1, dot",
        ),
        formula="p_ij ∝ exp⟨q_i, k_j⟩",
        templates="k_j",
        preference="uniform",
        evidence="q_i",
        meaning=(
            "The query says where the mean of the keys should move. The scores of independent entries with mean 0 and "
            "variance 1 have variance d, so that in many dimensions one key takes nearly all the weight."
        ),
        exact_because="Exact inference moves the mean less, where keys vary along the query.",
        written=_dot,
        example=_queries_keys_values,
        symmetries=_QUERIES_OR_KEYS,
        layer={"evidence": "ScaledDot(scale=1.0)"},
    ),
    Entry(
        name="scaled-dot",
        title="Scaled dot-product attention",
        family=_FAMILY,
        paper=Paper("Vaswani et al.", 2017, "Attention is all you need", "eq. (1)"),
        formula="o_i = Σ_j p_ij v_j,  p_ij ∝ exp(⟨q_i, k_j⟩/√d)",
        templates="k_j/√d",
        preference="uniform",
        evidence="q_i",
        meaning=(
            "Before looking all keys are alike, and the query says where the mean of the scaled keys should move. The "
            "scores of independent entries with mean 0 and variance 1 have variance 1."
        ),
        exact_because="Exact inference moves the mean less, where keys vary along the query.",
        written=_scaled_dot,
        example=_queries_keys_values,
        symmetries=_QUERIES_OR_KEYS,
        layer={"evidence": "ScaledDot()"},
    ),
)
