"""How good a classifier is: cross-entropy and accuracy, as sums over examples."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from torch import Tensor, nn

from fenchel.train.metric import Metric

__all__ = ["ACCURACY", "JUDGED", "LOSS", "judged_classes", "sums_of"]

LOSS = Metric("loss", "cross-entropy in nats", higher_is_better=False, least=0.0)
ACCURACY = Metric("accuracy", "share classified rightly", higher_is_better=True, least=0.0, most=1.0)
JUDGED: Final[Mapping[str, str]] = MappingProxyType({"loss": "cross-entropy", "score": "accuracy"})
"""What ``judged_classes`` gives, by the names that people have for it."""


def judged_classes(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """Cross-entropy of each example, and whether it was classified rightly, (b,) each.

    Args:
        logits: (b, classes).
        labels: Class of each example (b,).
    """
    return {
        "loss": nn.functional.cross_entropy(logits, labels, reduction="none"),
        "score": (logits.argmax(-1) == labels).to(logits.dtype),
    }


def sums_of(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """The sums of ``LOSS`` and ``ACCURACY`` over some examples.

    Args:
        logits: (b, classes).
        labels: Class of each example (b,).

    Example:
        >>> import torch
        >>> sums = sums_of(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))
        >>> round(sums["loss"].item(), 3), sums["accuracy"].item()
        (9.693, 1)
    """
    return {
        "loss": nn.functional.cross_entropy(logits, labels, reduction="sum"),
        "accuracy": (logits.argmax(-1) == labels).sum(),
    }
