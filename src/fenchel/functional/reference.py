r"""Attention as slow, direct formulas, with which the ops of this package have to agree.

Everything is dense, in the dtype given, and differentiable any number of times by autograd; the exact estimator unrolls
Newton steps with dense Hessians. Nothing here is blocked, fused or implicit; arguments are checked as for the ops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypedDict, Unpack

import torch
from torch import Tensor

from fenchel import tensors
from fenchel.functional.arguments import AttentionArguments, checked
from fenchel.functional.transport import Transport, checked_transport
from fenchel.tensors import checked_argument, without_causal_bias

__all__ = [
    "attention",
    "certificate",
    "dual_point",
    "gap",
    "inferred_weights",
    "log_weights",
    "mixture_attention",
    "transport_attention",
]

_HALVINGS = 30


# Of dual points (B, H, m, d).
Function = Callable[[Tensor], Tensor]


class ScaledOptions(TypedDict, total=False):
    """Options of :func:`fenchel.functional.attention` that all functions here take, except the scale.

    ``steps`` is the number of Newton steps of the exact estimator, 30 by default; gradients go through all of them.
    """

    log_preference: Tensor | None
    alpha: float | Tensor
    estimator: str
    steps: int


class Options(ScaledOptions, total=False):
    """These options and the scale, which multiplies keys; None is 1/√d."""

    scale: float | Tensor | None


class _Problem(NamedTuple):
    """Inference problems of the queries of a call, and how to solve them.

    Attributes:
        arguments: As ops have them.
        evidence: z, (B, H, m, d).
        scale: Of the templates.
        templates: scale·key, (B, H, n, d).
        log_u: Normalised, (B, H, m, n).
        live: Which rows have a template to attend to, bool (B, H, m, 1).
        alpha: (B, H, m, 1).
        estimator: Its name.
        steps: Newton steps of ``"exact"``.
    """

    arguments: AttentionArguments
    evidence: Tensor
    scale: float | Tensor
    templates: Tensor
    log_u: Tensor
    live: Tensor
    alpha: Tensor
    estimator: str
    steps: int

    def dual_point(self, mean: Function, curvature: Function) -> Tensor:
        """λ, (B, H, m, d); see :func:`_dual_point`."""
        return _dual_point(mean, curvature, self.evidence, self.alpha, self.estimator, self.steps)


def _problem(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    steps: int = 30,
) -> _Problem:
    checked_argument("max_steps", steps, name="steps")
    checked_argument("estimator", estimator)
    options = {"log_preference": log_preference, "alpha": alpha, "scale": scale}
    arguments = checked(query, key, value, **options, enable_gqa=True, exact=estimator == "exact")
    log_u, live = log_weights(query, key, log_preference)
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    templates = arguments.of_query_heads(key * factor)
    column = torch.as_tensor(alpha, dtype=query.dtype, device=query.device)
    column = column.expand(query.shape[:3]).unsqueeze(-1)
    return _Problem(arguments, query, factor, templates, log_u, live, column, estimator, steps)


def log_weights(query: Tensor, key: Tensor, log_preference: Tensor | None) -> tuple[Tensor, Tensor]:
    """Normalised log u (B, H, m, n), and which rows have a template to attend to, bool (B, H, m, 1).

    A row without one gets the uniform preference to avoid NaN; callers write zeros there.
    """
    shape = (*query.shape[:3], key.shape[2])
    log_preference = without_causal_bias(
        "log_preference", log_preference, query.shape[2], key.shape[2], query.device
    )
    if log_preference is None:
        log_preference = query.new_zeros(())
    full = tensors.log_weights(log_preference, query.dtype).expand(shape)
    live = (full > -torch.inf).any(-1, keepdim=True)
    return torch.where(live, full, 0.0).log_softmax(-1), live


def _dual_point(
    mean: Function, curvature: Function, evidence: Tensor, alpha: Tensor, estimator: str, steps: int
) -> Tensor:
    r"""λ of an estimator, (B, H, m, d), from h(λ), (B, H, m, d), and :math:`\nabla^2\varphi(\lambda)`, (B, H, m, d, d).

    Newton steps from 0 solve :math:`\nabla\mathcal{D}(\lambda) = h(0) + z - \lambda/\alpha - h(\lambda) = 0`, and each
    is halved until the gradient does not grow.
    """
    if estimator == "first_order":
        return alpha * evidence
    nothing = torch.zeros_like(evidence)
    identity = torch.eye(evidence.shape[-1], dtype=evidence.dtype, device=evidence.device)

    def hessian(dual: Tensor) -> Tensor:
        return identity / alpha.unsqueeze(-1) + curvature(dual)

    def gradient(dual: Tensor) -> Tensor:
        return mean(nothing) + evidence - dual / alpha - mean(dual)

    if estimator == "second_order":
        return torch.linalg.solve(hessian(nothing), evidence)
    if estimator != "exact":
        raise ValueError(f"estimator is {estimator!r}")
    dual = nothing
    for _ in range(steps):
        step = torch.linalg.solve(hessian(dual), gradient(dual))
        with torch.no_grad():
            size = gradient(dual).norm(dim=-1, keepdim=True)
            length = torch.ones_like(size)
            for _ in range(_HALVINGS):
                longer = gradient(dual + length * step).norm(dim=-1, keepdim=True) > size + 1e-14
                length = torch.where(longer, length / 2, length)
        dual = dual + length * step
    return dual


def dual_point(
    templates: Tensor, log_u: Tensor, evidence: Tensor, alpha: Tensor, estimator: str, steps: int = 30
) -> Tensor:
    """λ of an estimator, (B, H, m, d).

    Args:
        templates: (B, H, n, d).
        log_u: Normalised, (B, H, m, n).
        evidence: z, (B, H, m, d).
        alpha: α, broadcastable to (B, H, m, 1).
        estimator: ``"first_order"``, ``"second_order"`` or ``"exact"``.
        steps: Newton steps of ``"exact"``, all of them differentiated through; each is halved until the gradient does
            not grow.
    """

    def weights(dual: Tensor) -> Tensor:
        return (log_u + dual @ templates.mT).softmax(-1)

    def covariance(dual: Tensor) -> Tensor:
        p = weights(dual)
        offsets = templates.unsqueeze(2) - (p @ templates).unsqueeze(3)
        return offsets.mT @ (p.unsqueeze(-1) * offsets)

    return _dual_point(lambda dual: weights(dual) @ templates, covariance, evidence, alpha, estimator, steps)


def _inferred(problem: _Problem) -> tuple[Tensor, Tensor]:
    """λ, (B, H, m, d), and the weights there, (B, H, m, n)."""
    templates, log_u = problem.templates, problem.log_u
    dual = dual_point(templates, log_u, problem.evidence, problem.alpha, problem.estimator, problem.steps)
    return dual, (log_u + dual @ templates.mT).softmax(-1)


def inferred_weights(query: Tensor, key: Tensor, **options: Unpack[Options]) -> Tensor:
    """The weights p (B, H, m, n) that :func:`attention` puts on the values."""
    problem = _problem(query, key, key, **options)
    return torch.where(problem.live, _inferred(problem)[1], 0.0)


def attention(query: Tensor, key: Tensor, value: Tensor, **options: Unpack[Options]) -> Tensor:
    """The same as :func:`fenchel.functional.attention`, with the same arguments, without dropout."""
    problem = _problem(query, key, value, **options)
    weights = torch.where(problem.live, _inferred(problem)[1], 0.0)
    return weights @ problem.arguments.of_query_heads(value)


def certificate(query: Tensor, key: Tensor, **options: Unpack[Options]) -> tuple[Tensor, Tensor, Tensor]:
    """Gap, mean_error and dual_error (facts 1 and 2), each (B, H, m); zeros where there is nothing to attend to."""
    problem = _problem(query, key, key, **options)
    norm, alpha = _dual_gradient(problem).norm(dim=-1), problem.alpha.squeeze(-1)
    return alpha / 2 * norm.square(), norm, alpha * norm


def gap(query: Tensor, key: Tensor, **options: Unpack[Options]) -> Tensor:
    """The same as :func:`fenchel.functional.gap`, also for the exact estimator, (B, H, m)."""
    problem = _problem(query, key, key, **options)
    return problem.alpha.squeeze(-1) / 2 * _dual_gradient(problem).square().sum(-1)


def _dual_gradient(problem: _Problem) -> Tensor:
    r""":math:`\nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - h(\lambda)`, (B, H, m, d); 0 where not live."""
    dual, weights = _inferred(problem)
    shift = (weights - problem.log_u.exp()) @ problem.templates
    return torch.where(problem.live, problem.evidence - dual / problem.alpha - shift, 0.0)


def mixture_attention(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    **options: Unpack[Options],
) -> Tensor:
    r"""The same as :func:`fenchel.functional.mixture_attention`, component by component (fact 11).

    With :math:`c_k = m_k + s_k\circ\lambda`: log-evidence :math:`\langle m_k, \lambda\rangle + \tfrac12\langle s_k,
    \lambda^2\rangle`, mean :math:`\sum_k r_k c_k`, Hessian :math:`I/\alpha + \sum_k r_k\operatorname{diag} s_k +
    \operatorname{Cov}_r(c)`.
    """
    problem = _problem(query, means, means if value is None else value, **options)
    scale, centres = problem.scale, problem.templates.unsqueeze(2)
    of_query_heads = problem.arguments.of_query_heads
    spreads = of_query_heads(variances.expand_as(means) * scale * scale).unsqueeze(2)

    def responsibilities(dual: Tensor) -> Tensor:
        point = dual.unsqueeze(3)
        return (problem.log_u + (centres * point + spreads * point.square() / 2).sum(-1)).softmax(-1)

    def moved(dual: Tensor) -> Tensor:
        return centres + spreads * dual.unsqueeze(3)

    def mean(dual: Tensor) -> Tensor:
        return (responsibilities(dual).unsqueeze(-1) * moved(dual)).sum(-2)

    def curvature(dual: Tensor) -> Tensor:
        r = responsibilities(dual).unsqueeze(-1)
        offsets = moved(dual) - mean(dual).unsqueeze(3)
        return torch.diag_embed((r * spreads).sum(-2)) + offsets.mT @ (r * offsets)

    dual = problem.dual_point(mean, curvature)
    result = mean(dual) / scale if value is None else responsibilities(dual) @ of_query_heads(value)
    return torch.where(problem.live, result, 0.0)


def transport_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atoms: Tensor | None = None,
    atom_values: Tensor | None = None,
    atom_mask: Tensor | None = None,
    gamma: float | Tensor,
    cost: str | Tensor = "dot",
    scale: float | Tensor = 1.0,
    **options: Unpack[ScaledOptions],
) -> Tensor:
    r"""Formula (22), and (35) at other dual points, over arrays (B, H, m, n, N).

    Args:
        query: Same as in :func:`fenchel.functional.transport_attention`, like all arguments.
        key: (B, H, n, d).
        value: (B, H, n, d_v).
        atoms: (B, H, a, d).
        atom_values: (B, H, a, d_v).
        atom_mask: (B, H, m, a).
        log_preference: (B, H, m, n).
        alpha: Broadcastable to (B, H, m).
        gamma: Broadcastable to (B, H, 1).
        cost: A name or a matrix.
        scale: Multiplies keys and atoms.
        estimator: Estimator of λ.
        steps: Newton steps of ``"exact"``, all of them differentiated through; each is halved until the gradient does
            not grow.
    """
    problem = _problem(query, key, value, scale=1.0, **options)
    variant, log_u = Transport(gamma, cost, atoms, atom_values, atom_mask), problem.log_u
    checked_transport(problem.arguments, variant, scale, query.dtype)
    sources = key * scale
    templates = sources if atoms is None else torch.cat([sources, atoms * scale], -2)
    values = value if atom_values is None else torch.cat([value, atom_values], -2)
    usable = torch.ones(*query.shape[:3], templates.shape[-2], dtype=torch.bool, device=query.device)
    usable[..., : key.shape[2]] = torch.isfinite(log_u)
    if atom_mask is not None:
        usable[..., key.shape[2] :] = atom_mask
    gamma = torch.as_tensor(gamma, dtype=query.dtype)[..., None, None]
    matrix = _cost_matrix(templates, sources, cost).mT.unsqueeze(-3)
    endless = matrix == torch.inf
    kernel = (-torch.where(endless, 0.0, matrix) / gamma).masked_fill(endless, -torch.inf)

    def conditionals(dual: Tensor) -> Tensor:
        logits = (dual @ templates.mT).unsqueeze(-2) / gamma + kernel
        return logits.masked_fill(~usable.unsqueeze(-2), -torch.inf).softmax(-1)

    def covariance(dual: Tensor) -> Tensor:
        p = conditionals(dual)
        centred = templates[:, :, None, None] - (p @ templates.unsqueeze(2)).unsqueeze(-2)
        return torch.einsum("bhmi,bhmit,bhmitd,bhmite->bhmde", log_u.exp(), p, centred, centred) / gamma

    def weights(dual: Tensor) -> Tensor:
        return (log_u.exp().unsqueeze(-2) @ conditionals(dual)).squeeze(-2)

    dual = problem.dual_point(lambda dual: weights(dual) @ templates, covariance)
    return torch.where(problem.live, weights(dual) @ values, 0.0)


def _cost_matrix(templates: Tensor, sources: Tensor, cost: str | Tensor) -> Tensor:
    """M (B, H, N, n), up to a constant."""
    if isinstance(cost, Tensor):
        return cost[..., : sources.shape[-2]]
    if cost == "dot":
        return -templates @ sources.mT
    if cost == "squared_euclidean":
        return (templates.unsqueeze(-2) - sources.unsqueeze(-3)).square().sum(-1)
    lengths = templates.norm(dim=-1).unsqueeze(-1) * sources.norm(dim=-1).unsqueeze(-2)
    return -(templates @ sources.mT) / lengths
