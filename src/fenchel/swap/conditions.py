"""The arms of a swap: the model itself, other estimators and ablations put into it, and the controls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fenchel.errors import InputError, ModelError
from fenchel.functional.inference import estimator_object
from fenchel.integrations.capture import Capture, CapturedHead
from fenchel.integrations.sites import check_all_attend
from fenchel.integrations.transformers.backend import own_estimators
from fenchel.integrations.transformers.registry import attention_modules, calls_registry
from fenchel.nn.estimator_switch import inferring_otherwise
from fenchel.nn.inference import OtherInference, attention_layers
from fenchel.run_options import ABLATIONS, SwapOptions

Where = Literal["model", "layer", "head"]
"""What of the model is swapped: all of it, one layer, or one head."""

_HEAD_CONTROLS = 3


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


@dataclass(frozen=True)
class Arm:
    """One way in which the model's attention infers.

    Attributes:
        estimator: An estimator or one of ``ABLATIONS``; None for the model as it is.
        alpha: Reliability of the evidence.
        layer: Number of the only layer that is swapped, None for all.
        head: Number of the only head that is swapped, None for all.
        name: Qualified name of the swapped layer's attention module.
    """

    estimator: str | None = None
    alpha: float = 1.0
    layer: int | None = None
    head: int | None = None
    name: str | None = None

    @property
    def key(self) -> str:
        """A name that no other arm of the same swap has.

        Example:
            >>> Arm().key, Arm("exact").key, Arm("first_order", 0.8, layer=2, head=5).key
            ('model', 'exact', 'first_order@0.8/layer2/head5')
        """
        if self.estimator is None:
            return "model"
        layer = "" if self.layer is None else f"/layer{self.layer}"
        head = f"/head{self.head}" if self.head else ""
        return (f"{self.estimator}@{self.alpha:g}" if self.is_control else self.estimator) + layer + head

    @property
    def is_control(self) -> bool:
        """Whether it only makes attention softer or sharper: first order at some α."""
        return self.estimator == "first_order"

    @property
    def is_model_wide_control(self) -> bool:
        """Whether it is a control of the whole model."""
        return self.is_control and self.layer is None

    @property
    def is_model_wide_estimator(self) -> bool:
        """Whether it swaps another estimator into the whole model."""
        return self.estimator is not None and not self.is_control and self.layer is None

    @property
    def where(self) -> Where:
        """What of the model is swapped."""
        return "model" if self.layer is None else "layer" if self.head is None else "head"

    def installed(
        self, model: Any, tol: float | None, means: Mapping[int, Tensor] | None = None
    ) -> AbstractContextManager[None]:
        """Has the model infer so until the block ends.

        Args:
            model: A transformers model, or one with attention layers of ``fenchel.nn``, whose own α is multiplied.
            tol: Tolerance of the exact estimator, None for its default.
            means: By layer, the mean output of each head over the text, (H, d_v); for the ablation ``mean``.
        """
        if self.estimator is None:
            return nullcontext()
        if self.estimator in ABLATIONS and self.layer is not None:
            return _ablated_heads(model, self, None if means is None else means.get(self.layer))
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
    """The α of the controls of single heads, of which there are many: the lowest, one in the middle, the highest.

    Example:
        >>> head_control_alphas([0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3])
        [0.5, 0.8, 1.3]
    """
    # Below 1 first order is smoother, which is what exact inference does too, so that is where the middle one is.
    others = sorted(alpha for alpha in set(alphas) if alpha != 1)
    if len(others) <= _HEAD_CONTROLS:
        return others
    return [others[0], others[(len(others) - 1) // 2], others[-1]]


def estimators_of(asked: Sequence[str]) -> list[str]:
    """The estimators that are swapped in, of those that an option names."""
    return [name for name in asked if name != "none"]


def make_arms(sites: Sequence[Site], options: SwapOptions) -> list[Arm]:
    """Every arm of a swap: the model itself, the controls of the whole model, its estimators, layers, heads.

    A layer has all the controls that the whole model has, but for α = 1, which is the model itself; a head has three.

    Args:
        sites: The layers that attend.
        options: What was asked for.

    Returns:
        The arms.

    Raises:
        InputError: If a layer or a head does not exist, is chosen for nothing, or cannot be swapped alone.
    """
    layers, heads, ablations = options.layers, options.heads, options.ablations or ()
    per_layer, per_head, alphas = options.per_layer, options.per_head, options.alphas
    either = ("--per-layer or --per-head", per_layer or per_head)
    for option, asked, (flags, wanted) in (
        ("layers", layers, either),
        ("heads", heads, ("--per-head", per_head)),
        ("ablations", ablations or None, either),
    ):
        if asked is not None and not wanted:
            raise InputError(f"{option} {sorted(asked)} were chosen, but none is swapped alone. Add {flags}.")
    chosen = [site for site in sites if layers is None or site.number in layers]
    if missing := sorted(set(layers or ()) - {site.number for site in sites}):
        listed = ", ".join(f"{site.number} {site.name}" for site in (sites[0], sites[-1]))
        raise InputError(
            f"layers {missing} do not exist: this model has {len(sites)} that attend ({listed})."
        )
    most = max((site.heads for site in chosen), default=0)
    if missing := sorted(head for head in heads or () if head > most):
        raise InputError(f"heads {missing} do not exist: these layers have heads 1 to {most}.")
    together = next((site for site in chosen if site.together), None)
    if together is not None and (per_head or ablations):
        others = ",".join(str(site.number) for site in sites if not site.together)
        otherwise = "Leave the ablations out" if ablations else "Use --per-layer"
        raise InputError(
            f"layer {together.number}, {together.name}, has heads that infer together, so none can "
            f"be swapped alone. {f'Choose the other layers: --layers {others}' if others else otherwise}."
        )

    estimators = estimators_of(options.estimators)
    alone = [(name, 1.0) for name in (*estimators, *ablations)]
    arms = [Arm(), *(Arm("first_order", alpha) for alpha in alphas), *map(Arm, estimators)]
    if per_layer:
        ways = [*alone, *(("first_order", alpha) for alpha in alphas if alpha != 1)]
        arms += [Arm(*way, layer=site.number, name=site.name) for site in chosen for way in ways]
    if per_head:
        ways = [*alone, *(("first_order", alpha) for alpha in head_control_alphas(alphas))]
        arms += [
            Arm(*way, layer=site.number, head=head, name=site.name)
            for site in chosen
            for head in range(1, site.heads + 1)
            if heads is None or head in heads
            for way in ways
        ]
    return arms


def sites_of(model: Any) -> list[Site]:
    """The layers of a model that attend.

    Raises:
        ModelError: If there are none, some attention bypasses the attention registry or is none of ``fenchel.nn``, or a
            layer does not say how many heads it has.
    """
    if has_own_layers(model):
        _check_switchable(model)
    return [
        Site(number, name, _heads(module, name), getattr(module, "heads_infer_together", False))
        for number, (name, module) in enumerate(attending_modules(model).items(), start=1)
    ]


def attending_modules(model: Any) -> dict[str, nn.Module]:
    """The attention layers of ``fenchel.nn`` by name, in the order of the model; without any, those of transformers."""
    if has_own_layers(model):
        layers: dict[str, Any] = attention_layers(model)
        return {name or type(model).__name__: layer for name, layer in layers.items()}
    return {name: module for module, name in attention_modules(model).items()}


def _heads(module: Any, name: str) -> int:
    for holder in (module, getattr(module, "config", None)):
        for attribute in ("num_attention_heads", "num_heads", "n_heads", "n_head"):
            result = getattr(holder, attribute, None)
            if isinstance(result, int):
                return result
    raise ModelError(
        f"{name} ({type(module).__name__}) does not say how many heads it has, so none can be swapped alone"
    )


def has_own_layers(model: object) -> bool:
    """Whether a model's attention is switched in its layers, and not in the attention registry of transformers."""
    if not isinstance(model, nn.Module) or not attention_layers(model):
        return False
    pretrained = any(base.__name__ == "PreTrainedModel" for base in type(model).__mro__)
    return not pretrained or not calls_registry(model)


def as_first_order(model: Any) -> str | None:
    """Has every attention of a trained model infer by first order, of which a swap starts.

    Args:
        model: Changed.

    Returns:
        The estimators that it was trained with, where one is another.
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
    """See that all attention is in layers of ``fenchel.nn`` that infer by first order, of which a swap starts.

    Raises:
        ModelError: If it is not.
    """
    check_all_attend(model)
    for name, layer in attention_layers(model).items():
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


def _switched_layers(model: nn.Module, arm: Arm, tol: float | None) -> AbstractContextManager[None]:
    """Attention layers of ``fenchel.nn`` that infer as an arm says, with a multiple of their own α."""
    layers = attention_layers(model)
    solver = estimator_object(str(arm.estimator), tol)
    heads = None if arm.head is None else (arm.head,)
    others = {
        name: OtherInference(name, solver, None, heads, times=arm.alpha)
        if arm.layer in (None, number)
        else OtherInference(name)
        for number, name in enumerate(layers, start=1)
    }
    return inferring_otherwise(layers, others)


def _ablated(head: CapturedHead, *, how: str, mean: Tensor | None) -> Tensor:
    """What an ablation puts in place of a head's output."""
    if how == "zero":
        return torch.zeros_like(head.output)
    if how == "mean":
        if mean is None:
            raise ModelError("the mean outputs of heads are not known, so none can be put in their place")
        return mean[head.head - 1].to(head.output).expand_as(head.output)
    return head.without_evidence(uniform=how == "uniform")


@contextmanager
def _ablated_heads(model: nn.Module, arm: Arm, mean: Tensor | None) -> Iterator[None]:
    assert arm.name is not None  # noqa: S101 -- a layer is ablated
    with Capture(model, layers=[arm.name]) as heads:
        heads.replace(arm.name, arm.head, partial(_ablated, how=str(arm.estimator), mean=mean))
        yield
