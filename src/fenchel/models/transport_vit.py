"""The vision transformer with optimal-transport attention in its last layer."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from torch import Tensor

from fenchel.errors import ProblemError
from fenchel.models.abstract import AbstractVisionTransformer
from fenchel.models.sizes import VisionSizes
from fenchel.nn import TransportAttention

__all__ = ["OTViT"]


class OTViT(AbstractVisionTransformer):
    r"""A :class:`~fenchel.models.ViT` whose last layer is :class:`~fenchel.nn.TransportAttention`.

    The papers' setting is the default: M(a, b) = C - ⟨a, b⟩, α = 1 and γ = √width. In training, templates of another
    image of the same class may join with ``partners``; whether u gives them weight is not said there, so both
    readings are here. Built from the same seed, it starts from the weights of a ViT of the same sizes.

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
        gamma: γ > 0; √width where None.
        alpha: α > 0.
        cost: M, ``"dot"``, ``"squared_euclidean"`` or ``"cosine"``.
        extra_preference: What u gives to templates of other images: ``"zero"``, weight reaches them through the
            transport alone; ``"shared"``, as much as to the image's own; None, the model takes none.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        Section 9, tables 1 and 2.

    Example:
        >>> model = OTViT(image_size=8, width=16, depth=2, heads=2, mlp_width=32, cost="squared_euclidean")
        >>> import torch
        >>> images = torch.randn(3, 1, 8, 8)
        >>> model(images, partners=torch.tensor([1, 0, -1])).shape  # images 0 and 1 are of one class
        torch.Size([3, 10])
    """

    def __init__(
        self,
        image_size: int = 28,
        patch_size: int = 4,
        channels: int = 1,
        classes: int = 10,
        width: int = 256,
        depth: int = 6,
        heads: int = 8,
        mlp_width: int = 512,
        dropout: float = 0.2,
        gamma: float | None = None,
        alpha: float = 1.0,
        cost: str = "dot",
        extra_preference: str | None = "zero",
    ) -> None:
        sizes = VisionSizes(
            image_size, patch_size, channels, classes, width, depth, heads, mlp_width, dropout
        )
        if not isinstance(cost, str):
            raise ProblemError(f"cost is a {type(cost).__name__}; expected the name of a cost, such as 'dot'")
        self._transport: dict[str, Any] = {"gamma": gamma, "alpha": alpha, "cost": cost}
        super().__init__(sizes, extra_preference)

    def _last_attention(self) -> TransportAttention:
        extra_preference = "zero" if self.extra_preference is None else self.extra_preference
        return TransportAttention(
            self.sizes.width, self.sizes.heads, extra_preference=extra_preference, **self._transport
        )

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them; γ as given."""
        return {**asdict(self.sizes), **self._transport, "extra_preference": self.extra_preference}

    def attend(self, query: Tensor, templates: Tensor, partners: Tensor | None) -> Tensor:
        """Transport attention to the image's own templates and, through them, to its partner's."""
        return self.last_attention(query, templates, partners=partners)
