"""Modules that learn what builds an inference problem: its preference, its evidence, and the layer that solves it."""

from __future__ import annotations

from fenchel.nn import evidence as evidence
from fenchel.nn import preference as preference

__all__ = ["evidence", "preference"]
