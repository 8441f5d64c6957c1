"""Attention layers as inference, with modules for their preference and evidence."""

from __future__ import annotations

from fenchel.nn import evidence, preference
from fenchel.nn.attention import MultiheadAttention
from fenchel.nn.calls import KeyValueCache
from fenchel.nn.continuous import ContinuousAttention
from fenchel.nn.estimator_switch import use_estimator
from fenchel.nn.mixture import MixtureAttention
from fenchel.nn.preference.positions import sinusoids
from fenchel.nn.templates import LearnedTemplateBank, RunningTemplateBank, norm_penalty
from fenchel.nn.transport import TransportAttention

__all__ = [
    "ContinuousAttention",
    "KeyValueCache",
    "LearnedTemplateBank",
    "MixtureAttention",
    "MultiheadAttention",
    "RunningTemplateBank",
    "TransportAttention",
    "evidence",
    "norm_penalty",
    "preference",
    "sinusoids",
    "use_estimator",
]
