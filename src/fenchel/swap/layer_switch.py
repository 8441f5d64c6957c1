"""Attention layers of ``fenchel.nn`` as a swap has them infer: another estimator, or a multiple of their own α."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from fenchel.auditing.sites import check_all_attend, own_estimators
from fenchel.errors import ModelError
from fenchel.functional.inference import estimator_object
from fenchel.integrations.transformers.attention_modules import calls_registry
from fenchel.nn.estimator_switch import inferring_otherwise
from fenchel.nn.inference import AttendingLayer, OtherInference, attention_layers

__all__ = ["as_first_order", "has_own_layers", "switchable_layers", "switched_layers"]


def has_own_layers(model: object) -> bool:
    """Whether a model's attention is switched in its layers, and not in the attention registry of transformers."""
    if not isinstance(model, nn.Module) or not attention_layers(model):
        return False
    return all(base.__name__ != "PreTrainedModel" for base in type(model).__mro__) or not calls_registry(
        model
    )


def as_first_order(model: Any) -> str | None:
    """Has every attention of a trained model infer by first order, of which a swap starts.

    Args:
        model: Changed.

    Returns:
        The estimators that it was trained with, where one is another.
    """
    trained_with = {layer.estimator for layer in attention_layers(model).values()}
    for layer in attention_layers(model).values():
        layer.estimator = "first_order"
    if not trained_with:
        trained_with = {*own_estimators(model).values()}
        if trained_with != {"first_order"}:
            model.set_attn_implementation("fenchel_first_order")
    return " and ".join(sorted(trained_with - {"first_order"})) or None


def switchable_layers(model: nn.Module) -> dict[str, AttendingLayer]:
    """The attention layers of ``fenchel.nn`` in a model, by qualified name, in its order.

    Raises:
        ModelError: If some attention is none of them, or a layer infers by another estimator than first order, of which
            a swap starts.
    """
    check_all_attend(model)
    layers = attention_layers(model)
    for name, layer in layers.items():
        called = name or type(model).__name__
        if layer.other is not None:
            raise ModelError(
                f"{called} is inside of fenchel.nn.use_estimator, and a swap switches layers itself. Swap the model "
                "outside of that block."
            )
        if layer.estimator != "first_order":
            raise ModelError(
                f"{called} infers by {layer.estimator!r}, and a swap starts from first-order attention. Set its "
                "estimator to 'first_order' and swap the model then, or leave it as it is and compare outputs yourself "
                "inside and outside of fenchel.nn.use_estimator(model, ...)."
            )
    return layers


@contextmanager
def switched_layers(
    model: nn.Module,
    estimator: str,
    *,
    times: float,
    layer: int | None,
    head: int | None,
    tol: float | None,
) -> Iterator[None]:
    """Have attention layers infer so until the block ends; what is not chosen stays as it is.

    Args:
        model: The model.
        estimator: "first_order", "second_order" or "exact".
        times: What a layer's own α is multiplied by.
        layer: Number (from 1) of the only layer, None for all.
        head: Number (from 1) of its only head, None for all.
        tol: Tolerance of the exact estimator, None for each layer's own.
    """
    layers = attention_layers(model)
    solver = estimator_object(estimator, tol)
    others: dict[str, OtherInference] = {}
    for number, name in enumerate(layers, start=1):
        if layer is not None and number != layer:
            others[name] = OtherInference(name)
            continue
        heads = None if head is None else (head,)
        others[name] = OtherInference(name, solver, None, heads, times=times)
    with inferring_otherwise(layers, others):
        yield
