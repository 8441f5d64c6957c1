"""Modules that learn what builds an inference problem: its preference, its evidence, and the layer that solves it."""

from __future__ import annotations

from fenchel.nn import evidence as evidence
from fenchel.nn import preference as preference
from fenchel.nn.attention import MultiheadAttention as MultiheadAttention
from fenchel.nn.continuous import ContinuousAttention as ContinuousAttention
from fenchel.nn.estimator_switch import use_estimator as use_estimator
from fenchel.nn.mixture import MixtureAttention as MixtureAttention
from fenchel.nn.preference.positions import sinusoids as sinusoids
from fenchel.nn.templates import LearnedTemplateBank as LearnedTemplateBank
from fenchel.nn.templates import RunningTemplateBank as RunningTemplateBank
from fenchel.nn.templates import norm_penalty as norm_penalty
from fenchel.nn.transport import TransportAttention as TransportAttention

__all__ = [
    "ContinuousAttention",
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
