"""The untrained twin of a model with attention layers of ``fenchel.nn``."""

from __future__ import annotations

import copy

from torch import nn

from fenchel.errors import ModelError
from fenchel.loading import seeded
from fenchel.nn.estimator_switch import carry_over

__all__ = ["twin_of_layers"]


def twin_of_layers(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same form with fresh weights, in eval mode; its layers infer as those of the model do now.

    A copy of the model is taken, and every module that has parameters draws them anew by its own ``reset_parameters``.

    Args:
        model: The model.
        seed: Of the weights.

    Raises:
        ModelError: If a module with parameters of its own cannot draw them anew.

    Example:
        >>> import torch
        >>> from fenchel.nn import MultiheadAttention
        >>> model = nn.Sequential(nn.Linear(4, 16), MultiheadAttention(16, 2))
        >>> one, same, other = (twin_of_layers(model, seed) for seed in (0, 0, 1))
        >>> torch.equal(one[0].weight, same[0].weight), torch.equal(one[0].weight, other[0].weight)
        (True, False)
    """
    with seeded(seed, model):
        twin = copy.deepcopy(model)
        # Children first: a layer that initialises its children otherwise than they do comes after them.
        for name, module in reversed(list(twin.named_modules())):
            _reset(name, module, type(model).__name__)
    carry_over(model, twin)
    return twin.eval()


def _reset(name: str, module: nn.Module, model: str) -> None:
    if not any(parameter is not None for parameter in module._parameters.values()):
        return
    reset = getattr(module, "reset_parameters", None)
    if not callable(reset):
        own = next(parameter for parameter, value in module._parameters.items() if value is not None)
        raise ModelError(
            f"{name or model} ({type(module).__name__}) has a parameter {own!r} and no method "
            "reset_parameters to draw it "
            f"anew, so an untrained twin of {model} cannot be built"
        )
    reset()
