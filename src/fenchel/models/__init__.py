"""Small complete models: the vision transformers of the papers' tables."""

from __future__ import annotations

from fenchel.models.abstract import AbstractVisionTransformer as AbstractVisionTransformer
from fenchel.models.registry import MODELS as MODELS
from fenchel.models.registry import build as build
from fenchel.models.transport_vit import OTViT as OTViT
from fenchel.models.vit import ViT as ViT

__all__ = ["MODELS", "AbstractVisionTransformer", "OTViT", "ViT", "build"]
