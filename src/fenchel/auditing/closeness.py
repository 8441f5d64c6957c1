"""The closeness of an audit: its name, what the name stands for, and whether the model attends under it."""

from __future__ import annotations

from torch import nn

from fenchel.closeness.named import ORDERS_OF_HEADS, closeness_named, name_of
from fenchel.errors import ModelError
from fenchel.integrations.transformers.attention_modules import attention_modules
from fenchel.integrations.transformers.backend import closeness_of
from fenchel.nn.inference import attention_layers

__all__ = [
    "attends_otherwise",
    "check_model_closeness",
    "closeness_sentence",
]


def closeness_sentence(name: str | None) -> str:
    """What a page says of it, one sentence; empty for Kullback and Leibler's."""
    if name is None:
        return ""
    near = closeness_named(name)
    assert near is not None  # noqa: S101 - only None names Kullback and Leibler's
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
        if own == ORDERS_OF_HEADS:
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
        return {name: None if near is None else name_of(near) for name, near in found}
    return {name: name_of(closeness_of(module)) for module, name in attention_modules(model).items()}
