"""What may be asked of the training of a captioner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Self

from fenchel.arguments import Flag, Maybe, Number, OneOf, Text, Whole
from fenchel.closeness.named import closeness_name
from fenchel.errors import InputError
from fenchel.models.captioner import ATTENTIONS, GRADIENTS, PREFERENCES
from fenchel.train.options import LoopOptions

__all__ = ["CaptionOptions"]

_WITHOUT = {
    "coverage": "whose weights are not those of a mean",
    "closeness": "which needs a chance for every cell, or takes all alike",
    "estimator": "which estimates nothing",
    "preference": "which takes all cells alike",
    "alpha": "which has no evidence",
    "gradient": "whose gradient is exact",
    "entropy": "which learns from no draws",
    "baseline_decay": "which learns from no draws",
}
"""Why an attention does not take an option."""

_WEIGHT = Maybe(Number("1", least=0.0, in_float32=True))


@dataclass(frozen=True, kw_only=True)
class CaptionOptions(LoopOptions):
    """Everything that decides the numbers of a training on captions, besides the machine.

    Those of ``LoopOptions``, of which ``data`` is ``coco-mini``, a path or ``hf:NAME``, as
    ``fenchel.data.load_captions`` takes it; and these:

    Attributes:
        model: ``captioner``.
        attention: ``soft``, the mean of all cells; ``hard``, one cell; or ``mean``, which does not look.
        gradient: How hard attention learns where to look, ``reinforce`` or ``straight_through``; None is the former.
        preference: ``uniform`` or ``context``, a weight for each cell that the image alone decides.
        estimator: ``first_order``, ``second_order`` or ``exact``; None is ``first_order``, and for ``mean`` that
            nothing is estimated.
        alpha: Reliability of the evidence, above 0.
        closeness: What keeps the answer near the preference, such as ``tsallis:1.5``; None is softmax's. Soft
            attention alone takes another.
        gate: Whether a word decides how much of the image enters.
        coverage: Weight of the doubly stochastic penalty of soft attention, which asks every cell for a weight of 1
            over all words; None is 1.
        entropy: Weight of the entropy that REINFORCE's draws are rewarded with; None is 0.01.
        baseline_decay: How slowly the reward that REINFORCE expects changes, from 0 to below 1.
        train_images: Train on so many of the images that are not held out, the same for every seed; None for all.
        held_out: Share of images to validate on, and to test on; of 0, those of the training are validated and tested
            on too, so that memory is measured.
        image_size: Side of the square that images are stretched to.
        depth: Convolutions, each of which halves the image; its cells are what is left.
        width: Of cells, words and states.
        dropout: Dropout rate.
        words: How many pieces of words are known at most.
        longest: Words of a caption at most, in training and in use; longer ones are cut, and counted.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> options = CaptionOptions(data="coco-mini", attention="hard").resolved()
        >>> options.gradient, options.entropy, options.coverage
        ('reinforce', 0.01, 0.0)
    """

    RULES: ClassVar = MappingProxyType(
        {
            "model": OneOf(("captioner",)),
            "attention": OneOf(ATTENTIONS),
            "gradient": Maybe(OneOf(GRADIENTS)),
            "preference": OneOf(PREFERENCES),
            "estimator": "pooling_estimator",
            "closeness": Maybe(Text("the name of a closeness, such as tsallis:1.5")),
            "gate": Flag(),
            "coverage": _WEIGHT,
            "entropy": _WEIGHT,
            "baseline_decay": "momentum",
            "held_out": Number("0.1", least=0.0, below=0.5),
            "image_size": Whole(2, 1024, "64"),
            "words": Whole(8, 2**20, "1000"),
            "longest": Whole(1, 1000, "40"),
        }
    )

    epochs: int = 40
    batch_size: int = 32
    learning_rate: float = 2e-3
    model: str = "captioner"
    attention: str = "soft"
    gradient: str | None = None
    preference: str = "uniform"
    estimator: str | None = None
    alpha: float = 1.0
    closeness: str | None = None
    gate: bool = True
    coverage: float | None = None
    entropy: float | None = None
    baseline_decay: float = 0.9
    train_images: int | None = None
    held_out: float = 0.1
    image_size: int = 64
    depth: int = 3
    width: int = 128
    dropout: float = 0.3
    words: int = 1000
    longest: int = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "closeness", closeness_name(self.closeness))
        if self.attention != "soft":
            self._refuse(self.attention, {"coverage": (None, 0.0), "closeness": (None,)})
        if self.attention == "mean":
            self._refuse("mean", {"estimator": (None,), "preference": ("uniform",), "alpha": (1.0,)})
        if self.attention != "hard":
            self._refuse(self.attention, {"gradient": (None,)})
        if not self.draws:
            named = "straight_through" if self.attention == "hard" else self.attention
            self._refuse(named, {"entropy": (None, 0.0), "baseline_decay": (0.9,)})
        if self.image_size % 2**self.depth:
            raise InputError(
                f"image size is {self.image_size} and depth is {self.depth}; the size must be divisible by "
                f"{2**self.depth}, since every convolution halves it."
            )

    def _refuse(self, named: str, taken: Mapping[str, tuple[Any, ...]]) -> None:
        """Refuses options of another attention than the one that is trained."""
        for name, values in taken.items():
            if (value := getattr(self, name)) not in values:
                raise InputError(
                    f"{name.replace('_', ' ')} is {value!r} for attention that is {named!r}, {_WITHOUT[name]}. Leave "
                    "it out, or choose another attention (--set attention=, gradient=)."
                )

    @property
    def draws(self) -> bool:
        """Whether cells are drawn and learned about by REINFORCE."""
        return self.attention == "hard" and self.gradient != "straight_through"

    @property
    def model_title(self) -> str:
        """The model with its attention."""
        estimator = f", {self.estimator}" if self.estimator else ""
        learned = f" by {self.gradient}" if self.gradient else ""
        return f"captioner ({self.attention}{learned}{estimator})"

    def resolved(self) -> Self:
        """The same options with nothing left open, and precision alone to the machine."""
        hard = self.attention == "hard"
        return (
            super()
            .resolved()
            .filled(
                {
                    "estimator": None if self.attention == "mean" else "first_order",
                    "gradient": "reinforce" if hard else None,
                    "coverage": 1.0 if self.attention == "soft" else 0.0,
                    "entropy": 0.01 if self.draws else 0.0,
                }
            )
        )
