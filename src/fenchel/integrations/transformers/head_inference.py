"""One attention call, with all heads inferring alike or some of them otherwise than the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fenchel import functional
from fenchel.closeness import AbstractCloseness
from fenchel.errors import InputError
from fenchel.functional.inference import estimator_object
from fenchel.nn.inference import Inferred, joined
from fenchel.solver import Estimator

__all__ = ["OWN", "AttentionProblem", "Inference", "infer"]


@dataclass(frozen=True)
class Inference:
    """How heads infer.

    Attributes:
        estimator: As :func:`fenchel.functional.attention` takes it, with its options.
        alpha: α, a float or a tensor broadcastable to (B, H, m).
        closeness: D; None is softmax.
    """

    estimator: str | Estimator = "first_order"
    alpha: float | Tensor = 1.0
    closeness: AbstractCloseness | None = None

    @property
    def is_softmax(self) -> bool:
        """Whether that is what models of transformers do."""
        first = estimator_object(self.estimator).name == "first_order"
        return first and self.closeness is None and not isinstance(self.alpha, Tensor) and self.alpha == 1


OWN = Inference()
"""What a model itself does: first order with α = 1, under softmax."""


@dataclass(frozen=True)
class AttentionProblem:
    """The inference problems of one call.

    Attributes:
        query: (B, H, m, d).
        key: (B, H_kv, n, d).
        value: (B, H_kv, n, d_v).
        log_preference: Broadcastable to (B, H, m, n), or None.
        scale: Multiplies the keys; None is 1/√d.
        dropout_p: Of the weights.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_preference: Tensor | None
    scale: float | Tensor | None
    dropout_p: float

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[1]

    def of_heads(self, index: Tensor) -> AttentionProblem:
        """The problems of some heads, with the keys and values that they share repeated."""
        shared = torch.div(index, self.heads // self.key.shape[1], rounding_mode="floor")
        preference = self.log_preference
        if preference is not None and preference.shape[1] > 1:
            preference = preference.index_select(1, index)
        return replace(
            self,
            query=self.query.index_select(1, index),
            key=self.key.index_select(1, shared),
            value=self.value.index_select(1, shared),
            log_preference=preference,
        )


def _infer_alike(problem: AttentionProblem, how: Inference, weights: bool, certificate: bool) -> Inferred:
    options = {
        "log_preference": problem.log_preference,
        "alpha": how.alpha,
        "scale": problem.scale,
        "closeness": how.closeness,
        "estimator": how.estimator,
        "enable_gqa": problem.key.shape[1] != problem.heads,
    }
    tensors = (problem.query, problem.key, problem.value)
    bounds = None
    if certificate:
        output, bounds = functional.attention_with_certificate(
            *tensors, dropout_p=problem.dropout_p, **options
        )
    else:
        output = functional.attention(*tensors, dropout_p=problem.dropout_p, **options)
    p = functional.attention_weights(problem.query, problem.key, **options) if weights else None
    return Inferred(output, p, bounds)


def _alpha_of_heads(alpha: float | Tensor, index: Tensor) -> float | Tensor:
    """Rows ``index`` of the head dimension of α, which broadcasts to (B, H, m)."""
    if not isinstance(alpha, Tensor) or alpha.ndim < 2 or alpha.shape[-2] == 1:
        return alpha
    return alpha.index_select(-2, index.to(alpha.device))


def infer(
    problem: AttentionProblem,
    how: Inference,
    heads: Sequence[int] | None = None,
    *,
    site: str,
    own: Inference = OWN,
    weights: bool = False,
    certificate: bool = False,
) -> Inferred:
    """Infer, and leave some heads as the model has them if so asked.

    Args:
        problem: The call.
        how: How the chosen heads infer.
        heads: Numbers of the chosen heads, from 1; None is all.
        site: Name of the attention module, for messages.
        own: How the others infer, which is what the model itself does.
        weights: Whether to work out the weights too.
        certificate: Whether to certify too.

    Returns:
        What came of it, with the weights before dropout.

    Raises:
        InputError: If a head does not exist.
        ProblemError: Whatever :func:`fenchel.functional.attention` refuses.
    """
    if heads is None:
        return _infer_alike(problem, how, weights, certificate)
    missing = sorted(head for head in heads if head > problem.heads)
    if missing:
        raise InputError(f"heads {missing} do not exist in {site}, which has heads 1 to {problem.heads}")
    chosen = [head - 1 for head in sorted(set(heads))]
    rest = [head for head in range(problem.heads) if head not in chosen]
    if not rest:
        return _infer_alike(problem, how, weights, certificate)

    device = problem.query.device
    index, others = torch.tensor(chosen, device=device), torch.tensor(rest, device=device)
    closeness = how.closeness and how.closeness.heads(index)
    chosen_how = replace(how, alpha=_alpha_of_heads(how.alpha, index), closeness=closeness)
    parts = (
        _infer_alike(problem.of_heads(index), chosen_how, weights, certificate),
        _infer_alike(problem.of_heads(others), own, weights, certificate),
    )
    return joined(*parts, torch.cat((index, others)).argsort())
