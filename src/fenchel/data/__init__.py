"""Labelled images: reading them, pairing them, augmenting them."""

from __future__ import annotations

from fenchel.data.image_dataset import ImageDataset
from fenchel.data.load import load
from fenchel.data.paired_batches import PairedBatches
from fenchel.data.standardise import Standardise

__all__ = ["ImageDataset", "PairedBatches", "Standardise", "load"]
