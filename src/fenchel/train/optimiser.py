"""AdamW, with decay for matrices only."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["adamw", "decays"]

_BETAS = (0.9, 0.999)
_NOT_DECAYED = ("class_token", "position")


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: not to biases, norms and scalars, nor to the class token and the positions.

    Args:
        name: The parameter's name in its model.
        parameter: Of any shape.

    Example:
        >>> decays("layers.0.mlp.weight", torch.empty(4, 4)), decays("positions", torch.empty(1, 50, 4))
        (True, False)
    """
    return parameter.ndim >= 2 and not any(part in name for part in _NOT_DECAYED)


def adamw(model: nn.Module, learning_rate: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW over a model's parameters in two groups, with decay and without.

    Args:
        model: On its device already.
        learning_rate: To begin with.
        weight_decay: For what ``decays``.
    """
    trained = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in trained if decays(name, parameter)]
    others = [parameter for name, parameter in trained if not decays(name, parameter)]
    groups = [
        {"params": decayed, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]], lr=learning_rate, betas=_BETAS, fused=True
    )
