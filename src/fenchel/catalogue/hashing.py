"""Attention to what hashes to the same bucket."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fenchel import functional
from fenchel.catalogue.answer import Inferrer
from fenchel.catalogue.drawn import drawn
from fenchel.catalogue.entry import Entry, Paper
from fenchel.catalogue.parts import Parts

__all__ = ["ENTRIES"]

_REFORMER = "Reformer: the efficient transformer"


def _reformer(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk, same_bucket=True, count_meetings=False)


def _reformer_as_run(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, chunk: int) -> Tensor:
    return _hashed(infer, query, value, rotations, chunk=chunk)


def _hashed(infer: Inferrer, query: Tensor, value: Tensor, rotations: Tensor, **options: Any) -> Tensor:
    buckets = functional.hash_buckets(query, rotations)
    log_u = functional.hashing_log_preference(buckets, causal=True, dtype=query.dtype, **options)
    templates = normalize(query, dim=-1)
    return infer(Parts(templates=templates, evidence=query, values=value, log_preference=log_u))


def _example(generator: torch.Generator, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "query": drawn(generator, dtype, 1, 2, 8, 4),
        "value": drawn(generator, dtype, 1, 2, 8, 3),
        "rotations": drawn(generator, dtype, 2, 4, 2, 2),
        "chunk": 2,
    }


_MEANING = (
    "Before looking, a token believes in the tokens that fell into its chunk, or the one before, when all were "
    "sorted by hash: there is where vectors in its direction are likely to be. Keys are the queries with length 1. A "
    "token believes in itself only where it meets nobody else, since nothing is more like it."
)

ENTRIES = (
    Entry(
        name="reformer",
        title="Reformer",
        family="Vision, hashing and gates",
        paper=Paper("Kitaev et al.", 2020, _REFORMER, "section 2 and appendix A"),
        formula="o_i = Σ_j p_ij v_j,  p_ij ∝ u_ij exp⟨q_i, q_j/‖q_j‖⟩",
        templates="q_j/‖q_j‖",
        preference=(
            "uniform on the j ≤ i that i meets in the same bucket, in any round; i itself only if there is none"
        ),
        evidence="q_i",
        meaning=_MEANING,
        because=(
            "The rounds' answers, weighted by their normalisers, with a key met in N rounds divided by N, are one "
            "softmax over the union of what is met. The preference depends on the queries, by what hashes them, and "
            "passes no gradient. functional.hashing_attention computes it in chunks, without an n × n array. The "
            "paper's text has a scale 1/√d that it leaves out of its equations; so does this."
        ),
        exact_because=(
            "Mean and covariance under u are those of what a token meets: few keys, often in similar directions."
        ),
        written=_reformer,
        example=_example,
    ),
    Entry(
        name="reformer-as-run",
        title="Reformer, as it is run",
        family="Vision, hashing and gates",
        paper=Paper("Kitaev et al.", 2020, _REFORMER, "appendix A, and the code of transformers"),
        formula="o_i = Σ_j p_ij v_j,  p_ij ∝ N_ij exp⟨q_i, q_j/‖q_j‖⟩",
        templates="q_j/‖q_j‖",
        preference=(
            "u_ij ∝ N_ij, the number of times that i meets j ≤ i in all rounds; i itself only if it meets nobody"
        ),
        evidence="q_i",
        meaning=_MEANING,
        because=(
            "The code that is run differs from the paper in two ways, and is one inference as well: neighbours in the "
            "sorted order are attended to whatever their bucket, and a key that is met in several rounds is counted "
            "as often, so that the number of meetings is the preference: who meets often is believed in more."
        ),
        exact_because="As for the Reformer.",
        written=_reformer_as_run,
        example=_example,
    ),
)
