r"""Attention written out: every op of this package as the slow and obvious formula that it has to agree with.

Everything is dense, in the dtype given, and differentiable any number of times by autograd; the exact estimator
is unrolled Newton steps with dense Hessians. Nothing here is blocked, fused or implicit; arguments come in by the same
door.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.functional.arguments import AttentionArguments, check_estimator, checked
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


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_preference: Tensor | None,
    alpha: float | Tensor,
    scale: float | Tensor | None,
    estimator: str,
    steps: int,
) -> AttentionArguments:
    checked_argument("max_steps", steps, name="steps")
    check_estimator(estimator, None, steps)
    options = {"log_preference": log_preference, "alpha": alpha, "scale": scale}
    return checked(query, key, value, **options, enable_gqa=True, exact=estimator == "exact")


def log_weights(query: Tensor, key: Tensor, log_preference: Tensor | None) -> tuple[Tensor, Tensor]:
    """Normalised log u (B, H, m, n), and which rows have a template to attend to, bool (B, H, m, 1).

    A row without one is given the uniform preference, so that no NaN arises; callers put zeros there.
    """
    shape = (*query.shape[:3], key.shape[2])
    log_preference = without_causal_bias(
        "log_preference", log_preference, query.shape[2], key.shape[2], query.device
    )
    if log_preference is None:
        log_preference = query.new_zeros(())
    if log_preference.dtype == torch.bool:
        log_preference = torch.zeros_like(log_preference, dtype=query.dtype).masked_fill(
            ~log_preference, -torch.inf
        )
    full = log_preference.to(query.dtype).expand(shape)
    live = (full > -torch.inf).any(-1, keepdim=True)
    return torch.where(live, full, 0.0).log_softmax(-1), live


def _templates(query: Tensor, key: Tensor, scale: float | Tensor | None) -> Tensor:
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    return (key * factor).repeat_interleave(query.shape[1] // max(key.shape[1], 1), 1)


def _gradient(templates: Tensor, log_u: Tensor, evidence: Tensor, alpha: Tensor, dual: Tensor) -> Tensor:
    r""":math:`\nabla\mathcal{D}(\lambda) = \mu + z - \lambda/\alpha - h(\lambda)`, (B, H, m, d)."""
    weights = (log_u + dual @ templates.mT).softmax(-1)
    return evidence - dual / alpha - (weights - log_u.exp()) @ templates


def _covariance(templates: Tensor, weights: Tensor) -> Tensor:
    """Covariance of the templates under each row of weights, (B, H, m, d, d)."""
    offsets = templates.unsqueeze(2) - (weights @ templates).unsqueeze(3)
    return offsets.mT @ (weights.unsqueeze(-1) * offsets)


def _hessian(templates: Tensor, weights: Tensor, alpha: Tensor) -> Tensor:
    identity = torch.eye(templates.shape[-1], dtype=templates.dtype, device=templates.device)
    return identity / alpha.unsqueeze(-1) + _covariance(templates, weights)


def _value(templates: Tensor, log_u: Tensor, evidence: Tensor, alpha: Tensor, dual: Tensor) -> Tensor:
    target = evidence + log_u.exp() @ templates
    cumulant = torch.logsumexp(log_u + dual @ templates.mT, -1, keepdim=True)
    return (
        (dual * target).sum(-1, keepdim=True) - dual.square().sum(-1, keepdim=True) / (2 * alpha) - cumulant
    )


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
        steps: Newton steps of ``"exact"``, all of them differentiated through; each is halved until the dual does
            not fall.
    """
    if estimator == "first_order":
        return alpha * evidence
    if estimator == "second_order":
        return torch.linalg.solve(_hessian(templates, log_u.exp(), alpha), evidence.unsqueeze(-1)).squeeze(-1)
    if estimator != "exact":
        raise ValueError(f"estimator is {estimator!r}")
    data = (templates, log_u, evidence, alpha)
    dual = torch.zeros_like(evidence)
    for _ in range(steps):
        weights = (log_u + dual @ templates.mT).softmax(-1)
        residual = _gradient(*data, dual)
        step = torch.linalg.solve(_hessian(templates, weights, alpha), residual.unsqueeze(-1)).squeeze(-1)
        with torch.no_grad():
            length = torch.ones_like(dual[..., :1])
            before = _value(*data, dual)
            for _ in range(_HALVINGS):
                falls = _value(*data, dual + length * step) < before - 1e-12 * before.abs()
                length = torch.where(falls, length / 2, length)
        dual = dual + length * step
    return dual


def inferred_weights(
    query: Tensor,
    key: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    steps: int = 30,
) -> Tensor:
    """The weights p (B, H, m, n) that :func:`attention` puts on the values."""
    _check(query, key, key, log_preference, alpha, scale, estimator, steps)
    log_u, live = log_weights(query, key, log_preference)
    templates = _templates(query, key, scale)
    dual = dual_point(templates, log_u, query, _column(alpha, query), estimator, steps)
    return torch.where(live, (log_u + dual @ templates.mT).softmax(-1), 0.0)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    steps: int = 30,
) -> Tensor:
    """What :func:`fenchel.functional.attention` computes, with the same arguments, without dropout."""
    _check(query, key, value, log_preference, alpha, scale, estimator, steps)
    weights = inferred_weights(
        query,
        key,
        log_preference=log_preference,
        alpha=alpha,
        scale=scale,
        estimator=estimator,
        steps=steps,
    )
    return weights @ value.repeat_interleave(query.shape[1] // max(value.shape[1], 1), 1)


def certificate(
    query: Tensor,
    key: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    steps: int = 30,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gap, mean_error and dual_error (facts 1 and 2), each (B, H, m); zeros where there is nothing to attend to."""
    _check(query, key, key, log_preference, alpha, scale, estimator, steps)
    log_u, live = log_weights(query, key, log_preference)
    templates, column = _templates(query, key, scale), _column(alpha, query)
    dual = dual_point(templates, log_u, query, column, estimator, steps)
    norm = _gradient(templates, log_u, query, column, dual).norm(dim=-1, keepdim=True)
    norm = torch.where(live, norm, 0.0)
    return tuple((x.squeeze(-1)) for x in (column / 2 * norm.square(), norm, column * norm))  # pyright: ignore[reportReturnType]


def gap(
    query: Tensor,
    key: Tensor,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    steps: int = 30,
) -> Tensor:
    """What :func:`fenchel.functional.gap` computes, of the exact estimator too, (B, H, m)."""
    _check(query, key, key, log_preference, alpha, scale, estimator, steps)
    log_u, live = log_weights(query, key, log_preference)
    templates, column = _templates(query, key, scale), _column(alpha, query)
    dual = dual_point(templates, log_u, query, column, estimator, steps)
    gradient = _gradient(templates, log_u, query, column, dual)
    return torch.where(live, column / 2 * gradient.square().sum(-1, keepdim=True), 0.0).squeeze(-1)


def _column(alpha: float | Tensor, query: Tensor) -> Tensor:
    """α as (B, H, m, 1)."""
    alpha = torch.as_tensor(alpha, dtype=query.dtype, device=query.device)
    return alpha.expand(query.shape[:3]).unsqueeze(-1)


def mixture_attention(
    query: Tensor,
    means: Tensor,
    variances: Tensor,
    value: Tensor | None = None,
    *,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    estimator: str = "first_order",
    steps: int = 30,
) -> Tensor:
    r"""What :func:`fenchel.functional.mixture_attention` computes, component by component (fact 11).

    With :math:`c_k = m_k + s_k\circ\lambda`: log-evidence :math:`\langle m_k, \lambda\rangle + \tfrac12\langle s_k,
    \lambda^2\rangle`, mean :math:`\sum_k r_k c_k`, Hessian :math:`I/\alpha + \sum_k r_k\operatorname{diag} s_k +
    \operatorname{Cov}_r(c)`.
    """
    _check(query, means, means if value is None else value, log_preference, alpha, 1.0, estimator, steps)
    log_w, live = log_weights(query, means, log_preference)
    factor = max(query.shape[-1], 1) ** -0.5 if scale is None else scale
    centres = _templates(query, means, factor).unsqueeze(2)
    spreads = _templates(query, variances.expand_as(means), factor).unsqueeze(2) * factor
    alpha = _column(alpha, query)
    identity = torch.eye(query.shape[-1], dtype=query.dtype) / alpha.unsqueeze(-1)

    def responsibilities(dual: Tensor) -> Tensor:
        point = dual.unsqueeze(3)
        return (log_w + (centres * point + spreads * point.square() / 2).sum(-1)).softmax(-1)

    def moved(dual: Tensor) -> Tensor:
        return centres + spreads * dual.unsqueeze(3)

    def mean(dual: Tensor) -> Tensor:
        return (responsibilities(dual).unsqueeze(-1) * moved(dual)).sum(-2)

    def hessian(dual: Tensor) -> Tensor:
        r = responsibilities(dual).unsqueeze(-1)
        offsets = moved(dual) - mean(dual).unsqueeze(3)
        return identity + torch.diag_embed((r * spreads).sum(-2)) + offsets.mT @ (r * offsets)

    dual = alpha * query
    if estimator == "second_order":
        dual = torch.linalg.solve(hessian(torch.zeros_like(query)), query)
    elif estimator == "exact":
        dual = torch.zeros_like(query)

        def gradient(dual: Tensor) -> Tensor:
            return mean(torch.zeros_like(query)) + query - dual / alpha - mean(dual)

        for _ in range(steps):
            step = torch.linalg.solve(hessian(dual), gradient(dual))
            with torch.no_grad():
                size = gradient(dual).norm(dim=-1, keepdim=True)
                length = torch.ones_like(size)
                for _ in range(_HALVINGS):
                    longer = gradient(dual + length * step).norm(dim=-1, keepdim=True) > size + 1e-14
                    length = torch.where(longer, length / 2, length)
            dual = dual + length * step
    if value is None:
        result = mean(dual) / factor
    else:
        result = responsibilities(dual) @ value.repeat_interleave(query.shape[1] // max(value.shape[1], 1), 1)
    return torch.where(live, result, 0.0)


def transport_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atoms: Tensor | None = None,
    atom_values: Tensor | None = None,
    atom_mask: Tensor | None = None,
    log_preference: Tensor | None = None,
    alpha: float | Tensor = 1.0,
    gamma: float | Tensor,
    cost: str | Tensor = "dot",
    scale: float | Tensor = 1.0,
    estimator: str = "first_order",
    steps: int = 30,
) -> Tensor:
    r"""Formula (22), and (35) at other dual points, over arrays (B, H, m, n, N).

    Args:
        query: As all arguments here, what it is in :func:`fenchel.functional.transport_attention`.
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
        estimator: Whose λ.
        steps: Newton steps of ``"exact"``, all of them differentiated through; each is halved until the gradient does
            not grow.
    """
    given = _check(query, key, value, log_preference, alpha, 1.0, estimator, steps)
    variant = Transport(gamma, cost, atoms, atom_values, atom_mask)
    checked_transport(given, variant, scale, query.dtype, warn=False)
    sources = key * scale
    templates = sources if atoms is None else torch.cat([sources, atoms * scale], -2)
    values = value if atom_values is None else torch.cat([value, atom_values], -2)
    log_u, live = log_weights(query, key, log_preference)
    usable = torch.ones(*query.shape[:3], templates.shape[-2], dtype=torch.bool, device=query.device)
    usable[..., : key.shape[2]] = torch.isfinite(log_u)
    if atom_mask is not None:
        usable[..., key.shape[2] :] = atom_mask
    alpha = torch.as_tensor(alpha, dtype=query.dtype)[..., None]
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

    def mean(dual: Tensor) -> Tensor:
        return (log_u.exp().unsqueeze(-2) @ conditionals(dual)).squeeze(-2) @ templates

    identity = torch.eye(query.shape[-1], dtype=query.dtype) / alpha.unsqueeze(-1)
    dual = alpha * query
    if estimator == "second_order":
        dual = torch.linalg.solve(identity + covariance(torch.zeros_like(query)), query)
    elif estimator == "exact":
        dual = torch.zeros_like(query)

        def gradient(dual: Tensor) -> Tensor:
            return mean(torch.zeros_like(query)) + query - dual / alpha - mean(dual)

        for _ in range(steps):
            step = torch.linalg.solve(identity + covariance(dual), gradient(dual))
            with torch.no_grad():
                size = gradient(dual).norm(dim=-1, keepdim=True)
                length = torch.ones_like(size)
                for _ in range(_HALVINGS):
                    longer = gradient(dual + length * step).norm(dim=-1, keepdim=True) > size + 1e-14
                    length = torch.where(longer, length / 2, length)
            dual = dual + length * step
    weights = (log_u.exp().unsqueeze(-2) @ conditionals(dual)).squeeze(-2)
    return torch.where(live, weights @ values, 0.0)


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
