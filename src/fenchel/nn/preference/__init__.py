"""Preferences u of attention, as modules that can be multiplied."""

from __future__ import annotations

from fenchel.nn.calls import AttentionInputs
from fenchel.nn.preference.abstract import AbstractPreference, Product, Tempered, Uniform
from fenchel.nn.preference.learned import Additive, Context, ContextNetwork, LearnedBias, Location, Recency
from fenchel.nn.preference.positions import (
    ALiBi,
    GridPosition,
    QuadraticGridPosition,
    QuadraticPosition,
    RelativePosition,
)
from fenchel.nn.preference.windows import (
    Causal,
    GaussianWindow,
    GridWindow,
    KeyPadding,
    ProportionalWindow,
    Window,
)

__all__ = [
    "ALiBi",
    "AbstractPreference",
    "Additive",
    "AttentionInputs",
    "Causal",
    "Context",
    "ContextNetwork",
    "GaussianWindow",
    "GridPosition",
    "GridWindow",
    "KeyPadding",
    "LearnedBias",
    "Location",
    "Product",
    "ProportionalWindow",
    "QuadraticGridPosition",
    "QuadraticPosition",
    "Recency",
    "RelativePosition",
    "Tempered",
    "Uniform",
    "Window",
]
