"""The mean of the values at dual points, by whichever code is fastest for the gradients that are wanted."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.functional.arguments import AttentionArguments
from fenchel.functional.blocked import attend
from fenchel.functional.fused import fused_attention

__all__ = ["output_and_mean_at", "output_at"]


def output_and_mean_at(
    given: AttentionArguments, dual: Tensor, dropout_p: float, templates: Tensor, key: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The output, and a mean of what stands for the templates, (B, H, m, c) without gradient.

    Args:
        given: Checked arguments.
        dual: λ, (B, H, m, d), in the dtype in which the weights are to be computed.
        dropout_p: Probability with which a weight of the output is dropped.
        templates: What is averaged, (B, H_kv, n, c) in float32 or float64.
        key: The keys less a vector that those of a head share, which weights do not see; None is those given.
    """
    preference, scale = given.log_preference, given.scale
    key = given.key if key is None else key
    wants_gradient = torch.is_grad_enabled() and any(t.requires_grad for t in (dual, given.key, given.value))
    if wants_gradient and not _wants_preference_gradient(given):
        # The fused kernels' backward pass is so much faster that it repays a forward pass over the keys of its own.
        with torch.no_grad():
            _, mean = attend(dual, key, key[..., :0], preference, scale=scale, templates=templates)
        output = output_at(given, dual, dropout_p)
    else:
        output, mean = attend(
            dual, key, given.value, preference, scale=scale, dropout_p=dropout_p, templates=templates
        )
    assert mean is not None  # noqa: S101 -- it was asked for
    return output.to(given.query.dtype), mean


def _wants_preference_gradient(given: AttentionArguments) -> bool:
    return given.log_preference is not None and given.log_preference.requires_grad and torch.is_grad_enabled()


def output_at(given: AttentionArguments, dual: Tensor, dropout_p: float = 0.0) -> Tensor:
    """The output alone, (B, H, m, d_v); see :func:`output_and_mean_at`."""
    preference = given.log_preference
    if _wants_preference_gradient(given):
        output, _ = attend(dual, given.key, given.value, preference, scale=given.scale, dropout_p=dropout_p)
        return output.to(given.query.dtype)
    key, value = given.key.to(dual.dtype), given.value.to(dual.dtype)
    output = fused_attention(dual, key, value, preference, scale=given.scale, dropout_p=dropout_p)
    return output.to(given.query.dtype)
