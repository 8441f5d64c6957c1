"""The mechanisms with which a textbook begins: soft dictionaries and the scores of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import heads
from fenchel.catalogue.entry import Entry, Paper, Symmetry
from fenchel.catalogue.parts import Parts

__all__ = ["ENTRIES"]

_FAMILY = "Textbook"


def _scaled_dot(infer: Inferrer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return infer(Parts(templates=key * key.shape[-1] ** -0.5, evidence=query, values=value))


def _queries_keys_values(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    query, key, value = heads(generator, dtype, queries=5, keys=7, dim=4, value_dim=3)
    return {"query": query, "key": key, "value": value}


ENTRIES = (
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
            "scores of independent entries with variance 1 have variance 1."
        ),
        exact_because="Exact inference moves the mean less, where keys vary along the query.",
        written=_scaled_dot,
        example=_queries_keys_values,
        symmetries=(Symmetry({"query": -2}), Symmetry({"key": -2, "value": -2}, None)),
        layer={"evidence": "ScaledDot()"},
    ),
)
