"""Temporary use of another estimator by the layers of a model, or by some layers and heads."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from torch import nn

from fenchel.arguments import checked, shown
from fenchel.errors import InputError, ModelError
from fenchel.estimators import Estimator, EstimatorName
from fenchel.functional.exact import estimator_object
from fenchel.nn.inference import AttendingLayer, OtherInference, attention_layers
from fenchel.tensors import check_type, checked_argument


@contextmanager
def use_estimator(
    model: nn.Module,
    estimator: EstimatorName | Estimator = "exact",
    *,
    alpha: float | None = None,
    layers: Collection[int | str] | None = None,
    heads: Collection[int] | None = None,
    tol: float | None = None,
    max_steps: int | None = None,
) -> Iterator[None]:
    r"""Make the attention layers of ``model`` use another estimator until the block ends.

    The output of each chosen head is :math:`E_{p(\lambda)}[v]`, where λ is the estimate for its own templates,
    preference and evidence. Other heads and layers are unchanged. The counterpart of
    :func:`fenchel.integrations.transformers.use_backend` for modules that contain
    :class:`~fenchel.nn.MultiheadAttention`, :class:`~fenchel.nn.MixtureAttention`,
    :class:`~fenchel.nn.ContinuousAttention` or :class:`~fenchel.nn.TransportAttention` layers.

    Layers are restored at the end, also after an exception. Parameters and attributes never change, and a model copied
    or saved inside the block does not keep the other estimator. Contexts nest: inside the inner one the outer one has
    no effect.

    Args:
        model: Such a layer, or any module that contains some, in eval or training mode.
        estimator: "first_order", "second_order" or "exact"; or an object with its options, such as
            ``fenchel.Exact(tol=1e-6)``; options that are None default to the layer's.
        alpha: α > 0 for the chosen heads; None is the layer's.
        layers: Layers to switch: numbers from 1, in the model's order, or qualified names. None is all.
        heads: Heads of those layers, numbers from 1. None is all.
        tol: Tolerance of "exact"; None is the layer's.
        max_steps: Steps of "exact" at most; None is the layer's.

    Raises:
        ModelError: If the model has no such layer; at the end of the block, if none of them was called, or one given in
            ``layers`` was not.
        InputError: If the estimator, a layer or a head does not exist, or heads are given for
            :class:`~fenchel.nn.TransportAttention` or :class:`~fenchel.nn.ContinuousAttention`, whose heads are solved
            together.
        ProblemError: If α or the tolerance is invalid.

    Reference:
        Sections 5 and 6, eqs. (7), (9), (13), (14).

    Example:
        >>> import torch
        >>> from fenchel.nn import MultiheadAttention
        >>> layer = MultiheadAttention(16, 4, batch_first=True)
        >>> x = torch.randn(2, 5, 16)
        >>> with use_estimator(layer, "exact", heads=[2, 3]):
        ...     _, weights = layer(x, x, x, average_attn_weights=False)
        >>> (weights == layer(x, x, x, average_attn_weights=False)[1]).flatten(2).all(-1).all(0)
        tensor([ True, False, False,  True])
    """
    check_type("model", model, nn.Module, "a torch.nn.Module", error=ModelError)
    if not isinstance(estimator, Estimator):
        checked("estimator", estimator)
    solver = estimator_object(estimator, tol, max_steps)
    if alpha is not None:
        checked_argument("alpha", alpha)
    known = attention_layers(model)
    if not known:
        raise ModelError(
            f"{type(model).__name__} has no attention layer of fenchel.nn; pass a module that contains "
            "MultiheadAttention; for a model of transformers use fenchel.integrations.transformers.use_backend"
        )
    chosen = chosen_layers(model, tuple(known), layers)
    chosen_heads = None if heads is None else checked("heads", heads)
    for name in chosen if chosen_heads is not None else ():
        _check_heads(name, known[name], chosen_heads)
    others = {
        name: OtherInference(name, solver, alpha, chosen_heads) if name in chosen else OtherInference(name)
        for name in known
    }
    with attributes_set("other", [(layer, others[name]) for name, layer in known.items()]):
        yield
    silent = [name for name in chosen if not others[name].called]
    if silent and (layers is not None or len(silent) == len(chosen)):
        raise ModelError(
            f"{_called(silent[0], model)} was to use {solver.name!r}, but was not called inside use_estimator; call "
            "the model inside the block, or leave this layer out of layers"
        )


@contextmanager
def attributes_set(name: str, values: Iterable[tuple[Any, Any]]) -> Iterator[None]:
    """Set an attribute of objects until the block ends, and then restore it or, where it was not set, delete it.

    Args:
        name: Name of the attribute.
        values: The objects, each with its value.

    Example:
        >>> layer = nn.Linear(2, 2)
        >>> with attributes_set("training", [(layer, False)]):
        ...     print(layer.training)
        False
        >>> layer.training
        True
    """
    with ExitStack() as stack:
        for owner, value in values:
            if name in vars(owner):
                stack.callback(setattr, owner, name, vars(owner)[name])
            else:
                stack.callback(delattr, owner, name)
            setattr(owner, name, value)
        yield


def carry_over(model: nn.Module, copy: nn.Module) -> None:
    """Give the layers of a copy of ``model`` the temporary inferences of its layers."""
    for layer, other in zip(attention_layers(model).values(), attention_layers(copy).values(), strict=True):
        if layer.other is not None:
            other.other = replace(layer.other)


def _called(name: str, model: nn.Module) -> str:
    return f"{name} of {type(model).__name__}" if name else type(model).__name__


def chosen_layers(
    model: nn.Module, names: Sequence[str], layers: Collection[int | str] | None
) -> tuple[str, ...]:
    """The names of layers given by numbers from 1 or by names, each once; all of them for None.

    Raises:
        InputError: If one does not exist; the message names the first.
    """
    if layers is None:
        return tuple(names)
    if isinstance(layers, str | bytes | Mapping) or not isinstance(layers, Collection) or not len(layers):
        raise InputError(
            f"layers is {shown(layers)}; expected numbers from 1 or names of attention layers, or None for all layers"
        )
    chosen: dict[str, None] = {}
    for layer in layers:
        if isinstance(layer, str) and layer in names:
            chosen[layer] = None
        elif isinstance(layer, int) and not isinstance(layer, bool) and 1 <= layer <= len(names):
            chosen[names[layer - 1]] = None
        else:
            # The name of a model that is itself a layer is empty.
            known = f"layers 1 to {len(names)}" if len(names) > 1 else "layer 1"
            known += f": {', '.join(names)}" if any(names) else ""
            raise InputError(
                f"layer {shown(layer)} does not exist in {type(model).__name__}, which has attention {known}"
            )
    return tuple(chosen)


def _check_heads(name: str, layer: AttendingLayer, heads: tuple[int, ...] | None) -> None:
    kind = type(layer).__name__
    if layer.heads_infer_together:
        raise InputError(
            f"heads are {list(heads or ())} for {name or kind}, a {kind}, whose heads are solved together; leave heads "
            "out, or leave this layer out of layers"
        )
    missing = sorted(head for head in heads or () if head > layer.num_heads)
    if missing:
        raise InputError(
            f"heads {missing} do not exist in {name or kind}, which has heads 1 to {layer.num_heads}"
        )
