"""What a vision transformer is built with, whatever its last attention."""

from __future__ import annotations

from dataclasses import dataclass

from fenchel.arguments.tensor import checked_argument
from fenchel.errors import ProblemError
from fenchel.nn.sizes import check_sizes

__all__ = ["VisionSizes"]


@dataclass(frozen=True)
class VisionSizes:
    """Sizes that fit together; the defaults are those of the papers, with 3.2 million parameters.

    Args:
        image_size: Height and width of an image.
        patch_size: Height and width of a patch; divides ``image_size``.
        channels: 1 for grey, 3 for colour.
        classes: How many classes.
        width: Of the tokens; divisible by ``heads``.
        depth: Encoder layers.
        heads: Of every attention.
        mlp_width: Of the hidden layer of the feed-forward networks.
        dropout: Probability in [0, 1).

    Raises:
        ProblemError: Naming the argument, what was got and what was expected.
    """

    image_size: int = 28
    patch_size: int = 4
    channels: int = 1
    classes: int = 10
    width: int = 256
    depth: int = 6
    heads: int = 8
    mlp_width: int = 512
    dropout: float = 0.2

    def __post_init__(self) -> None:
        sizes = dict(vars(self))
        dropout = sizes.pop("dropout")
        check_sizes("a vision transformer", **sizes)
        checked_argument("dropout", dropout, name="dropout of a vision transformer")
        for whole, part in (("image_size", "patch_size"), ("width", "heads")):
            if sizes[whole] % sizes[part]:
                raise ProblemError(
                    f"a vision transformer got {whole}={sizes[whole]} and {part}={sizes[part]}; expected a {part} that "
                    f"divides {whole}."
                )

    @property
    def tokens(self) -> int:
        """Patches of an image, and the class token."""
        return (self.image_size // self.patch_size) ** 2 + 1

    @property
    def patch_width(self) -> int:
        """Numbers in a patch."""
        return self.channels * self.patch_size**2

    @property
    def images(self) -> tuple[int, int, int]:
        """Shape of an image."""
        return self.channels, self.image_size, self.image_size
