"""A model's untrained twin: the same configuration with freshly drawn weights."""

from __future__ import annotations

import copy
from typing import Any

from fenchel.errors import ModelError
from fenchel.runs.model import seeded

__all__ = ["untrained_twin"]


def untrained_twin(model: Any, *, name: str, seed: int) -> Any:
    """A model of the same class and configuration whose weights are drawn as before any training.

    Args:
        model: A model of transformers.
        name: What the user calls it.
        seed: Of the weights; torch's own random numbers go on as if nothing had been drawn.

    Returns:
        The twin, where the model is and in its dtype; its configuration calls it "untrained twin of NAME".

    Raises:
        ModelError: If it cannot be built from its configuration alone.
    """
    config = copy.deepcopy(model.config)
    try:
        with seeded(seed, model):
            twin = type(model)(config)
    except Exception as error:
        raise ModelError(
            f"no untrained twin of {name} can be built from its configuration: {type(error).__name__}: {error}."
        ) from error
    twin.config._name_or_path = f"untrained twin of {name}"
    return twin.to(device=model.device, dtype=model.dtype).eval()
