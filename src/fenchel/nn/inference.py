"""One call of the functional form: an output and whatever else was asked for beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fenchel import functional
from fenchel.closeness import AbstractCloseness
from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.close_arguments import is_softmax
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.inputs import AttentionInputs
from fenchel.nn.preference.key_padding import KeyPadding

__all__ = ["Inferred", "Memory", "Problem", "Relative", "has_kernel", "infer", "infer_fused"]

SOLVING = ("tol", "max_steps")
"""Options of the exact estimator alone."""


class Memory(NamedTuple):
    """What is uncertain about templates that are Gaussians.

    Attributes:
        variances: Before the scale, (B or 1, H or 1, n or 1, d or 1).
        is_answer: Whether the memories themselves are what is read, in the place of values.
    """

    variances: Tensor
    is_answer: bool


class Relative(NamedTuple):
    """What templates have beside the keys, by pair of query and key.

    Attributes:
        table: r before the scale, (B or 1, H or 1, P, d).
        row_index: The row of each pair, as :func:`fenchel.functional.relative_attention` takes it.
    """

    table: Tensor
    row_index: Tensor | None


class Problem(NamedTuple):
    """What an attention layer asks of its heads, but for the preference.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: Before their scale, (B, H, n, d).
        values: (B, H, n, d).
        alpha: α, a number or (H, 1).
        scale: Of the templates, a number or a scalar tensor.
        memory: Where the templates are means of Gaussians; None where they are points.
        closeness: D; None is Kullback and Leibler's.
        relative: Where templates differ by query; None where all queries share them.
    """

    evidence: Tensor
    templates: Tensor
    values: Tensor
    alpha: float | Tensor
    scale: float | Tensor
    memory: Memory | None = None
    closeness: AbstractCloseness | None = None
    relative: Relative | None = None

    @property
    def is_plain(self) -> bool:
        """Whether it is softmax attention to points that all queries share."""
        return self.memory is None and self.relative is None and is_softmax(self.closeness)


class Inferred(NamedTuple):
    """What came of it.

    Attributes:
        output: (B, H, m, d).
        weights: (B, H, m, n); None if not asked for.
        certificate: None if not asked for.
        gap: With gradient, (B, H, m); None if not asked for.
    """

    output: Tensor
    weights: Tensor | None = None
    certificate: AttentionCertificate | None = None
    gap: Tensor | None = None


def infer(
    problem: Problem,
    log_preference: Tensor | None,
    *,
    dropout: float,
    need_weights: bool,
    need_certificate: bool,
    need_gap: bool = False,
    **options: Any,
) -> Inferred:
    """Attend, with the preference as a tensor.

    Args:
        problem: Evidence, templates and values.
        log_preference: log u, as :func:`fenchel.functional.attention` takes it.
        dropout: Probability of dropping a weight, now.
        need_weights: Whether to return them, after dropout.
        need_certificate: Whether to return it. It is that of the weights before dropout.
        need_gap: Whether to return it; likewise.
        **options: ``estimator``, ``tol`` and ``max_steps`` of :func:`fenchel.functional.attention`.
    """
    evidence, templates, values, alpha, scale, memory, closeness, relative = problem
    options.update(log_preference=log_preference, alpha=alpha, scale=scale)
    if memory is not None:
        return _infer_mixture(problem, memory, dropout, need_weights, need_certificate, options)
    options.update(closeness=closeness)
    ops = _SHARED if relative is None else _BY_PAIR
    if relative is not None:
        options.update(relative=relative.table, index=relative.row_index)
    gap = None
    if need_gap:
        gap = ops.gap(evidence, templates, **{n: v for n, v in options.items() if n not in SOLVING})
    if need_weights:
        weights = ops.weights(evidence, templates, **options)
        weights = torch.dropout(weights, dropout, train=True) if dropout > 0 else weights
        certificate = None
        if need_certificate:
            with torch.no_grad():
                _, certificate = ops.certified(evidence, templates, values, **options)
        return Inferred(weights @ values, weights, certificate, gap)
    options["dropout_p"] = dropout
    if need_certificate:
        output, certificate = ops.certified(evidence, templates, values, **options)
        return Inferred(output, certificate=certificate, gap=gap)
    return Inferred(ops.output(evidence, templates, values, **options), gap=gap)


class _Ops(NamedTuple):
    """Ops of templates of one kind."""

    output: Callable[..., Tensor]
    weights: Callable[..., Tensor]
    certified: Callable[..., tuple[Tensor, AttentionCertificate]]
    gap: Callable[..., Tensor]


_SHARED = _Ops(
    functional.attention,
    functional.attention_weights,
    functional.attention_with_certificate,
    functional.gap,
)
_BY_PAIR = _Ops(
    functional.relative_attention,
    functional.relative_attention_weights,
    functional.relative_attention_with_certificate,
    functional.relative_gap,
)


def _infer_mixture(
    problem: Problem,
    memory: Memory,
    dropout: float,
    need_weights: bool,
    need_certificate: bool,
    options: dict[str, Any],
) -> Inferred:
    """Attend to memories that are Gaussians."""
    components = (problem.evidence, problem.templates, memory.variances)
    value = None if memory.is_answer else problem.values
    weights = certificate = None
    if need_certificate:
        output, certificate = functional.mixture_attention_with_certificate(
            *components, value, dropout_p=dropout, **options
        )
    else:
        output = functional.mixture_attention(*components, value, dropout_p=dropout, **options)
    if need_weights:
        weights = functional.mixture_attention_weights(*components, **options)
        if dropout > 0 and value is not None:
            weights = torch.dropout(weights, dropout, train=True)
            output = weights @ value
    return Inferred(output, weights, certificate)


def has_kernel(problem: Problem, preference: AbstractPreference | None, inputs: AttentionInputs) -> bool:
    """Whether torch can fuse this preference into attention to these templates: on a GPU, where it pays."""
    if preference is None or not preference.lowers or inputs.device.type != "cuda":
        return False
    from fenchel.functional.flex import SMALLEST_DIM

    smallest = min(problem.templates.shape[-1], problem.values.shape[-1])
    return smallest >= SMALLEST_DIM and inputs.dtype != torch.float64


def infer_fused(problem: Problem, preference: AbstractPreference, inputs: AttentionInputs) -> Inferred:
    """Attend at first order in one kernel, with the preference and the padding as functions of indices."""
    from fenchel.functional.flex import flex_attention

    if inputs.key_padding is not None:
        preference = preference * KeyPadding()
    evidence, templates, values, alpha, scale = problem[:5]
    output = flex_attention(
        evidence,
        templates,
        values,
        score_mod=preference.score_mod(inputs),
        mask_mod=preference.mask_mod(inputs),
        scale=scale,
        alpha=alpha,
        enable_gqa=False,
    )
    return Inferred(output)
