"""What may be asked of a training: checked once, at the door, with the names that the user typed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.arguments import checked
from fenchel.errors import InputError
from fenchel.train.recipe import MIRRORED, RECIPES

__all__ = ["TrainOptions"]

# Options whose rule stands in the table under another name, and what users are to read of them where that helps.
_RULES: dict[str, tuple[str, str | None]] = {
    "batch_size": ("train_batch_size", "batch size"),
    "heads": ("head_count", "heads"),
    "evaluate_every": (
        "evaluate_every",
        "the number of epochs from one test to the next (--evaluate-every)",
    ),
}


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
        for field in dataclasses.fields(self):
            rule, name = _RULES.get(field.name, (field.name, None))
            object.__setattr__(self, field.name, checked(rule, getattr(self, field.name), name=name))
        if self.model == "vit" and self.extra_preference == "zero":
            raise InputError(
                "extra preference is 'zero' for the model 'vit', whose attention reaches no template that the "
                "preference gives no weight. Use 'shared' or 'none', or the model 'ot-vit'."
            )
        if self.model == "vit":
            self._refuse_transport()
        if self.batch_size % 2:
            raise InputError(
                f"batch size is {self.batch_size}; it must be even, since images come in pairs of a class."
            )
        if self.width % self.heads:
            raise InputError(
                f"heads is {self.heads} and width is {self.width}; the number of heads must divide the width."
            )

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
