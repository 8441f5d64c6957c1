"""The arms of a swap: the model itself, the model with other estimators, and the controls."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fenchel.errors import InputError
from fenchel.swap.layer_switch import has_own_layers, switched_layers
from fenchel.swap.site import Site

__all__ = ["MODEL", "Arm", "Where", "head_control_alphas", "make_arms"]

Where = Literal["model", "layer", "head"]
"""What of the model is swapped: all of it, one layer, or one head."""

_HEAD_CONTROLS = 3


@dataclass(frozen=True)
class Arm:
    """One way in which the model's attention infers.

    Attributes:
        estimator: None for the model as it is.
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
        where = (
            "" if self.layer is None else f"/layer{self.layer}" + (f"/head{self.head}" if self.head else "")
        )
        return (f"{self.estimator}@{self.alpha:g}" if self.is_control else self.estimator) + where

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

    def installed(self, model: Any, tol: float | None) -> contextlib.AbstractContextManager[None]:
        """Has the model infer so until the block ends.

        Args:
            model: A transformers model, or one with attention layers of ``fenchel.nn``, whose own α is multiplied.
            tol: Tolerance of the exact estimator, None for its default.
        """
        if self.estimator is None:
            return contextlib.nullcontext()
        if has_own_layers(model):
            return switched_layers(
                model, self.estimator, times=self.alpha, layer=self.layer, head=self.head, tol=tol
            )
        from fenchel.integrations.transformers.switching import use_backend

        return use_backend(
            model,
            self.estimator,
            alpha=self.alpha,
            layers=None if self.name is None else [self.name],
            heads=None if self.head is None else [self.head],
            tol=tol,
        )


MODEL = Arm()
"""The model as it is."""


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


def make_arms(
    sites: Sequence[Site],
    *,
    estimators: Sequence[str],
    alphas: Sequence[float],
    per_layer: bool,
    per_head: bool,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
) -> list[Arm]:
    """Every arm of a swap: the model itself, the controls of the whole model, its estimators, layers, heads.

    A layer has all the controls that the whole model has, but for α = 1, which is the model itself; a head has three.

    Args:
        sites: The layers that attend.
        estimators: What is swapped in.
        alphas: The α of the controls.
        per_layer: Also swap one layer at a time.
        per_head: Also swap one head at a time.
        layers: Numbers of the layers to swap alone, None for all.
        heads: Numbers of the heads to swap alone, None for all.

    Returns:
        The arms.

    Raises:
        InputError: If a layer or a head does not exist, is chosen for nothing, or cannot be swapped alone.
    """
    for option, numbers, wanted in (("layers", layers, per_layer or per_head), ("heads", heads, per_head)):
        if numbers is not None and not wanted:
            flags = "--per-layer or --per-head" if option == "layers" else "--per-head"
            raise InputError(
                f"{option} {sorted(numbers)} were chosen, but none is swapped alone. Add {flags}."
            )
    chosen = [site for site in sites if layers is None or site.number in layers]
    missing = sorted(set(layers or ()) - {site.number for site in sites})
    if missing:
        listed = ", ".join(f"{site.number} {site.name}" for site in (sites[0], sites[-1]))
        raise InputError(
            f"layers {missing} do not exist: this model has {len(sites)} that attend ({listed})."
        )
    most = max((site.heads for site in chosen), default=0)
    missing = sorted(head for head in heads or () if head > most)
    if missing:
        raise InputError(f"heads {missing} do not exist: these layers have heads 1 to {most}.")

    if per_head:
        _refuse_together(sites, chosen)
    own = [(estimator, 1.0) for estimator in estimators]
    arms = [MODEL]
    arms += [Arm("first_order", alpha) for alpha in alphas] + [Arm(*way) for way in own]
    if per_layer:
        ways = [*own, *(("first_order", alpha) for alpha in alphas if alpha != 1)]
        arms += [Arm(*way, layer=site.number, name=site.name) for site in chosen for way in ways]
    if per_head:
        ways = [*own, *(("first_order", alpha) for alpha in head_control_alphas(alphas))]
        arms += [
            Arm(*way, layer=site.number, head=head, name=site.name)
            for site in chosen
            for head in range(1, site.heads + 1)
            if heads is None or head in heads
            for way in ways
        ]
    return arms


def _refuse_together(sites: Sequence[Site], chosen: Sequence[Site]) -> None:
    together = next((site for site in chosen if site.together), None)
    if together is None:
        return
    others = ",".join(str(site.number) for site in sites if not site.together)
    advice = f"Choose the other layers: --layers {others}" if others else "Use --per-layer"
    raise InputError(
        f"layer {together.number}, {together.name}, has heads that infer together, so none can "
        f"be swapped alone. {advice}."
    )
