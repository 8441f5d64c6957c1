"""What the vision transformers have in common: everything but the attention of the last layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, cast

import torch
from torch import Tensor, nn

from fenchel.arguments.tensor import check_device, check_dtype, check_tensor
from fenchel.errors import ProblemError
from fenchel.models.encoder_layer import EncoderLayer
from fenchel.models.sizes import VisionSizes
from fenchel.nn import MultiheadAttention
from fenchel.nn.partners import checked_partners

__all__ = ["AbstractVisionTransformer"]


class AbstractVisionTransformer(nn.Module, ABC):
    """Patches and a class token with learned positions, pre-norm encoder layers, a norm and a linear classifier.

    Dropout follows the vision transformer of Dosovitskiy et al. (2021): after the positions are added and after every
    dense layer but the projections to queries, keys and values. In the last layer the class token alone asks:
    nothing reads what the other tokens would find there, so it is not computed.

    ``layers`` and ``norm`` have the state dict of a ``torch.nn.TransformerEncoder``.

    Args:
        sizes: All sizes and the dropout.
        extra_preference: What the last layer does with templates of another image, or None if it takes none.
    """

    def __init__(self, sizes: VisionSizes, extra_preference: str | None) -> None:
        super().__init__()
        self.sizes = sizes
        self.extra_preference = extra_preference
        self.embed = nn.Linear(sizes.patch_width, sizes.width)
        self.class_token = nn.Parameter(torch.empty(1, 1, sizes.width))
        self.position = nn.Parameter(torch.empty(1, sizes.tokens, sizes.width))
        for parameter in (self.class_token, self.position):
            nn.init.trunc_normal_(parameter, std=0.02)
        self.dropout = nn.Dropout(sizes.dropout)
        own = [MultiheadAttention(sizes.width, sizes.heads, batch_first=True) for _ in range(sizes.depth - 1)]
        self.layers = nn.ModuleList(
            EncoderLayer(attention, sizes.width, sizes.mlp_width, sizes.dropout)
            for attention in [*own, self._last_attention()]
        )
        self.norm = nn.LayerNorm(sizes.width)
        self.classify = nn.Linear(sizes.width, sizes.classes)

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """The arguments from which the model was built, as JSON can hold them."""

    @abstractmethod
    def _last_attention(self) -> nn.Module:
        """The attention of the last layer, new."""

    @property
    def last_attention(self) -> nn.Module:
        """The attention of the last layer."""
        return cast("EncoderLayer", self.layers[-1]).self_attn

    @abstractmethod
    def attend(self, query: Tensor, templates: Tensor, partners: Tensor | None) -> Tensor:
        """The last layer's attention.

        Args:
            query: The class token, normed, (B, 1, width).
            templates: All tokens of the same image, normed, (B, L, width).
            partners: int64 (B,), -1 for none; None if no image has one.

        Returns:
            (B, 1, width).
        """

    def forward(self, images: Tensor, *, partners: Tensor | None = None) -> Tensor:
        """Classify images.

        Args:
            images: Standardised, floating, (B, channels, image_size, image_size).
            partners: int64 (B,): the index in the batch of another image of the same class, whose templates join those
                of the image in the last layer, or -1 for none. None is -1 for all, as in testing.

        Returns:
            Logits, (B, classes).

        Raises:
            ProblemError: On images or partners of a wrong shape, dtype or device, a partner that is not in the batch or
                is the image itself, or partners for a model that takes none.
        """
        self._check_images(images)
        partners = self._checked(partners, images)
        tokens = self.dropout(self._embedded(images))
        *before, last = cast("list[EncoderLayer]", list(self.layers))
        for layer in before:
            tokens = layer(tokens)
        templates = last.norm1(tokens)
        attended = self.attend(templates[:, :1], templates, partners)
        token = last.after_attention(tokens[:, :1], attended)
        return self.classify(self.norm(token[:, 0]))

    def _embedded(self, images: Tensor) -> Tensor:
        size = self.sizes.patch_size
        patches = images.unflatten(2, (-1, size)).unflatten(4, (-1, size)).permute(0, 2, 4, 1, 3, 5)
        tokens = self.embed(patches.flatten(3).flatten(1, 2))
        first = self.class_token.expand(len(images), -1, -1).to(tokens.dtype)
        return torch.cat([first, tokens], 1) + self.position

    def _checked(self, partners: Tensor | None, images: Tensor) -> Tensor | None:
        if partners is not None and self.extra_preference is None:
            raise ProblemError(
                "partners are given to a model with extra_preference=None, which takes no templates of other images; "
                'build it with extra_preference="shared" (or "zero" for ot-vit), or leave partners out'
            )
        return checked_partners(partners, batch=len(images), device=images.device)

    def _check_images(self, images: Tensor) -> None:
        form = f"(B, channels, height, width) = (B, {', '.join(map(str, self.sizes.images))})"
        check_tensor("images", images, form)
        if tuple(images.shape[1:]) != self.sizes.images or images.dim() != 4:
            raise ProblemError(f"images have shape {tuple(images.shape)}; expected {form}")
        check_device("images", images, self.position.device, "the model")
        check_dtype("images", images, self.position.dtype, "the model")
