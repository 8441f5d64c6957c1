"""The closeness of an audit: its name, what the name stands for, and whether the model attends under it."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.closeness import KL, AbstractCloseness, Tsallis
from fenchel.errors import InputError, ModelError, ProblemError
from fenchel.integrations.transformers.attention_modules import attention_modules
from fenchel.integrations.transformers.backend import closeness_of
from fenchel.nn.attending import attention_layers

__all__ = [
    "attends_otherwise",
    "check_model_closeness",
    "closeness_name",
    "closeness_named",
    "closeness_sentence",
]

NAMES = {"sparsemax": "tsallis:2", "entmax15": "tsallis:1.5", "softmax": None, "kl": None}
"""Names for some of them; None is Kullback and Leibler's, which an audit measures when nothing is said."""

_EXPECTED = (
    "expected tsallis:ORDER with an order above 1 and at most 2, such as tsallis:1.5, optionally followed by :csiszar "
    "or :temperature=T; or sparsemax, entmax15 or softmax"
)
_OF_HEADS = "orders of its heads' own"


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
        name = _name_of(given)
        if name == _OF_HEADS:
            raise InputError(f"closeness is {given!r}; {_EXPECTED}, one order for all heads.")
        if name is not None or isinstance(given, KL):
            return name
    if given is None:
        return None
    if not isinstance(given, str):
        raise InputError(f"closeness is {shown(given)}; {_EXPECTED}.")
    if given in NAMES:
        return NAMES[given]
    return _name_of(_parsed(given))


def closeness_named(name: str | None) -> Tsallis | None:
    """What a name of :func:`closeness_name` stands for; None for Kullback and Leibler's."""
    return None if name is None else _parsed(name)


def closeness_sentence(name: str | None) -> str:
    """What a page says of it, one sentence; empty for Kullback and Leibler's."""
    if name is None:
        return ""
    near = _parsed(name)
    called = {"tsallis:2": " (sparsemax)", "tsallis:1.5": " (1.5-entmax)"}.get(name, "")
    form = "Csiszár's" if near.relative == "csiszar" else "Bregman's"
    warm = "" if near.temperature == 1 else f", times {near.temperature:g}"
    return (
        f"Weights are kept near the preference by Tsallis' closeness of order {near.order:g}{called}, relative to it "
        f"in {form} sense{warm}, in the place of softmax: attention is the first-order answer under that closeness, "
        "and may be exactly zero."
    )


def check_model_closeness(model: nn.Module, name: str | None, *, even_so: bool) -> None:
    """Refuse a model that attends under another closeness than the one that is to be measured.

    Args:
        model: The model.
        name: Of :func:`closeness_name`.
        even_so: Whether it is to be measured under it nevertheless.

    Raises:
        ModelError: With the first attention that differs, and what to do.
    """
    if even_so:
        return
    for site, own in _own_names(model).items():
        if own == name:
            continue
        where = f"{site or type(model).__name__} of {type(model).__name__}" if site else type(model).__name__
        if own == _OF_HEADS:
            remedy = "an audit measures one for all; pass --even-so (even_so=True) to measure that one nevertheless"
        elif own is None:
            remedy = (
                "what an audit would call its attention is not what it computes. Leave closeness out; or, if it was "
                "trained under that, load it with the attn_implementation that it was trained with "
                "('fenchel_sparsemax' or 'fenchel_entmax15'), which its config.json may say; or pass "
                "--even-so (even_so=True)"
            )
        else:
            remedy = f"pass --closeness {own} (closeness={own!r}), or --even-so (even_so=True)"
        raise ModelError(
            f"{where} attends under {own or 'softmax'}, and the audit is to measure {name or 'softmax'}: {remedy}."
        )


def attends_otherwise(model: nn.Module, name: str | None) -> bool:
    """Whether some attention of a model is under another closeness than the one of that name."""
    return any(own != name for own in _own_names(model).values())


def _own_names(model: nn.Module) -> dict[str, str | None]:
    """The closeness of every place that attends, by its name."""
    layers = attention_layers(model)
    if layers:
        found = ((name, getattr(layer, "effective_closeness", None)) for name, layer in layers.items())
        return {name: None if near is None else _name_of(near) for name, near in found}
    return {name: _name_of(closeness_of(module)) for module, name in attention_modules(model).items()}


def _name_of(closeness: AbstractCloseness | None) -> str | None:
    if closeness is None or isinstance(closeness, KL):
        return None
    if not isinstance(closeness, Tsallis):
        return repr(closeness)
    order, warmth = (
        float(own.detach()) if isinstance(own, Tensor) and own.numel() == 1 else own
        for own in (closeness.order, closeness.temperature)
    )
    if isinstance(order, Tensor) or isinstance(warmth, Tensor):
        return _OF_HEADS
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
