"""Modules that learn what builds an inference problem: its preference, its evidence, and the layer that solves it."""

from __future__ import annotations

from fenchel.nn import evidence as evidence
from fenchel.nn import preference as preference
from fenchel.nn.attention import MultiheadAttention as MultiheadAttention
from fenchel.nn.template_norm import norm_penalty as norm_penalty

__all__ = ["MultiheadAttention", "evidence", "norm_penalty", "preference"]
