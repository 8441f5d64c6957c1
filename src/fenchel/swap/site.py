"""Where a model attends, as a swap counts it: the layers of transformers, or attention layers of ``fenchel.nn``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fenchel.errors import ModelError
from fenchel.nn.continuous import ContinuousAttention
from fenchel.nn.transport import TransportAttention
from fenchel.swap.layer_switch import has_own_layers, switchable_layers

__all__ = ["Site", "sites_of"]


@dataclass(frozen=True)
class Site:
    """A layer that attends.

    Attributes:
        number: From 1, in the order in which the model holds its attention modules.
        name: Qualified name of the attention module.
        heads: How many heads it has.
        together: Whether its heads infer together, so that none can be swapped alone.
    """

    number: int
    name: str
    heads: int
    together: bool = False


def sites_of(model: Any) -> list[Site]:
    """The layers of a model that attend.

    Raises:
        ModelError: If there are none, some attention bypasses the attention registry or is none of ``fenchel.nn``, or a
            layer does not say how many heads it has.
    """
    if has_own_layers(model):
        return [
            Site(
                number,
                name or type(model).__name__,
                layer.num_heads,
                isinstance(layer, TransportAttention | ContinuousAttention),
            )
            for number, (name, layer) in enumerate(switchable_layers(model).items(), start=1)
        ]
    from fenchel.integrations.transformers.attention_modules import attention_modules

    return [
        Site(number, name, _heads(module, name))
        for number, (module, name) in enumerate(attention_modules(model).items(), start=1)
    ]


def _heads(module: Any, name: str) -> int:
    for holder in (module, getattr(module, "config", None)):
        for attribute in ("num_attention_heads", "num_heads", "n_heads", "n_head"):
            found = getattr(holder, attribute, None)
            if isinstance(found, int):
                return found
    raise ModelError(
        f"{name} ({type(module).__name__}) does not say how many heads it has, so none can be swapped alone"
    )
