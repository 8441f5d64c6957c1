r"""The mean of the values under a coupling, with a backward pass of its own: the form in which transport trains.

With :math:`S = (u/Z)K^\top`, :math:`P = A \odot S`, :math:`O = PV` and a gradient g of O,

.. math::
    \bar S = A \odot gV^\top, \qquad \bar{\log u} = (\bar S K) \odot \tfrac uZ, \qquad \bar Z = -\bar{\log u} / Z, \\
    \bar{\log A} = A \odot (gV^\top \odot S + \bar Z K^\top), \qquad
    \bar{\log K} = K \odot \begin{pmatrix}\bar S \\ A\end{pmatrix}^{\!\top}\!\begin{pmatrix}u/Z \\ \bar Z\end{pmatrix},

so that arrays of the size of K are passed over twice, where autograd takes six passes. Its slow twin is
:meth:`fenchel.closeness.coupling.Coupling.average`, which also knows what to do where a Z is lost to underflow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fenchel.closeness.coupling import is_lost, scaled_exponential
from fenchel.functional.precision import without_autocast
from fenchel.solver.implicit import differentiated_once

__all__ = ["factored_average"]


def factored_average(
    log_tilt: Tensor, log_kernel: Tensor, log_weights: Tensor, values: Tensor
) -> Tensor | None:
    r""":math:`\sum_t p(t)\, v_t`, if no Z that matters is lost to underflow.

    Args:
        log_tilt: log a, (..., m, N), -inf where a template may not be used.
        log_kernel: log K, (..., N, n).
        log_weights: log u, (..., m or 1, n).
        values: (..., N, d_v).

    Returns:
        (..., m, d_v), differentiable once; None where some pair of a query and a source has to be computed otherwise.
    """
    with torch.no_grad():
        tilt, kernel = scaled_exponential(log_tilt, -1), scaled_exponential(log_kernel, -2)
        mass = tilt @ kernel
        lost = is_lost(mass, log_tilt.shape[-1])
        if bool(lost.any()):
            if bool((lost & (log_weights > -torch.inf)).any()):
                return None
            mass.masked_fill_(lost, 1)
        share = log_weights.exp() / mass
    return _FactoredAverage.apply(log_tilt, log_kernel, log_weights, values, tilt, kernel, mass, share)


class _FactoredAverage(torch.autograd.Function):
    @staticmethod
    def forward(
        log_tilt: Tensor,
        log_kernel: Tensor,
        log_weights: Tensor,
        values: Tensor,
        tilt: Tensor,
        kernel: Tensor,
        mass: Tensor,
        share: Tensor,
    ) -> Tensor:
        return (share @ kernel.mT).mul_(tilt) @ values

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        log_tilt, log_kernel, log_weights, values, *factors = inputs
        ctx.shapes = (log_tilt.shape, log_kernel.shape, log_weights.shape, values.shape)
        ctx.save_for_backward(values, *factors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        found = _gradients(gradients[0], *ctx.saved_tensors)
        shaped = (part.sum_to_size(shape) for part, shape in zip(found, ctx.shapes, strict=True))
        return (*shaped, None, None, None, None)


def _average_gradients(
    gradient: Tensor, values: Tensor, tilt: Tensor, kernel: Tensor, mass: Tensor, share: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients to log a, log K, log u and the values, before they are summed where these were broadcast."""
    with without_autocast(gradient):
        spread = share @ kernel.mT
        to_values = (tilt * spread).mT @ gradient
        to_weights = gradient @ values.mT
        to_spread = to_weights * tilt
        to_log_weights = (to_spread @ kernel).mul_(share)
        to_mass = -to_log_weights / mass
        to_log_tilt = spread.mul_(to_weights).add_(to_mass @ kernel.mT).mul_(tilt)
        left, right = torch.cat([to_spread, tilt], -2), torch.cat([share, to_mass], -2)
        to_log_kernel = (left.mT @ right).mul_(kernel)
    return to_log_tilt, to_log_kernel, to_log_weights, to_values


_gradients = differentiated_once(_average_gradients, "transport attention")
