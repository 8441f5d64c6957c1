"""What may be asked of the training of a classifier of sentences, or of pairs of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from fenchel.arguments import ARGUMENTS, Flag, Maybe, Number, OneOf, Text, Whole
from fenchel.closeness.named import closeness_name, closeness_named
from fenchel.errors import InputError, ProblemError
from fenchel.functional.close_arguments import check_kind
from fenchel.models import classifier, pairs
from fenchel.models.word_states import ENCODERS
from fenchel.train.options import LoopOptions

__all__ = ["ClassifierOptions", "PairsOptions", "ReadingOptions"]

DEMO_EMBEDDING = "demo"
LEARNED = "learned"
_SHARE = ARGUMENTS["dropout"]
_OF_ATTENTION = ("estimator", "preference", "score", "closeness", "alpha")


@dataclass(frozen=True, kw_only=True)
class ReadingOptions(LoopOptions):
    """What both have in common.

    Attributes:
        estimator: ``first_order``, ``second_order`` or ``exact``; None is ``first_order``.
        preference: What is believed before looking; None is ``uniform``.
        score: How a query meets a key: ``dot``, ``general`` or ``additive``; None is ``dot``.
        closeness: What keeps the answer near the preference, such as ``tsallis:1.5``; None is softmax.
        alpha: Reliability of the evidence, above 0.
        heads: How many questions are asked, or matrices of scores there are.
        width: Of embeddings and states.
        depth: Layers of the encoders conv and lstm.
        dropout: Dropout rate.
        label_smoothing: Share of the label that is spread over all classes.
        train_sentences: Train on so many examples, the same for every seed; None for all.
        embed: learned, embeddings trained with the model; or demo, frozen token states of the bundled encoder.
        encoder: What makes states of words: words (embeddings alone), bigrams, conv or lstm; none is the model's
            choice: lstm for a classifier that learns its embeddings, else words.
        pooling: attention; or a control: mean, no attention; or bag, a bag of words.
        word_dropout: How often a word is made unknown, in training.
        vocabulary: How many words are known at most.
        least: How often a word has to be there in training to be known.
        buckets: How many embeddings the pairs of bigrams share.
        longest: Sentences to train on are cut after so many tokens; longer ones are refused in use.

    Raises:
        InputError: If a value is out of range or unknown, naming it.
    """

    RULES: ClassVar = MappingProxyType(
        {
            "estimator": "pooling_estimator",
            "score": Maybe(OneOf(classifier.SCORES)),
            "closeness": Maybe(Text("the name of a closeness, such as tsallis:1.5")),
            "heads": "head_count",
            "embed": OneOf((LEARNED, DEMO_EMBEDDING)),
            "encoder": Maybe(OneOf(ENCODERS)),
            "pooling": OneOf(classifier.POOLINGS),
            "word_dropout": _SHARE,
            "vocabulary": Whole(3, 2**24, "20000"),
            "least": Whole(1, 10**6, "2"),
            "buckets": "size",
            "longest": Whole(1, 510, "128"),
        }
    )

    estimator: str | None = None
    preference: str | None = None
    score: str | None = None
    closeness: str | None = None
    alpha: float = 1.0
    heads: int = 4
    width: int = 128
    depth: int = 1
    dropout: float = 0.5
    label_smoothing: float = 0.0
    train_sentences: int | None = None
    embed: str = LEARNED
    encoder: str | None = None
    pooling: str = "attention"
    word_dropout: float = 0.0
    vocabulary: int = 20000
    least: int = 2
    buckets: int = 2**15
    longest: int = 128

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.label_smoothing is None:
            raise InputError("label smoothing is None; expected a share, 0 for none.")
        object.__setattr__(self, "closeness", closeness_name(self.closeness))
        self._check_control()
        if self.score == "additive" and self.estimator not in (None, "first_order"):
            raise InputError(
                f"estimator is {self.estimator!r} with an additive score, which is all preference: the evidence is 0, "
                "so that every estimator gives the preference. Leave the estimator out."
            )
        try:
            check_kind(closeness_named(self.closeness), self.estimator or "first_order")
        except ProblemError as error:
            raise InputError(f"{error}.") from None
        if self.width % self.heads:
            raise InputError(
                f"heads is {self.heads} and width is {self.width}; the number of heads must divide the width."
            )
        if self.encoder == "lstm" and self.width % 2:
            raise InputError(
                f"width is {self.width} for the encoder 'lstm', whose two directions have half of it each; expected an "
                "even one."
            )
        if self.encoder == "bigrams" and self.embed != LEARNED:
            raise InputError(
                f"encoder is 'bigrams' with embed {self.embed!r}; pairs of words need embeddings that are learned. "
                "Choose another encoder."
            )

    def _check_control(self) -> None:
        if self.pooling == "attention":
            return
        for name in _OF_ATTENTION:
            default = 1.0 if name == "alpha" else None
            value = getattr(self, name)
            if value not in (default, "uniform" if name == "preference" else default):
                raise InputError(
                    f"{name} is {value!r} with pooling {self.pooling!r}, which looks at nothing. Leave it out, or use "
                    "pooling 'attention'."
                )
        if self.pooling == "bag" and self.encoder not in (None, "words"):
            raise InputError(
                f"encoder is {self.encoder!r} with pooling 'bag'; a bag of words has the encoder 'words'."
            )

    @property
    def model_title(self) -> str:
        """The model with its estimator, or what it has in place of attention."""
        name: str = getattr(self, "model")  # noqa: B009 - what derives from this has it
        return f"{name} ({self.pooling if self.pooling != 'attention' else self.estimator})"

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of the model that are options of the same name."""
        names = (
            "width",
            "heads",
            "encoder",
            "depth",
            "pooling",
            "dropout",
            "word_dropout",
            "buckets",
            "alpha",
        )
        return {
            **{name: getattr(self, name) for name in names},
            "encoder": self.encoder or self.own_encoder,
            "estimator": self.estimator or "first_order",
            "preference": self.preference or "uniform",
            "score": self.score or "dot",
            "closeness": self.closeness,
        }

    @property
    def own_encoder(self) -> str:
        """The encoder where none is asked for."""
        return "words"

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        found = super().resolved().filled({"encoder": self.own_encoder})
        if self.pooling != "attention":
            return found
        return found.filled({"estimator": "first_order", "preference": "uniform", "score": "dot"})


@dataclass(frozen=True, kw_only=True)
class ClassifierOptions(ReadingOptions):
    """Everything that decides the numbers of a classifier of sentences, besides the machine.

    Attributes:
        model: ``classifier``.
        data: ``trec``, ``sst2``, ``sst5``, a path or ``hf:NAME``, as ``fenchel.data.load_labelled_sentences`` takes
            it.
        preference: ``uniform``, ``position``, ``context`` or ``gaussian``; None is ``uniform``.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> ClassifierOptions(data="trec", epochs=3).resolved().estimator
        'first_order'
    """

    RULES: ClassVar = MappingProxyType(
        {
            **ReadingOptions.RULES,
            "model": OneOf(("classifier",)),
            "preference": Maybe(OneOf(tuple(name for name in classifier.PREFERENCES if name != "recency"))),
        }
    )

    epochs: int = 12
    batch_size: int = 64
    learning_rate: float = 2e-3
    model: str = "classifier"
    dropout: float = 0.3

    @property
    def own_encoder(self) -> str:
        """An LSTM, but for a bag of words and for states that know of each other already."""
        return "lstm" if self.embed == LEARNED and self.pooling != "bag" else "words"


@dataclass(frozen=True, kw_only=True)
class PairsOptions(ReadingOptions):
    """Everything that decides the numbers of a classifier of pairs of sentences, besides the machine.

    Attributes:
        model: ``pairs``.
        data: ``sick``, ``cad-nli``, ``cad-nli:PART``, a path or ``hf:NAME``, as ``fenchel.data.load_labelled_pairs``
            takes it.
        preference: ``uniform``, ``context``, ``gaussian`` or ``relative``; None is ``uniform``.
        comparison: What a word is compared by: concatenated (it and what it found), or differences (their difference
            and product too).
        summary: Whether the heads read difference and product of the sentences' means too; none is yes for embed demo
            alone. A bag reads nothing else.
        relatedness: Share of the loss that is of relatedness, where the data say it; 0 for labels alone.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> PairsOptions(data="sick", pooling="mean").resolved().model_title
        'pairs (mean)'
    """

    RULES: ClassVar = MappingProxyType(
        {
            **ReadingOptions.RULES,
            "model": OneOf(("pairs",)),
            "preference": Maybe(OneOf(pairs.PREFERENCES)),
            "comparison": OneOf(pairs.COMPARISONS),
            "summary": Maybe(Flag()),
            "relatedness": Number("0.5", least=0.0, below=1.0),
        }
    )

    epochs: int = 8
    batch_size: int = 32
    learning_rate: float = 1e-3
    weight_decay: float | None = 0.1
    model: str = "pairs"
    heads: int = 1
    dropout: float = 0.3
    comparison: str = "differences"
    summary: bool | None = None
    relatedness: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pooling == "bag" and self.summary is False:
            raise InputError("summary is False with pooling 'bag', which reads nothing else. Leave it out.")

    @property
    def model_arguments(self) -> dict[str, Any]:
        """Arguments of the model that are options of the same name."""
        summary = self._reads_summary if self.summary is None else self.summary
        return {**super().model_arguments, "comparison": self.comparison, "summary": summary}

    @property
    def _reads_summary(self) -> bool:
        return self.embed != LEARNED or self.pooling == "bag"

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        return super().resolved().filled({"summary": self._reads_summary})
