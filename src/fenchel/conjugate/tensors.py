"""The tensors that an object is made of, found by looking: nobody has to list them, so nobody can forget one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

__all__ = ["tensors_of"]


def tensors_of(thing: object) -> dict[str, Tensor]:
    """Every tensor that is reached through attributes, by the name of the attribute that holds it.

    Args:
        thing: A preference, a closeness or anything made of such; lists, mappings, modules and other objects of classes
            written in Python are looked into. Where two attributes have one name the later gets a number.

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> sorted(tensors_of(Discrete(torch.eye(2))))
        ['log_weights', 'templates']
    """
    found: dict[str, Tensor] = {}
    for name, tensor in _walk("", thing, set()):
        key, number = name.lstrip("_"), 2
        while key in found and found[key] is not tensor:
            key, number = f"{name.lstrip('_')}_{number}", number + 1
        found[key] = tensor
    return found


def _walk(name: str, thing: Any, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        yield name, thing
        return
    if thing is None or isinstance(thing, str | bytes | int | float | complex | type) or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, nn.Module):
        yield from thing.named_parameters()
        yield from thing.named_buffers()
    elif isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _walk(str(key), value, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for value in thing:
            yield from _walk(name, value, seen)
    else:
        slots = (slot for kind in type(thing).__mro__ for slot in getattr(kind, "__slots__", ()))
        own = {**{slot: getattr(thing, slot, None) for slot in slots}, **getattr(thing, "__dict__", {})}
        for attribute, value in own.items():
            yield from _walk(attribute, value, seen)
