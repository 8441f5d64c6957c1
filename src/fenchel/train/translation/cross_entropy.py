"""Cross-entropy with smoothed labels over many classes, with its gradient in the same pass."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["smoothed_cross_entropy"]

_BLOCK = 2**17  # entries of scores that stay in a processor's cache while they are worked on


def smoothed_cross_entropy(
    scores: Tensor, labels: Tensor, *, smoothing: float = 0.0, divisor: float = 1.0
) -> tuple[Tensor, Tensor]:
    r"""Adds up the surprise of all labels but 0, which is padding.

    .. math:: \tfrac1{\text{divisor}} \sum_r \Bigl[ (1 - \varepsilon)(-\log p_{r, y_r})
              - \tfrac\varepsilon V \sum_v \log p_{rv} \Bigr], \qquad p_r = \mathrm{softmax}(\text{scores}_r)

    It is what :func:`torch.nn.functional.cross_entropy` gives, which reads and writes all scores several times; here a
    block of rows at a time is in the cache, and its gradient is left behind.

    Args:
        scores: (R, V).
        labels: (R,), int64.
        smoothing: ε in [0, 1).
        divisor: What the sum is divided by.

    Returns:
        The sum; and, without gradient and whatever ε and the divisor, :math:`-\sum_r \log p_{r, y_r}`.

    Example:
        >>> scores = torch.randn(6, 9, dtype=torch.float64)
        >>> labels = torch.tensor([0, 4, 2, 0, 1, 8])
        >>> torch_has = torch.nn.functional.cross_entropy(
        ...     scores, labels, ignore_index=0, label_smoothing=0.1, reduction="sum")
        >>> torch.allclose(smoothed_cross_entropy(scores, labels, smoothing=0.1)[0], torch_has)
        True
    """
    found: tuple[Tensor, Tensor] = _SmoothedCrossEntropy.apply(scores, labels, smoothing, divisor)
    return found


class _SmoothedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, labels: Tensor, smoothing: float, divisor: float
    ) -> tuple[Tensor, Tensor]:
        wanted = ctx.needs_input_grad[0]
        classes = scores.shape[-1]
        gradient = torch.empty_like(scores) if wanted else None
        smoothed = scores.new_zeros((), dtype=torch.float64)
        plain = torch.zeros_like(smoothed)
        rows = max(1, _BLOCK // classes)
        for begin in range(0, len(scores), rows):
            block, label = scores[begin : begin + rows], labels[begin : begin + rows].unsqueeze(1)
            p = torch.empty_like(block) if gradient is None else gradient[begin : begin + rows]
            torch.softmax(block, -1, out=p)
            # log Σ exp by way of the largest, whose p is at least 1/V.
            total = block.amax(-1, keepdim=True) - p.amax(-1, keepdim=True).log()
            real = (label != 0).to(block.dtype)
            surprise = (total - block.gather(1, label)) * real
            even = (total - block.mean(-1, keepdim=True)) * real
            plain += surprise.sum(dtype=torch.float64)
            smoothed += ((1 - smoothing) * surprise + smoothing * even).sum(dtype=torch.float64)
            if gradient is not None:
                weight = real / divisor
                p.sub_(smoothing / classes).mul_(weight)
                p.scatter_add_(1, label, (smoothing - 1) * weight)
        if gradient is not None:
            ctx.save_for_backward(gradient)
        plain = plain.to(scores.dtype)
        ctx.mark_non_differentiable(plain)
        return (smoothed / divisor).to(scores.dtype), plain

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride] - once_differentiable renames nothing
        ctx: Any, *outer: Tensor
    ) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        factor = outer[0]
        return gradient if factor.item() == 1 else gradient * factor, None, None, None
