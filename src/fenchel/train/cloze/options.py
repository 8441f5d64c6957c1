"""What may be asked of the training of a model that fills in blanks."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from fenchel.arguments import ARGUMENTS, Flag, Maybe, Number, OneOf, Whole
from fenchel.closeness.named import closeness_name
from fenchel.data.corruption import Shares
from fenchel.errors import InputError
from fenchel.train.options import LoopOptions

__all__ = ["OBJECTIVES", "ClozeOptions"]

OBJECTIVES = ("mlm", "mlm+nsp", "causal", "tlm")
"""What can be trained for."""

_PREFERENCES = OneOf(("uniform", "relative"))
_SHARES = "80/10/10"


@dataclass(frozen=True, kw_only=True)
class ClozeOptions(LoopOptions):
    """Everything that decides the numbers of a training on blanks, besides the machine.

    Those of ``LoopOptions``, of which ``data`` is ``wikitext2``, ``multi30k``, ``hf:NAME`` or a path; and these:

    Attributes:
        model: ``cloze``.
        objective: What is trained for: ``mlm``, words that are hidden; ``mlm+nsp``, and whether the second half follows
            the first; ``causal``, the next word; ``tlm``, words that are hidden in a sentence and its translation.
        rate: How probable it is that a word is chosen.
        shares: What becomes of words that are chosen, in per cent: hidden, left as they are, exchanged (MASK/SAME/RND).
        test_shares: The same where it is validated and tested; the baselines need all of them hidden.
        longest: How many words a passage, or a sentence of a pair, has at most; what is longer is cut.
        vocabulary: How many words, or pieces of them, are known at most, from the text to train on.
        tokens: ``word``, what stands between spaces; or ``bpe``, pieces of words.
        lower: Whether capitals are made small.
        estimator: ``first_order``, ``second_order`` or ``exact``, wherever the model attends; None is ``first_order``.
        preference: Of the last layer, ``uniform`` or ``relative``; None is ``relative``.
        layer_preference: What is believed in the layers before the last, ``uniform`` or ``relative``, by distance in
            the row.
        masked: What the preference gives no weight: ``padding`` alone, or the ``places`` of hidden words too.
        last: The last layer: ``paper``, whose templates are the values too; or ``standard``, as the others are.
        score: ``dot``; or ``additive``, which is all preference.
        closeness: By name, such as ``tsallis:1.5``; None is Kullback and Leibler's.
        alpha: Reliability of the evidence, above 0.
        width: Of the embeddings.
        depth: Layers that attend, the last among them.
        heads: Of every layer.
        mlp_width: Hidden size of feed-forward networks; none is four times the width.
        dropout: Dropout rate.
        train_sentences: Train on so many passages or pairs, the first ones; None for all.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> ClozeOptions(data="wikitext2", objective="mlm+nsp").resolved().preference
        'relative'
    """

    RULES: ClassVar = MappingProxyType(
        {
            "model": OneOf(("cloze",)),
            "objective": OneOf(OBJECTIVES),
            "rate": Number("0.15", above=0.0, below=1.0),
            "shares": ARGUMENTS["name"],
            "test_shares": ARGUMENTS["name"],
            "longest": Whole(2, 4096, "64"),
            "vocabulary": Whole(8, 10**6, "8000"),
            "tokens": OneOf(("word", "bpe")),
            "lower": Flag(),
            "estimator": "pooling_estimator",
            "preference": Maybe(_PREFERENCES),
            "layer_preference": _PREFERENCES,
            "masked": OneOf(("padding", "places")),
            "last": OneOf(("paper", "standard")),
            "score": OneOf(("dot", "additive")),
            "closeness": Maybe(ARGUMENTS["name"]),
            "heads": "head_count",
            "mlp_width": Maybe(ARGUMENTS["mlp_width"]),
        }
    )

    epochs: int = 12
    batch_size: int = 32
    learning_rate: float = 1.5e-3
    model: str = "cloze"
    objective: str = "mlm"
    rate: float = 0.15
    shares: str = _SHARES
    test_shares: str = "100/0/0"
    longest: int = 64
    vocabulary: int = 8000
    tokens: str = "word"
    lower: bool = True
    estimator: str | None = None
    preference: str | None = None
    layer_preference: str = "relative"
    masked: str = "padding"
    last: str = "paper"
    score: str = "dot"
    closeness: str | None = None
    alpha: float = 1.0
    width: int = 128
    depth: int = 3
    heads: int = 4
    mlp_width: int | None = None
    dropout: float = 0.1
    train_sentences: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("shares", "test_shares"):
            Shares.of(getattr(self, name))
        object.__setattr__(self, "closeness", closeness_name(self.closeness))
        if self.width % self.heads:
            raise InputError(
                f"heads is {self.heads} and width is {self.width}; the number of heads must divide the width."
            )
        if self.score == "additive" and self.estimator not in (None, "first_order"):
            raise InputError(
                f"estimator is {self.estimator!r} and score is 'additive', which is all preference: there is no "
                "evidence to estimate from, and all estimators agree. Leave the estimator out."
            )
        if self.objective == "causal" and self.masked == "places":
            raise InputError(
                "masked is 'places' for the objective 'causal', which hides no words. Leave it out, or use another "
                "objective."
            )
        if self.objective == "causal" and self.shares != _SHARES:
            raise InputError(
                f"shares is {self.shares!r} for the objective 'causal', which hides no words. Leave it out, or use "
                "another objective."
            )

    @property
    def model_title(self) -> str:
        """The model with what it is trained for and its estimator."""
        return f"{self.model}, {self.objective} ({self.resolved().estimator})"

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        values: dict[str, Any] = {
            "weight_decay": 0.05,
            "warmup_fraction": 0.1,
            "gradient_clip": 1.0,
            "estimator": "first_order",
            "preference": "relative",
            "mlp_width": 4 * self.width,
        }
        return self.filled(values)
