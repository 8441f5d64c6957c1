"""What a captioner descends: cross-entropy, and what soft and hard attention add to it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

__all__ = ["cross_entropies", "doubly_stochastic_penalty", "objective", "reinforced"]


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each word (B, m), 0 where there is none.

    Args:
        logits: (B, m, vocabulary).
        targets: The words that come next (B, m), 0 where there is none.
    """
    return nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=0)


def doubly_stochastic_penalty(weights: Tensor, real: Tensor) -> Tensor:
    r"""How far the weights of a cell are from 1 over all words, :math:`\sum_i (1 - \sum_t p_{ti})^2`, (B,).

    Args:
        weights: p (B, m, n).
        real: Where there is a word (B, m).

    Reference:
        Xu et al. 2015, equation (14).

    Example:
        >>> weights = torch.tensor([[[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]])
        >>> doubly_stochastic_penalty(weights, torch.tensor([[True, True, False]])).item()
        0.125
    """
    looked = (weights * real.unsqueeze(-1)).sum(1)
    return (1 - looked).square().sum(-1)


def reinforced(weights: Tensor, chosen: Tensor, advantage: Tensor, entropy: float) -> Tensor:
    r"""What REINFORCE adds to the cross-entropy of each word, :math:`-A \log p_c - \lambda H(p)`, (B, m).

    With A the reward of the drawn cell c above what was expected, without gradient, the mean of the gradient over
    draws is that of the expected cross-entropy, :math:`\nabla \sum_c p_c \ell_c = \mathbb{E}[\nabla \ell_c + \ell_c
    \nabla \log p_c]`, where λ is 0.

    Args:
        weights: p (B, m, n).
        chosen: c (B, m).
        advantage: A (B, m).
        entropy: λ.

    Reference:
        Xu et al. 2015, section 4.1, where the bound on log P is climbed instead.
    """
    likely = weights.gather(-1, chosen.unsqueeze(-1)).squeeze(-1).log()
    # Where a weight has come to 0, its logarithm would have no gradient.
    spread = -(weights * weights.clamp_min(torch.finfo(weights.dtype).tiny).log()).sum(-1)
    return -advantage * likely - entropy * spread


def objective(said: Mapping[str, Tensor], targets: Tensor, *, coverage: float, entropy: float) -> Tensor:
    """What is descended, summed over the words of some captions.

    Args:
        said: What the model says of them in training.
        targets: The words that come next (B, m), 0 where there is none.
        coverage: Weight of the doubly stochastic penalty.
        entropy: See ``reinforced``.
    """
    real = targets != 0
    total = cross_entropies(said["logits"], targets).sum()
    if coverage:
        total = total + coverage * doubly_stochastic_penalty(said["weights"], real).sum()
    if "advantage" in said:
        learned = reinforced(said["weights"], said["chosen"], said["advantage"], entropy)
        total = total + learned.masked_fill(~real, 0.0).sum()
    return total
