"""What may be asked of the training of a classifier that begins with a model that fills in blanks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from fenchel.arguments import OneOf
from fenchel.errors import InputError
from fenchel.train.options import LoopOptions

__all__ = ["FineTuningOptions"]


@dataclass(frozen=True, kw_only=True)
class FineTuningOptions(LoopOptions):
    """Everything that decides the numbers of a fine-tuning on sentences, besides the machine.

    Those of ``LoopOptions``, of which ``data`` is ``trec``, ``sst2``, ``sst5``, a path or ``hf:NAME``, as
    ``fenchel.data.load_labelled_sentences`` takes it; and these:

    Attributes:
        model: ``cloze-classifier``.
        pretrained: Folder of the training of a ``cloze``; its model is fine-tuned.
        weights: ``pretrained``, those of that training; or ``fresh``, the same model with weights drawn anew.
        words: ``run``, those that its tokenizer knows; or ``extended``, and those of the sentences to train on, whose
            embeddings are drawn anew.
        dropout: Dropout rate.
        train_sentences: Train on so many sentences, the same for every seed; None for all but those to validate on.

    Raises:
        InputError: If a value is out of range or unknown, or no training was named.

    Example:
        >>> FineTuningOptions(data="trec", pretrained="runs/cloze").model
        'cloze-classifier'
    """

    RULES: ClassVar = MappingProxyType(
        {
            "model": OneOf(("cloze-classifier",)),
            "pretrained": "model_name",
            "weights": OneOf(("pretrained", "fresh")),
            "words": OneOf(("run", "extended")),
        }
    )

    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 5e-4
    model: str = "cloze-classifier"
    pretrained: str = ""
    weights: str = "pretrained"
    words: str = "extended"
    dropout: float = 0.2
    train_sentences: int | None = None

    def __post_init__(self) -> None:
        if not self.pretrained:
            raise InputError(
                "pretrained is empty; expected the folder of a training, such as one that fenchel train --model cloze "
                "made (--set pretrained=RUN). With --set weights=fresh the same model begins with none of its weights."
            )
        super().__post_init__()
        if isinstance(self.pretrained, Path):
            object.__setattr__(self, "pretrained", str(self.pretrained))

    @property
    def model_title(self) -> str:
        """The model, and what it begins with."""
        return f"{self.model} ({self.weights} weights)"
