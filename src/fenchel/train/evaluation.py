"""Test loss and accuracy."""

from __future__ import annotations

import torch
from torch import nn

from fenchel.data.image_dataset import ImageDataset
from fenchel.data.standardise import Standardise
from fenchel.train.precision import autocast
from fenchel.train.workers import Workers

__all__ = ["Evaluation"]

_BATCH = 500


class Evaluation:
    """Tests a model on every image once, its templates being its own.

    Args:
        data: What is tested on.
        workers: The processes; each takes its share.
        precision: ``float32`` or ``bfloat16``.
    """

    def __init__(self, data: ImageDataset, workers: Workers, precision: str) -> None:
        mine = slice(workers.rank, None, workers.count)
        self._images, self._labels = data.images[mine], data.labels[mine].to(workers.device)
        self._standardise = Standardise(data.mean, data.std)
        self._workers, self._precision, self._count = workers, precision, len(data)

    def __call__(self, model: nn.Module) -> tuple[float, float]:
        """Mean cross-entropy in nats, and the share of images that are classified rightly."""
        device = self._workers.device
        sums = torch.zeros(2, dtype=torch.float64, device=device)
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            for images, labels in zip(self._images.split(_BATCH), self._labels.split(_BATCH), strict=True):
                pixels = self._standardise(images.to(device))
                with autocast(self._precision, device):
                    logits = model(pixels).float()
                sums[0] += nn.functional.cross_entropy(logits, labels, reduction="sum")
                sums[1] += (logits.argmax(-1) == labels).sum()
        model.train(was_training)
        loss, correct = (self._workers.sum(sums) / self._count).tolist()
        return loss, correct
