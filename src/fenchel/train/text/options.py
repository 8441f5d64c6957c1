"""What may be asked of the training of a classifier of sentences."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from fenchel.errors import InputError
from fenchel.train.options import LoopOptions

__all__ = ["TextOptions"]


@dataclass(frozen=True, kw_only=True)
class TextOptions(LoopOptions):
    """Everything that decides the numbers of a training on sentences, besides the machine.

    Those of ``LoopOptions``, of which ``data`` is ``trec`` or a path, as ``fenchel.data.load_sentences`` takes it; and
    these:

    Attributes:
        model: ``attention-pooling`` or ``mean-pooling``.
        estimator: ``first_order``, ``second_order`` or ``exact``; None is ``first_order``, and for mean pooling that
            nothing is estimated.
        preference: ``uniform`` or ``position``, a learned weight for each place in a sentence; None is ``uniform``.
            Mean pooling takes no ``position``.
        alpha: Reliability of the evidence, above 0; mean pooling takes no other than the default.
        heads: How many questions attention pooling asks.
        width: Of the embeddings.
        dropout: Dropout rate.
        train_sentences: Train on so many sentences, the same for every seed; None for all but those to validate on.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> TextOptions(data="trec", epochs=3).resolved().estimator
        'first_order'
    """

    RULES: ClassVar = MappingProxyType(
        {
            "model": "pooling_model",
            "estimator": "pooling_estimator",
            "preference": "pooling_preference",
            "heads": "head_count",
        }
    )

    batch_size: int = 64
    learning_rate: float = 3e-3
    model: str = "attention-pooling"
    estimator: str | None = None
    preference: str | None = None
    alpha: float = 1.0
    heads: int = 4
    width: int = 64
    dropout: float = 0.5
    train_sentences: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model == "mean-pooling":
            for name, taken in (("estimator", (None,)), ("preference", (None, "uniform")), ("alpha", (1.0,))):
                if (value := getattr(self, name)) not in taken:
                    raise InputError(
                        f"{name} is {value!r} for the model 'mean-pooling', which looks at nothing. Leave it out, or "
                        "use the model 'attention-pooling'."
                    )
        if self.width % self.heads:
            raise InputError(
                f"heads is {self.heads} and width is {self.width}; the number of heads must divide the width."
            )

    @property
    def model_title(self) -> str:
        """The model with its estimator."""
        return f"{self.model} ({self.estimator})" if self.estimator else self.model

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        estimator = "first_order" if self.model == "attention-pooling" else None
        return super().resolved().filled({"estimator": estimator, "preference": "uniform"})
