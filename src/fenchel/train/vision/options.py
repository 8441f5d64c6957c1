"""What may be asked of the training of a vision transformer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Self

from fenchel.errors import InputError
from fenchel.train.options import LoopOptions
from fenchel.train.vision.recipe import MIRRORED, RECIPES

__all__ = ["TrainOptions"]

_FURTHER_TEMPLATES = {
    "zero": " (u = 0 on further templates)",
    "shared": " (u shared with further templates)",
    "none": "",
}


@dataclass(frozen=True, kw_only=True)
class TrainOptions(LoopOptions):
    """Everything that decides the numbers of a training on images, besides the machine.

    Those of ``LoopOptions``, of which ``data`` is a name that ``fenchel.data.load`` knows, a path, or ``hf:NAME``,
    ``batch_size`` is even, since images come in pairs of a class, and what is None is the recipe's; and these:

    Attributes:
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
        label_smoothing: See ``Recipe``; None for the recipe's.
        flip: Whether images are mirrored at random; None for the recipe's choice where the data are known to allow it.
        recipe: ``paper`` or ``strong``.
        width: Hidden size.
        depth: Layers.
        heads: Heads of a layer.
        mlp_width: Hidden size of the MLPs.
        dropout: Dropout rate.
        patch_size: Side of a patch in pixels.

    Raises:
        InputError: If a value is out of range or unknown, naming it.

    Example:
        >>> options = TrainOptions(data="fashion-mnist", model="vit", epochs=3)
        >>> TrainOptions.from_json(options.to_json()) == options
        True
        >>> options.resolved().weight_decay
        0.01
    """

    RULES: ClassVar = MappingProxyType({"heads": "head_count"})

    model: str = "ot-vit"
    extra_preference: str | None = None
    join_probability: float = 0.5
    cost: str = "dot"
    gamma: float | None = None
    alpha: float = 1.0
    train_images: int | None = None
    test_images: int | None = None
    label_smoothing: float | None = None
    flip: bool | None = None
    recipe: str = "paper"
    width: int = 256
    depth: int = 6
    heads: int = 8
    mlp_width: int = 512
    dropout: float = 0.2
    patch_size: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
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
    def model_title(self) -> str:
        """The model, and what its preference gives to further templates."""
        return f"{self.model}{_FURTHER_TEMPLATES[self.extra_preference or 'none']}"

    @property
    def manner(self) -> str:
        """The recipe."""
        return f"recipe {self.recipe}"

    @property
    def joins(self) -> bool:
        """Whether templates of another image ever join an image's own."""
        return self.resolved().extra_preference != "none" and self.join_probability > 0

    def resolved(self) -> Self:
        """The same options with nothing left to the recipe or the model, and precision alone to the machine."""
        recipe, transport = RECIPES[self.recipe], self.model == "ot-vit"
        named = ("weight_decay", "warmup_fraction", "label_smoothing", "gradient_clip")
        return self.filled(
            {
                **{name: getattr(recipe, name) for name in named},
                "flip": recipe.flip and self.data.removeprefix("hf:") in MIRRORED,
                "extra_preference": "zero" if transport else "none",
                "gamma": math.sqrt(self.width) if transport else None,
            }
        )
