"""Closenesses by name, as command lines, manifests and configurations of models give them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fenchel.arguments import shown
from fenchel.closeness.abstract import AbstractCloseness
from fenchel.closeness.kl import KL
from fenchel.closeness.tsallis import Tsallis
from fenchel.errors import InputError, ProblemError

__all__ = ["NAMES", "ORDERS_OF_HEADS", "closeness_name", "closeness_named", "name_of"]

NAMES = {"sparsemax": "tsallis:2", "entmax15": "tsallis:1.5", "softmax": None, "kl": None}
"""Names for some of them; None is Kullback and Leibler's, which an audit measures when nothing is said."""

_EXPECTED = (
    "expected tsallis:ORDER with an order above 1 and at most 2, such as tsallis:1.5, optionally followed by :csiszar "
    "or :temperature=T; or sparsemax, entmax15 or softmax"
)
ORDERS_OF_HEADS = "orders of its heads' own"
"""What :func:`name_of` calls a closeness with an order for each head."""


def closeness_name(given: Any) -> str | None:
    """The one name of a closeness, as a manifest keeps it; None for Kullback and Leibler's.

    Args:
        given: A name, a :class:`fenchel.Tsallis` of one order, :class:`fenchel.KL`, or None.

    Raises:
        InputError: If it is none, or has an order or temperature that cannot be.

    Example:
        >>> closeness_name("entmax15"), closeness_name(Tsallis(1.25, "csiszar")), closeness_name("softmax")
        ('tsallis:1.5', 'tsallis:1.25:csiszar', None)
    """
    if isinstance(given, AbstractCloseness):
        name = name_of(given)
        if name == ORDERS_OF_HEADS:
            raise InputError(f"closeness is {given!r}; {_EXPECTED}, one order for all heads.")
        if name is not None or isinstance(given, KL):
            return name
    if given is None:
        return None
    if not isinstance(given, str):
        raise InputError(f"closeness is {shown(given)}; {_EXPECTED}.")
    if given in NAMES:
        return NAMES[given]
    return name_of(_parsed(given))


def closeness_named(name: str | None) -> Tsallis | None:
    """What a name of :func:`closeness_name` stands for; None for Kullback and Leibler's."""
    return None if name is None else _parsed(name)


def name_of(closeness: AbstractCloseness | None) -> str | None:
    """What a closeness is called; None for Kullback and Leibler's, and its repr where it has no name."""
    if closeness is None or isinstance(closeness, KL):
        return None
    if not isinstance(closeness, Tsallis):
        return repr(closeness)
    order, warmth = (
        float(own.detach()) if isinstance(own, Tensor) and own.numel() == 1 else own
        for own in (closeness.order, closeness.temperature)
    )
    if isinstance(order, Tensor) or isinstance(warmth, Tensor):
        return ORDERS_OF_HEADS
    relative = ":csiszar" if closeness.relative == "csiszar" else ""
    return f"tsallis:{order:.12g}{relative}{f':temperature={warmth:.12g}' if warmth != 1 else ''}"


def _parsed(name: str) -> Tsallis:
    kind, *parts = name.split(":")
    options: dict[str, Any] = {}
    try:
        if kind != "tsallis" or not parts:
            raise ValueError
        order = float(parts[0])
        for part in parts[1:]:
            if part in ("csiszar", "bregman") and "relative" not in options:
                options["relative"] = part
            elif part.startswith("temperature=") and "temperature" not in options:
                options["temperature"] = float(part.removeprefix("temperature="))
            else:
                raise ValueError
        if not 1 < order <= 2:
            raise ValueError
        return Tsallis(order, **options)
    except (ValueError, ProblemError):
        raise InputError(f"closeness is {shown(name)}; {_EXPECTED}.") from None
