"""The vision transformer that the papers compare with."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from fenchel.errors import ProblemError
from fenchel.models.abstract import AbstractVisionTransformer
from fenchel.models.sizes import VisionSizes
from fenchel.nn import MultiheadAttention

__all__ = ["ViT"]


class ViT(AbstractVisionTransformer):
    """A vision transformer with dot-product attention in every layer.

    With ``extra_preference="shared"`` it is the control for what templates of other images do without optimal
    transport: the last layer attends to the templates of both images alike.

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
        extra_preference: None, the model takes no templates of other images; or ``"shared"``, they have the same
            weight before looking as the image's own.

    Raises:
        ProblemError: On an argument that cannot be used, with its value and what was expected.

    Reference:
        Section 9, tables 1 and 2; Dosovitskiy et al., An Image is Worth 16x16 Words (2021).

    Example:
        >>> model = ViT(image_size=8, width=16, depth=2, heads=2, mlp_width=32)
        >>> model(torch.randn(3, 1, 8, 8)).shape
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
        extra_preference: str | None = None,
    ) -> None:
        sizes = VisionSizes(
            image_size, patch_size, channels, classes, width, depth, heads, mlp_width, dropout
        )
        if extra_preference not in (None, "shared"):
            raise ProblemError(
                f"extra_preference is {extra_preference!r}; expected None or 'shared': without optimal transport, "
                "templates of weight 0 before looking cannot get any"
            )
        super().__init__(sizes, extra_preference)

    def _last_attention(self) -> MultiheadAttention:
        return MultiheadAttention(self.sizes.width, self.sizes.heads, batch_first=True)

    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""
        return {**asdict(self.sizes), "extra_preference": self.extra_preference}

    def attend(self, query: Tensor, templates: Tensor, partners: Tensor | None) -> Tensor:
        """Dot-product attention to the templates of both images."""
        padding = None
        if partners is not None:
            alone = (partners < 0).unsqueeze(1).expand(templates.shape[:2])
            padding = torch.cat([torch.zeros_like(alone), alone], 1)
            templates = torch.cat([templates, templates.index_select(0, partners.clamp_min(0))], 1)
        return self.last_attention(query, templates, templates, padding, need_weights=False)[0]
