"""How far first order is from each family's eager attention, in float32."""

from typing import Any, NamedTuple

import torch

from fenchel.integrations.transformers import use_backend
from tests.tiny_models import tiny_inputs, tiny_model

__all__ = ["IMAGES", "Difference", "first_order_difference", "paddings", "real_rows"]

IMAGES = ("swin", "vit")


class Difference(NamedTuple):
    """Largest entries over the real positions.

    Attributes:
        absolute: Of the difference of the last hidden states.
        largest: Of the last hidden state itself.
    """

    absolute: float
    largest: float


def paddings(family: str) -> tuple[str, ...]:
    """The ways in which inputs of ``family`` are padded."""
    return ("none",) if family in IMAGES else ("right", "left")


def real_rows(inputs: dict[str, Any]) -> Any:
    """An index of the positions of the last hidden state that are not padding."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    return slice(None) if mask is None else mask == 1


def first_order_difference(family: str, padding: str) -> Difference:
    """Compare the two on a tiny random model whose attention is uneven."""
    inputs = tiny_inputs(family, padding=padding, dtype=torch.float32)
    model = tiny_model(family, dtype=torch.float32, attn_implementation="eager")
    real = real_rows(inputs)
    with torch.no_grad():
        expected = model(**inputs).last_hidden_state[real]
        with use_backend(model, "first_order"):
            found = model(**inputs).last_hidden_state[real]
    return Difference(float((found - expected).abs().max()), float(expected.abs().max()))
