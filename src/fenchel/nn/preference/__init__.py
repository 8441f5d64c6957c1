"""Preferences: what is likely before any query meets a key, as modules that multiply."""

from __future__ import annotations

from fenchel.nn.preference.abstract import AbstractPreference as AbstractPreference
from fenchel.nn.preference.causal import Causal as Causal
from fenchel.nn.preference.inputs import AttentionInputs as AttentionInputs
from fenchel.nn.preference.key_padding import KeyPadding as KeyPadding
from fenchel.nn.preference.product import Product as Product
from fenchel.nn.preference.tempered import Tempered as Tempered
from fenchel.nn.preference.uniform import Uniform as Uniform

__all__ = ["AbstractPreference", "AttentionInputs", "Causal", "KeyPadding", "Product", "Tempered", "Uniform"]
