"""Ops on tensors: attention as inference, in the layout of torch's own attention."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from fenchel.functional import reference
from fenchel.functional.attention import attention, attention_weights, attention_with_certificate, gap
from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.hashing import Hashing, hash_buckets, hashing_attention, hashing_log_preference
from fenchel.functional.inference import Inference, infer
from fenchel.functional.mixture import (
    Mixture,
    mixture_attention,
    mixture_attention_weights,
    mixture_attention_with_certificate,
)
from fenchel.functional.relative import (
    Relative,
    relative_attention,
    relative_attention_weights,
    relative_attention_with_certificate,
    relative_gap,
)
from fenchel.functional.transport import Transport, transport_attention

__all__ = [
    "AttentionCertificate",
    "Hashing",
    "Inference",
    "Mixture",
    "Relative",
    "Transport",
    "attention",
    "attention_weights",
    "attention_with_certificate",
    "gap",
    "hash_buckets",
    "hashing_attention",
    "hashing_log_preference",
    "infer",
    "mixture_attention",
    "mixture_attention_weights",
    "mixture_attention_with_certificate",
    "reference",
    "relative_attention",
    "relative_attention_weights",
    "relative_attention_with_certificate",
    "relative_gap",
    "transport_attention",
]


def __getattr__(name: str) -> Any:
    """Import ``fenchel.functional.flex`` when it is first used: it loads torch's compiler."""
    if name == "flex":
        return import_module("fenchel.functional.flex")
    raise AttributeError(f"module 'fenchel.functional' has no attribute {name!r}")
