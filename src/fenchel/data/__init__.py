"""Images and texts: reading them, and giving them to a model in batches."""

from __future__ import annotations

from fenchel.data.image_dataset import ImageDataset
from fenchel.data.load import load
from fenchel.data.paired_batches import PairedBatches
from fenchel.data.standardise import Standardise

__all__ = ["ImageDataset", "PairedBatches", "Standardise", "load"]
