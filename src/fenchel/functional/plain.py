"""Attention without evidence: where there is no query, or a query has no dimension, so that nothing can tilt u.

Then p = u for every estimator, without an error. Kernels disagree on empty arrays; plain operations do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.precision import compute_dtype, without_autocast

__all__ = ["no_error", "plain_attention", "plain_weights"]


def plain_weights(given: AttentionArguments) -> Tensor:
    """The weights (B, H, m, n) in the dtype of the query, joined to everything that they depend on."""
    with without_autocast(given.query):
        evidence, templates, log_preference, alpha = given.problem_in(compute_dtype(given.query.dtype))
        logits = (alpha * evidence) @ _for_queries(templates, given).mT
        if log_preference is None:
            weights = logits.softmax(-1)
        elif log_preference.dtype == torch.bool:
            weights = logits.masked_fill(~log_preference, -torch.inf).softmax(-1)
        else:
            weights = (logits + log_preference).softmax(-1)
        return given.without_empty_rows(weights).to(given.query.dtype)


def plain_attention(given: AttentionArguments, dropout_p: float) -> Tensor:
    """The output, (B, H, m, d_v) in the dtype of the query."""
    weights = torch.dropout(plain_weights(given), dropout_p, train=dropout_p > 0)
    with without_autocast(weights):
        return weights @ _for_queries(given.value, given)


def no_error(given: AttentionArguments) -> AttentionCertificate:
    """The certificate: zeros, (B, H, m)."""
    zeros = given.query.new_zeros(given.query.shape[:3], dtype=compute_dtype(given.query.dtype))
    return AttentionCertificate(zeros, zeros.clone(), zeros.clone())


def _for_queries(tensor: Tensor, given: AttentionArguments) -> Tensor:
    """Heads of the keys, (B, H_kv, n, ...), repeated for every head of the query."""
    sharing = given.query.shape[1] // max(1, tensor.shape[1])
    return tensor if sharing == 1 else tensor.repeat_interleave(sharing, 1)
