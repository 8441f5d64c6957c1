"""Templates of another image of the same class, which join those of an image in training."""

from __future__ import annotations

import torch
from torch import Tensor

from fenchel.errors import ProblemError

__all__ = ["joining"]


def joining(
    partners: Tensor | None, templates: Tensor, extra_preference: str | None
) -> tuple[Tensor | None, Tensor | None]:
    """Templates of the partners of all images in a batch: gathered from the batch, with gradient.

    Args:
        partners: int64 (B,), the index of each image's partner in the batch, or -1 for none; None is -1 for all.
        templates: Of all images, (B, L, width).
        extra_preference: What the model does with them; None if it takes none.

    Returns:
        The partners' templates, (B, L, width), and whether they are there, bool (B, L); or None and None if no
        image has a partner.

    Raises:
        ProblemError: If they do not fit the batch, or the model takes none.
    """
    if partners is None:
        return None, None
    batch = len(templates)
    if partners.shape != (batch,) or partners.dtype != torch.int64:
        raise ProblemError(
            f"partners have shape {tuple(partners.shape)} and dtype {partners.dtype}; expected int64 ({batch},), the "
            "index in the batch of another image of the same class, or -1 for none"
        )
    if partners.device != templates.device:
        raise ProblemError(
            f"partners are on {partners.device}, images on {templates.device}; move one of them"
        )
    if extra_preference is None:
        raise ProblemError(
            "partners are given to a model with extra_preference=None, which takes no templates of other images; build "
            'it with extra_preference="shared" (or "zero" for ot-vit), or leave partners out'
        )
    if not torch.compiler.is_compiling() and batch:
        smallest, largest = (int(end) for end in partners.aminmax())
        if smallest < -1 or largest >= batch:
            wrong = smallest if smallest < -1 else largest
            raise ProblemError(f"partners contain {wrong}; expected indices 0 to {batch - 1}, or -1 for none")
        own = partners == torch.arange(batch, device=partners.device)
        if bool(own.any()):
            raise ProblemError(
                f"image {int(own.nonzero()[0])} is its own partner; expected another image, or -1 for none"
            )
        if largest < 0:
            return None, None
    there = (partners >= 0).unsqueeze(1).expand(templates.shape[:2])
    return templates.index_select(0, partners.clamp_min(0)), there
