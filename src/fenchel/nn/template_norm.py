r"""Keep templates short, so that α is small enough: their spread under the preference as a penalty.

First order is exact as α tends to 0, or as templates move together: what counts is α times their spread under u.
For every λ,

.. math:: \tfrac\alpha2\lVert h(\lambda) - \mu\rVert^2
          \;\le\; \chi^2(p(\lambda), u)\,\cdot\,\tfrac\alpha2\operatorname{tr}\operatorname{Cov}_u(t),
          \qquad \chi^2(p, u) = \sum_i \frac{(p_i - u_i)^2}{u_i},

by Cauchy-Schwarz on :math:`h - \mu = \sum_i \frac{p_i - u_i}{\sqrt{u_i}}\,\sqrt{u_i}(t_i - \mu)`. At first order the
left side is the gap of the certificate (fact 1), so the penalty
:math:`\frac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)` bounds it up to how far queries move their weights from u.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fenchel.errors import ProblemError

__all__ = ["norm_penalty", "template_spread"]


def template_spread(templates: Tensor, log_preference: Tensor | None = None) -> Tensor:
    r"""Mean squared distance of the templates from their mean, under the preference.

    .. math:: \operatorname{tr}\operatorname{Cov}_u(t) = \sum_i u_i\lVert t_i\rVert^2
              - \Big\lVert\sum_i u_i t_i\Big\rVert^2

    Args:
        templates: t, (B, H, n, d), scale included. Half types are computed in float32.
        log_preference: Log weights, or bool with True = attend, broadcastable to (B, H, m, n); None is uniform.

    Returns:
        (B, H, m), or (B, H, 1) where queries share a preference; 0 where there is nothing to attend to.

    Example:
        >>> templates = torch.tensor([[[[1.0], [3.0], [100.0]]]])
        >>> template_spread(templates, torch.tensor([True, True, False]))
        tensor([[[1.]]])
    """
    templates = templates.float() if templates.dtype in (torch.float16, torch.bfloat16) else templates
    centred = templates - templates.mean(-2, keepdim=True)  # spreads do not change; rounding does
    squares = centred.square().sum(-1, keepdim=True)
    if log_preference is None:
        return squares.mean(-2)
    moments = _weights(log_preference, templates) @ torch.cat([centred, squares], -1)
    return moments[..., -1] - moments[..., :-1].square().sum(-1)


def _weights(log_preference: Tensor, templates: Tensor) -> Tensor:
    """U (B or 1, H or 1, m or 1, n), with zeros in rows that have nothing."""
    full = log_preference[(None,) * (4 - log_preference.dim())]
    full = full.expand(*full.shape[:-1], templates.shape[-2])
    if full.dtype == torch.bool:
        return full.to(templates.dtype) / full.sum(-1, keepdim=True).clamp_min(1)
    live = (full > -torch.inf).any(-1, keepdim=True)
    return torch.where(live, torch.where(live, full, 0.0).to(templates.dtype).softmax(-1), 0.0)


def norm_penalty(model: nn.Module) -> Tensor:
    r"""The norm penalty of the last forward, a number to add to a loss.

    .. math:: \mathop{\mathrm{mean}}_{\text{layers}}\;\mathop{\mathrm{mean}}_{\text{sequences, heads, queries}}\;
              \tfrac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)

    The papers note that norms of templates may grow in training until α is no longer small, and propose norm
    regularisation or normalised templates. This is the first; ``normalize_templates=True`` of
    :class:`~fenchel.nn.MultiheadAttention` is the second. A mean over layers does not depend on depth.

    Args:
        model: A model, or one layer. Its layers with ``keep_norm_penalty`` true are collected.

    Returns:
        A scalar with gradient to the key projections, to learned preferences and to learned α.

    Raises:
        ProblemError: If no layer keeps its penalty, or one that does has not been called.

    Reference:
        "Limitations and other comments" of the first version of the paper.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> layer = MultiheadAttention(16, 2, batch_first=True, keep_norm_penalty=True)
        >>> x = torch.randn(3, 5, 16)
        >>> output, _ = layer(x, x, x)
        >>> loss = output.square().mean() + 0.1 * norm_penalty(layer)
        >>> loss.backward()
    """
    if not isinstance(model, nn.Module):
        raise ProblemError(f"model is a {type(model).__name__}; expected a torch.nn.Module")
    kept = [module for module in model.modules() if getattr(module, "keep_norm_penalty", False)]
    if not kept:
        raise ProblemError(
            f"no layer of this {type(model).__name__} keeps its norm penalty; set keep_norm_penalty = True on the "
            "fenchel.nn.MultiheadAttention layers that should count, and run the model"
        )
    penalties: list[Any] = [module.last_norm_penalty for module in kept]
    return torch.stack(penalties).mean()
