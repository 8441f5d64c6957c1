"""Small complete models: the vision transformers of the papers' tables, classifiers of sentences, a translator."""

from __future__ import annotations

from fenchel.models.abstract import AbstractVisionTransformer as AbstractVisionTransformer
from fenchel.models.captioner import Captioner as Captioner
from fenchel.models.classifier import Classifier as Classifier
from fenchel.models.cloze import Cloze as Cloze
from fenchel.models.inference import Inference as Inference
from fenchel.models.pairs import Pairs as Pairs
from fenchel.models.registry import MODELS as MODELS
from fenchel.models.registry import build as build
from fenchel.models.sentence_classifier import (
    AbstractSentenceClassifier as AbstractSentenceClassifier,
)
from fenchel.models.sentence_classifier import AttentionPooling as AttentionPooling
from fenchel.models.sentence_classifier import MeanPooling as MeanPooling
from fenchel.models.translation import Translator as Translator
from fenchel.models.transport_vit import OTViT as OTViT
from fenchel.models.vit import ViT as ViT

__all__ = [
    "MODELS",
    "AbstractSentenceClassifier",
    "AbstractVisionTransformer",
    "AttentionPooling",
    "Captioner",
    "Classifier",
    "Cloze",
    "Inference",
    "MeanPooling",
    "OTViT",
    "Pairs",
    "Translator",
    "ViT",
    "build",
]
