"""The conditions of a swap: the model itself, other estimators, ablations, and controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.functional.exact import estimator_object
from fenchel.integrations.backend import own_estimators
from fenchel.integrations.capture import Capture, CapturedHead
from fenchel.integrations.registry import attending_modules, has_own_layers
from fenchel.nn.estimator_switch import attributes_set
from fenchel.nn.inference import OtherInference, attention_layers, check_all_attend
from fenchel.run_options import ABLATIONS, SwapOptions

# Part of the model that is swapped: all of it, one layer, or one head.
Where = Literal["model", "layer", "head"]

_HEAD_CONTROLS = 3


@dataclass(frozen=True)
class Site:
    """An attention layer.

    Attributes:
        number: From 1, in the order of the attention modules of the model.
        name: Qualified name of the attention module.
        heads: Number of heads.
        joint: Whether its heads infer jointly, so that none can be swapped alone.
    """

    number: int
    name: str
    heads: int
    joint: bool = False


@dataclass(frozen=True)
class Condition:
    """An estimator or ablation in all or some of the model's attention.

    Attributes:
        estimator: An estimator or one of ``ABLATIONS``; None for the model as it is.
        alpha: Reliability of the evidence.
        layer: Number of the only layer that is swapped, None for all.
        head: Number of the only head that is swapped, None for all.
        name: Qualified name of the swapped layer's attention module.
        together: Heads that are ablated at once: layer, name of its module, and head of each.
    """

    estimator: str | None = None
    alpha: float = 1.0
    layer: int | None = None
    head: int | None = None
    name: str | None = None
    together: tuple[tuple[int, str, int], ...] = ()

    @property
    def key(self) -> str:
        """A name that is unique within a swap.

        Example:
            >>> Condition().key, Condition("exact").key, Condition("first_order", 0.8, layer=2, head=5).key
            ('model', 'exact', 'first_order@0.8/layer2/head5')
        """
        if self.estimator is None:
            return "model"
        layer = "" if self.layer is None else f"/layer{self.layer}"
        head = f"/head{self.head}" if self.head else "/together" if self.together else ""
        return (f"{self.estimator}@{self.alpha:g}" if self.is_control else self.estimator) + layer + head

    @property
    def is_control(self) -> bool:
        """Whether it is first order at some α, which only makes attention softer or sharper."""
        return self.estimator == "first_order"

    @property
    def is_model_wide_control(self) -> bool:
        """Whether it is a control of the whole model."""
        return self.is_control and self.layer is None

    @property
    def is_model_wide_estimator(self) -> bool:
        """Whether it swaps an estimator into the whole model."""
        return self.estimator not in (None, *ABLATIONS) and not self.is_control and self.layer is None

    @property
    def replaced(self) -> tuple[tuple[int, str, int | None], ...]:
        """Layer, name of its module, and head (None for all) of each part whose output is ablated."""
        if self.estimator not in ABLATIONS:
            return ()
        return self.together or ((self.layer or 0, self.name or "", self.head),)

    @property
    def where(self) -> Where:
        """Part of the model that is swapped."""
        return "model" if self.layer is None else "layer" if self.head is None else "head"

    def installed(
        self, model: Any, tol: float | None, means: Mapping[int, Tensor] | None = None
    ) -> AbstractContextManager[None]:
        """A context manager in which the model infers by this condition.

        Args:
            model: A transformers model, or one with attention layers of ``fenchel.nn``, whose own α is multiplied.
            tol: Tolerance of the exact estimator, None for its default.
            means: By layer, the mean output of each head over the text, (H, d_v); for the ablation ``mean``.
        """
        if self.estimator is None:
            return nullcontext()
        if self.replaced:
            return _ablated_heads(model, self, means or {})
        if has_own_layers(model):
            return _switched_layers(model, self, tol)
        from fenchel.integrations.transformers import use_backend

        return use_backend(
            model,
            self.estimator,
            alpha=self.alpha,
            layers=None if self.name is None else [self.name],
            heads=None if self.head is None else [self.head],
            tol=tol,
        )


def head_control_alphas(alphas: Sequence[float]) -> list[float]:
    """The α of the controls of single heads: the smallest, one in the middle, and the largest.

    Example:
        >>> head_control_alphas([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3])
        [0.5, 0.8, 1.3]
    """
    # Below 1 first order is smoother, as exact inference is: the middle one is there.
    others = sorted(alpha for alpha in set(alphas) if alpha != 1)
    if len(others) <= _HEAD_CONTROLS:
        return others
    return [others[0], others[(len(others) - 1) // 2], others[-1]]


def make_conditions(sites: Sequence[Site], options: SwapOptions) -> list[Condition]:
    """All conditions of a swap: the model itself, controls and estimators of the whole model, of layers and of heads.

    A layer has the controls of the whole model except for α = 1, which is the model itself; a head has three.

    Args:
        sites: The attention layers.
        options: Options of the swap.

    Returns:
        The conditions.

    Raises:
        InputError: If a layer or a head does not exist, is chosen for nothing, or cannot be swapped alone.
    """
    layers, heads, ablations = options.layers, options.heads, options.ablations or ()
    per_layer, per_head, together = options.per_layer, options.per_head, options.together
    # α = 1 alone is the model itself, no control.
    alphas = options.alphas if set(options.alphas) != {1.0} else ()
    either = ("--per-layer or --per-head", per_layer or per_head)
    for option, asked, (flags, wanted) in (
        ("layers", layers, either),
        ("heads", heads, ("--per-head", per_head)),
        ("ablations", ablations or None, ("--per-layer, --per-head or --together", either[1] or together)),
    ):
        if asked is not None and not wanted:
            raise InputError(f"{option} {sorted(asked)} were given, but none is swapped alone. Add {flags}.")
    if together and not ablations:
        raise InputError(
            "together names heads, but there is no ablation to replace them by. Add --ablations zero."
        )
    chosen = [site for site in sites if layers is None or site.number in layers]
    if missing := sorted(set(layers or ()) - {site.number for site in sites}):
        listed = ", ".join(f"{site.number} {site.name}" for site in (sites[0], sites[-1]))
        raise InputError(
            f"layers {missing} do not exist: this model has {len(sites)} that attend ({listed})."
        )
    most = max((site.heads for site in chosen), default=0)
    if missing := sorted(head for head in heads or () if head > most):
        raise InputError(f"heads {missing} do not exist: these layers have heads 1 to {most}.")
    joint = next((site for site in chosen if site.joint), None)
    if joint is not None and (per_head or (per_layer and ablations)):
        others = ",".join(str(site.number) for site in sites if not site.joint)
        otherwise = "Leave the ablations out" if ablations else "Use --per-layer"
        raise InputError(
            f"layer {joint.number}, {joint.name}, has heads that share one inference, so none can be swapped "
            f"alone. {f'Choose the other layers: --layers {others}' if others else otherwise}."
        )

    estimators = [name for name in options.estimators if name != "none"]
    alone = [(name, 1.0) for name in (*estimators, *ablations)]
    conditions = [
        Condition(),
        *(Condition("first_order", alpha) for alpha in alphas),
        *map(Condition, estimators),
    ]
    if together:
        places = tuple(_place(name, sites) for name in together)
        conditions += [Condition(name, together=places) for name in ablations]
    if per_layer:
        ways = [*alone, *(("first_order", alpha) for alpha in alphas if alpha != 1)]
        conditions += [Condition(*way, layer=site.number, name=site.name) for site in chosen for way in ways]
    if per_head:
        ways = [*alone, *(("first_order", alpha) for alpha in head_control_alphas(alphas))]
        conditions += [
            Condition(*way, layer=site.number, head=head, name=site.name)
            for site in chosen
            for head in range(1, site.heads + 1)
            if heads is None or head in heads
            for way in ways
        ]
    return conditions


def _place(head: str, sites: Sequence[Site]) -> tuple[int, str, int]:
    """Layer, name of its module, and head of a name such as L2H3.

    Raises:
        InputError: If there is no such head.
    """
    layer, number = map(int, head[1:].split("H"))
    alone = [site for site in sites if not site.joint]
    site = next((site for site in alone if site.number == layer and number <= site.heads), None)
    if site is None:
        last = f"L{alone[-1].number}H{alone[-1].heads}" if alone else "none"
        raise InputError(
            f"together names {head}, which is no head that can be swapped alone; the last one is {last}."
        )
    return layer, site.name, number


def sites_of(model: Any) -> list[Site]:
    """The attention layers of a model.

    Raises:
        ModelError: If there are none, some attention is neither dispatched by the attention registry nor of
            ``fenchel.nn``, or the number of heads of a layer is not known.
    """
    if has_own_layers(model):
        _check_switchable(model)
    return [
        Site(number, name, _heads(module, name), getattr(module, "heads_infer_together", False))
        for number, (name, module) in enumerate(attending_modules(model).items(), start=1)
    ]


def layers_of_kinds(model: Any, sites: Sequence[Site], inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Kind and layer of every attention module, as audits number them, for a model with several kinds of attention.

    Args:
        model: The model; run once.
        sites: Its attention layers.
        inputs: A batch of its inputs.

    Returns:
        Records with ``kind``, ``layer``, ``name`` and ``number``; empty if all layers are of one kind, or if a module
        attends several times, so that it is more than one layer of an audit.
    """
    config = getattr(model, "config", None)
    crossing = ("is_encoder_decoder", "add_cross_attention")
    if not has_own_layers(model) and not any(getattr(config, name, False) for name in crossing):
        return []
    numbers = {site.name: site.number for site in sites if not site.joint}
    try:
        with torch.no_grad(), Capture(model, layers=list(numbers)) as heads:
            model(**inputs)
        found = heads.sites
    except (CaptureError, InputError, ModelError):
        return []  # swaps of estimators need no capture
    once = sorted(site.name for site in found) == sorted(site.name for site in sites)
    if not once or len({site.kind for site in found}) < 2:
        return []
    return [
        {"kind": site.kind, "layer": site.layer, "name": site.name, "number": numbers[site.name]}
        for site in found
    ]


def _heads(module: Any, name: str) -> int:
    for holder in (module, getattr(module, "config", None)):
        for attribute in ("num_attention_heads", "num_heads", "n_heads", "n_head"):
            result = getattr(holder, attribute, None)
            if isinstance(result, int):
                return result
    raise ModelError(
        f"{name} ({type(module).__name__}) does not say how many heads it has, so none can be swapped alone"
    )


def as_first_order(model: Any) -> str | None:
    """Set the estimator of a trained model to first order, from which a swap starts.

    Args:
        model: The model; modified in place.

    Returns:
        The other estimators that it was trained with; None without any.
    """
    layers = attention_layers(model).values()
    trained_with = {layer.estimator for layer in layers}
    for layer in layers:
        layer.estimator = "first_order"
    if not trained_with:
        trained_with = {*own_estimators(model).values()}
        if trained_with != {"first_order"}:
            model.set_attn_implementation("fenchel_first_order")
    return " and ".join(sorted(trained_with - {"first_order"})) or None


def _check_switchable(model: nn.Module) -> None:
    """Raise unless all attention is in layers of ``fenchel.nn`` that infer by first order.

    Raises:
        ModelError: Naming the first layer that does not.
    """
    check_all_attend(model)
    for name, layer in attention_layers(model).items():
        called = name or type(model).__name__
        if layer.other is not None:
            raise ModelError(
                f"{called} is inside fenchel.nn.use_estimator, but a swap switches layers itself. Swap the model "
                "outside that block."
            )
        if layer.estimator != "first_order":
            raise ModelError(
                f"{called} uses the estimator {layer.estimator!r}, and a swap starts from first-order attention. Set "
                "its estimator to 'first_order' before the swap, or compare outputs yourself inside and outside "
                "fenchel.nn.use_estimator(model, ...)."
            )


def _switched_layers(
    model: nn.Module, condition: Condition, tol: float | None
) -> AbstractContextManager[None]:
    """A context manager in which layers of ``fenchel.nn`` infer by a condition, with a multiple of their α."""
    solver = estimator_object(str(condition.estimator), tol)
    heads = None if condition.head is None else (condition.head,)
    others = [
        (layer, OtherInference(name, solver, None, heads, times=condition.alpha))
        if condition.layer in (None, number)
        else (layer, OtherInference(name))
        for number, (name, layer) in enumerate(attention_layers(model).items(), start=1)
    ]
    return attributes_set("other", others)


def _ablated(head: CapturedHead, *, how: str, mean: Tensor | None) -> Tensor:
    """Output of an ablated head."""
    if how == "zero":
        return torch.zeros_like(head.output)
    if how == "mean":
        if mean is None:
            raise ModelError("the mean outputs of heads are not known, so they cannot replace them")
        return mean[head.head - 1].to(head.output).expand_as(head.output)
    return head.without_evidence(uniform=how == "uniform")


@contextmanager
def _ablated_heads(model: nn.Module, condition: Condition, means: Mapping[int, Tensor]) -> Iterator[None]:
    with Capture(model, layers=list({name for _, name, _ in condition.replaced})) as heads:
        for layer, name, head in condition.replaced:
            replacement = partial(_ablated, how=str(condition.estimator), mean=means.get(layer))
            heads.replace(name, head, replacement)
        yield
