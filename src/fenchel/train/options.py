"""What may be asked of a training: checked once, at the door, with the names that the user typed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.train.recipe import MIRRORED, RECIPES

__all__ = ["COSTS", "EXTRA_PREFERENCES", "MODELS", "PRECISIONS", "TrainOptions"]

MODELS = ("vit", "ot-vit")
EXTRA_PREFERENCES = ("zero", "shared", "none")
COSTS = ("dot", "squared_euclidean", "cosine")
PRECISIONS = ("auto", "float32", "bfloat16")
_LARGEST_SEED = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Everything that decides a training's numbers, besides the machine.

    Attributes:
        data: A name that ``fenchel.data.load`` knows, a path, or ``hf:NAME``.
        model: ``vit`` or ``ot-vit``.
        extra_preference: What the preference gives the templates of another image of the class: ``zero`` (OT-ViT only:
            they are reached through the transport alone), ``shared`` (weight like the image's own), or ``none`` (there
            are no such templates). None is ``zero`` for OT-ViT and ``none`` for ViT.
        join_probability: How probable it is, for each image and step, that the templates of another image join.
        cost: Transport cost of OT-ViT; ViT has none, so it takes no other than the default.
        gamma: Its entropic regularisation, above 0; None is √width, and for ViT that there is none.
        alpha: Its reliability of the evidence, above 0; ViT takes no other than the default.
        train_images: Train on so many images, equally many of each class, the same for every seed; None for all.
        test_images: The same for the test.
        epochs: How often every image is seen.
        batch_size: Images in a step, over all processes together; even, since images come in pairs of a class.
        learning_rate: The largest one.
        weight_decay: See ``Recipe``; None for the recipe's.
        warmup_fraction: See ``Recipe``; None for the recipe's.
        label_smoothing: See ``Recipe``; None for the recipe's.
        gradient_clip: See ``Recipe``; None for the recipe's.
        flip: Whether images are mirrored at random; None for the recipe's choice where the data are known to allow it.
        recipe: ``paper`` or ``strong``.
        precision: ``float32``, ``bfloat16`` (autocast; weights and optimiser stay float32), or ``auto``: bfloat16
            where the hardware multiplies fast in it.
        seed: Of weights, batches, augmentation, dropout and joining.
        width: Hidden size.
        depth: Layers.
        heads: Heads of a layer.
        mlp_width: Hidden size of the MLPs.
        dropout: Dropout rate.
        patch_size: Side of a patch in pixels.
        evaluate_every: Test after every so many epochs, and after the last.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> options = TrainOptions(data="fashion-mnist", model="vit", epochs=3)
        >>> TrainOptions.from_json(options.to_json()) == options
        True
        >>> options.resolved().weight_decay
        0.01
    """

    data: str
    model: str = "ot-vit"
    extra_preference: str | None = None
    join_probability: float = 0.5
    cost: str = "dot"
    gamma: float | None = None
    alpha: float = 1.0
    train_images: int | None = None
    test_images: int | None = None
    epochs: int = 20
    batch_size: int = 128
    learning_rate: float = 3e-4
    weight_decay: float | None = None
    warmup_fraction: float | None = None
    label_smoothing: float | None = None
    gradient_clip: float | None = None
    flip: bool | None = None
    recipe: str = "paper"
    precision: str = "auto"
    seed: int = 0
    width: int = 256
    depth: int = 6
    heads: int = 8
    mlp_width: int = 512
    dropout: float = 0.2
    patch_size: int = 4
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        if not isinstance(self.data, str) or not self.data:
            raise InputError(f"data is {self.data!r}; expected a name, such as fashion-mnist, or a path.")
        _one_of("model", self.model, MODELS)
        _one_of("recipe", self.recipe, tuple(RECIPES))
        _one_of("precision", self.precision, PRECISIONS)
        _one_of("cost", self.cost, COSTS)
        if self.extra_preference is not None:
            _one_of("extra preference", self.extra_preference, EXTRA_PREFERENCES)
        if self.model == "vit" and self.extra_preference == "zero":
            raise InputError(
                "extra preference is 'zero' for the model 'vit', whose attention reaches no template that the "
                "preference gives no weight. Use 'shared' or 'none', or the model 'ot-vit'."
            )
        if self.model == "vit":
            self._refuse_transport()
        for name in ("epochs", "width", "depth", "heads", "mlp_width", "patch_size", "evaluate_every"):
            _whole(name, getattr(self, name), 1)
        for name in ("train_images", "test_images"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        _whole("batch_size", self.batch_size, 2)
        if self.batch_size % 2:
            raise InputError(
                f"batch size is {self.batch_size}; it must be even, since images come in pairs of a class."
            )
        _whole("seed", self.seed, 0)
        if self.seed > _LARGEST_SEED:
            raise InputError(f"seed is {self.seed}; the largest is {_LARGEST_SEED}.")
        if self.width % self.heads:
            raise InputError(
                f"heads is {self.heads} and width is {self.width}; the number of heads must divide the width."
            )
        _number("learning_rate", self.learning_rate, above=0.0)
        _number("alpha", self.alpha, above=0.0)
        _number("gamma", self.gamma, above=0.0)
        _number("join_probability", self.join_probability, least=0.0, most=1.0)
        _number("dropout", self.dropout, least=0.0, below=1.0)
        _number("weight_decay", self.weight_decay, least=0.0)
        _number("warmup_fraction", self.warmup_fraction, least=0.0, below=1.0)
        _number("label_smoothing", self.label_smoothing, least=0.0, below=1.0)
        _number("gradient_clip", self.gradient_clip, least=0.0)

    def _refuse_transport(self) -> None:
        for name, default in (("gamma", None), ("alpha", 1.0), ("cost", "dot")):
            if (value := getattr(self, name)) != default:
                raise InputError(
                    f"{name} is {value!r} for the model 'vit', which has no transport. Leave it out, or use the model "
                    "'ot-vit'."
                )

    @property
    def joins(self) -> bool:
        """Whether templates of another image ever join an image's own."""
        return self.resolved().extra_preference != "none" and self.join_probability > 0

    def resolved(self) -> TrainOptions:
        """The same options with nothing left to the recipe or the model, and precision alone to the machine."""
        recipe = RECIPES[self.recipe]
        filled: dict[str, Any] = {
            name: getattr(recipe, name)
            for name in ("weight_decay", "warmup_fraction", "label_smoothing", "gradient_clip")
            if getattr(self, name) is None
        }
        if self.flip is None:
            filled["flip"] = recipe.flip and self.data.removeprefix("hf:") in MIRRORED
        if self.extra_preference is None:
            filled["extra_preference"] = "zero" if self.model == "ot-vit" else "none"
        if self.gamma is None and self.model == "ot-vit":
            filled["gamma"] = math.sqrt(self.width)
        return dataclasses.replace(self, **filled)

    def to_json(self) -> dict[str, Any]:
        """The options as JSON values."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainOptions:
        """What ``to_json`` gave.

        Raises:
            InputError: If a name is unknown or ``data`` is missing.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        if unknown := sorted(set(values) - known):
            raise InputError(f"{unknown[0]!r} is no option of a training; expected some of {sorted(known)}.")
        if "data" not in values:
            raise InputError("the options of a training name no data; expected 'data'.")
        return cls(**values)


def _one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise InputError(f"{name} is {value!r}; expected one of {', '.join(known)}.")


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise InputError(f"{_words(name)} is {value!r}; it must be a whole number that is at least {least}.")


def _number(
    name: str,
    value: object,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    below: float = math.inf,
    most: float = math.inf,
) -> None:
    """Refuses what is given and is no finite number, above ``above``, at least ``least``, and so on."""
    if value is None:
        return
    if isinstance(value, Real) and not isinstance(value, bool):
        number = float(value)
        if math.isfinite(number) and above < number < below and least <= number <= most:
            return
    bounds = [
        f"{word} {bound:g}"
        for word, bound in (("above", above), ("at least", least), ("below", below), ("at most", most))
        if math.isfinite(bound)
    ]
    raise InputError(f"{_words(name)} is {value!r}; it must be a finite number {' and '.join(bounds)}.")


def _words(name: str) -> str:
    if name == "evaluate_every":
        return "the number of epochs from one test to the next (--evaluate-every)"
    return name.replace("_", " ")
