"""Preferences: what is likely before any query meets a key, as modules that multiply."""

from __future__ import annotations

from fenchel.nn.preference.abstract import AbstractPreference as AbstractPreference
from fenchel.nn.preference.abstract import Product as Product
from fenchel.nn.preference.abstract import Tempered as Tempered
from fenchel.nn.preference.abstract import Uniform as Uniform
from fenchel.nn.preference.inputs import AttentionInputs as AttentionInputs
from fenchel.nn.preference.learned import Additive as Additive
from fenchel.nn.preference.learned import Context as Context
from fenchel.nn.preference.learned import ContextNetwork as ContextNetwork
from fenchel.nn.preference.learned import LearnedBias as LearnedBias
from fenchel.nn.preference.learned import Location as Location
from fenchel.nn.preference.learned import Recency as Recency
from fenchel.nn.preference.positions import ALiBi as ALiBi
from fenchel.nn.preference.positions import GridPosition as GridPosition
from fenchel.nn.preference.positions import QuadraticGridPosition as QuadraticGridPosition
from fenchel.nn.preference.positions import QuadraticPosition as QuadraticPosition
from fenchel.nn.preference.positions import RelativePosition as RelativePosition
from fenchel.nn.preference.windows import Causal as Causal
from fenchel.nn.preference.windows import GaussianWindow as GaussianWindow
from fenchel.nn.preference.windows import GridWindow as GridWindow
from fenchel.nn.preference.windows import KeyPadding as KeyPadding
from fenchel.nn.preference.windows import ProportionalWindow as ProportionalWindow
from fenchel.nn.preference.windows import Window as Window

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
