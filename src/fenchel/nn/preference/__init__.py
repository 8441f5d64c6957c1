"""Preferences: what is likely before any query meets a key, as modules that multiply."""

from __future__ import annotations

from fenchel.nn.preference.abstract import AbstractPreference as AbstractPreference
from fenchel.nn.preference.additive import Additive as Additive
from fenchel.nn.preference.alibi import ALiBi as ALiBi
from fenchel.nn.preference.causal import Causal as Causal
from fenchel.nn.preference.context import Context as Context
from fenchel.nn.preference.context_network import ContextNetwork as ContextNetwork
from fenchel.nn.preference.gaussian_window import GaussianWindow as GaussianWindow
from fenchel.nn.preference.grid_position import GridPosition as GridPosition
from fenchel.nn.preference.grid_window import GridWindow as GridWindow
from fenchel.nn.preference.inputs import AttentionInputs as AttentionInputs
from fenchel.nn.preference.key_padding import KeyPadding as KeyPadding
from fenchel.nn.preference.learned_bias import LearnedBias as LearnedBias
from fenchel.nn.preference.location import Location as Location
from fenchel.nn.preference.product import Product as Product
from fenchel.nn.preference.proportional_window import ProportionalWindow as ProportionalWindow
from fenchel.nn.preference.quadratic_grid_position import QuadraticGridPosition as QuadraticGridPosition
from fenchel.nn.preference.quadratic_position import QuadraticPosition as QuadraticPosition
from fenchel.nn.preference.recency import Recency as Recency
from fenchel.nn.preference.relative_position import RelativePosition as RelativePosition
from fenchel.nn.preference.tempered import Tempered as Tempered
from fenchel.nn.preference.uniform import Uniform as Uniform
from fenchel.nn.preference.window import Window as Window

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
