"""Ops on tensors: attention as inference, in the layout of torch's own attention."""

from __future__ import annotations

from fenchel.functional import reference as reference
from fenchel.functional.attention import attention as attention
from fenchel.functional.attention import attention_weights as attention_weights
from fenchel.functional.attention import attention_with_certificate as attention_with_certificate
from fenchel.functional.attention import gap as gap
from fenchel.functional.attention import infer as infer
from fenchel.functional.hashing import Hashing as Hashing
from fenchel.functional.hashing import hash_buckets as hash_buckets
from fenchel.functional.hashing import hashing_attention as hashing_attention
from fenchel.functional.hashing import hashing_log_preference as hashing_log_preference
from fenchel.functional.inference import AttentionCertificate as AttentionCertificate
from fenchel.functional.inference import Inference as Inference
from fenchel.functional.mixture import Mixture as Mixture
from fenchel.functional.mixture import mixture_attention as mixture_attention
from fenchel.functional.mixture import mixture_attention_weights as mixture_attention_weights
from fenchel.functional.mixture import (
    mixture_attention_with_certificate as mixture_attention_with_certificate,
)
from fenchel.functional.relative import Relative as Relative
from fenchel.functional.relative import relative_attention as relative_attention
from fenchel.functional.relative import relative_attention_weights as relative_attention_weights
from fenchel.functional.relative import (
    relative_attention_with_certificate as relative_attention_with_certificate,
)
from fenchel.functional.relative import relative_gap as relative_gap
from fenchel.functional.transport import Transport as Transport
from fenchel.functional.transport import transport_attention as transport_attention

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
