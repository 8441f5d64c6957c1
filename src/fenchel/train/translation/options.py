"""What may be asked of the training of a translator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from fenchel.arguments import ESTIMATORS, Flag, Maybe, Number, OneOf, Text, Whole
from fenchel.closeness.named import closeness_name, closeness_named
from fenchel.errors import InputError, ProblemError
from fenchel.functional.close_arguments import check_kind
from fenchel.models.translation import ATTENTIONS, HEADS, PLACES, PREFERENCES, QUERIES, SCORES, STARTS
from fenchel.train.options import LoopOptions

__all__ = ["TranslationOptions"]

_OF_ATTENTION = {"score": None, "preference": None, "estimator": None, "closeness": None, "alpha": 1.0}
_OF_GAUSSIANS = {"place": None, "spread": None}


@dataclass(frozen=True, kw_only=True)
class TranslationOptions(LoopOptions):
    """Everything that decides the numbers of a training of a translator, besides the machine.

    Those of ``LoopOptions``, of which ``data`` is ``multi30k``, a path or ``hf:NAME``, as ``fenchel.data.load_pairs``
    takes it; and these:

    Attributes:
        model: ``translator``.
        direction: From which language into which, such as en-de or de-en.
        test: Name of the sentences to test on; None is test_2016_flickr, or the only ones there are.
        query: How a query comes about: paper (LSTMs over the words so far, which never see h), bahdanau (the state
            before the word) or luong (the state after it, with input feeding).
        score: dot, general or additive; None is general.
        preference: uniform, context, relative or gaussian; None is uniform.
        place: Where a gaussian preference has its middle: scaled (by the length ratio of the data) or predicted; None
            is scaled.
        spread: Standard deviation of a gaussian preference at the start, in pieces of words; None is 4.
        estimator: first_order, second_order or exact; None is first_order.
        closeness: What keeps the answer near the preference, such as tsallis:1.5; None is softmax.
        alpha: Reliability of the evidence, above 0.
        attention: inference; or none, where the head reads the encoder's last state in the place of h.
        head: How h and the decoder's state are put together: add or concat.
        start: What the decoder begins with: encoder (its last state) or zero.
        tied: Whether words are scored by their embeddings.
        width: Of embeddings and states.
        depth: LSTM layers on either side.
        bidirectional: Whether the source is read from both sides.
        dropout: Dropout rate.
        label_smoothing: Share of each label that is spread over all words.
        vocabulary: joint (one tokenizer for both languages) or separate.
        subwords: How many pieces of words a tokenizer knows at most.
        longest: Pieces of a sentence at most: pairs with a longer one are not trained on, and translations are cut.
        beam: Width of the beam of a second BLEU, of the test alone; 1 leaves it out.
        train_sentences: Train on the first so many pairs; None for all.

    Raises:
        InputError: If a value is out of range or unknown, or two exclude each other, naming them.

    Example:
        >>> TranslationOptions(data="multi30k").resolved().score
        'general'
    """

    RULES: ClassVar = MappingProxyType(
        {
            "model": OneOf(("translator",)),
            "direction": Text("two languages, such as en-de"),
            "test": Maybe(Text("a name, such as test_2016_flickr")),
            "query": OneOf(QUERIES),
            "score": Maybe(OneOf(SCORES)),
            "preference": Maybe(OneOf(PREFERENCES)),
            "place": Maybe(OneOf(PLACES)),
            "spread": Maybe(Number("4", above=0.0, in_float32=True)),
            "estimator": Maybe(OneOf(ESTIMATORS)),
            "closeness": Maybe(Text("the name of a closeness, such as tsallis:1.5")),
            "attention": OneOf(ATTENTIONS),
            "head": OneOf(HEADS),
            "start": OneOf(STARTS),
            "tied": Flag(),
            "bidirectional": Flag(),
            "label_smoothing": Number("0.1", least=0.0, below=1.0),
            "vocabulary": OneOf(("joint", "separate")),
            "subwords": Whole(8, 10**6, "5000"),
            "longest": Whole(1, 2**16, "100", "of pieces"),
            "beam": Whole(1, 1000, "5"),
        }
    )

    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 2e-3
    gradient_clip: float | None = 1.0
    model: str = "translator"
    direction: str = "en-de"
    test: str | None = None
    query: str = "paper"
    score: str | None = None
    preference: str | None = None
    place: str | None = None
    spread: float | None = None
    estimator: str | None = None
    closeness: str | None = None
    alpha: float = 1.0
    attention: str = "inference"
    head: str = "concat"
    start: str = "encoder"
    tied: bool = True
    width: int = 256
    depth: int = 2
    bidirectional: bool = True
    dropout: float = 0.3
    label_smoothing: float = 0.1
    vocabulary: str = "separate"
    subwords: int = 5000
    longest: int = 100
    beam: int = 5
    train_sentences: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "closeness", closeness_name(self.closeness))
        if self.attention == "none":
            self._leave_out(
                {**_OF_ATTENTION, **_OF_GAUSSIANS}, "with attention 'none', which looks at nothing"
            )
        if self.preference != "gaussian":
            self._leave_out(_OF_GAUSSIANS, "without the preference 'gaussian'")
        if self.score == "additive" and self.estimator not in (None, "first_order"):
            raise InputError(
                f"estimator is {self.estimator!r} with the score 'additive', which is all preference: the evidence is "
                "0, and all estimators agree. Leave the estimator out, or take the score 'dot' or 'general'."
            )
        if self.bidirectional and self.width % 2:
            raise InputError(f"width is {self.width}; two directions share it, so it must be even.")
        try:
            check_kind(closeness_named(self.closeness), self.estimator or "first_order")
        except ProblemError as error:
            raise InputError(str(error)) from None

    def _leave_out(self, values: Mapping[str, object], why: str) -> None:
        for name, value in values.items():
            if (given := getattr(self, name)) not in (value, None):
                raise InputError(f"{name} is {given!r} {why}. Leave it out.")

    @property
    def model_title(self) -> str:
        """The model with its query and estimator."""
        how = "no attention" if self.attention == "none" else f"{self.query}, {self.estimator}"
        return f"translator ({how})"

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        resolved = super().resolved()
        if self.attention == "none":
            return resolved
        resolved = resolved.filled({"score": "general", "preference": "uniform", "estimator": "first_order"})
        gaussian = resolved.preference == "gaussian"
        return resolved.filled({"place": "scaled", "spread": 4.0} if gaussian else {})
