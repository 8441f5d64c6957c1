"""The arms of an experiment: one model each, trained on the same images in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fenchel.errors import InputError

__all__ = ["ARMS", "BASELINE", "Arm", "chosen_arms"]

BASELINE = "vit"
"""The arm that the others are compared with."""


@dataclass(frozen=True)
class Arm:
    """One model of a comparison.

    Attributes:
        name: As users type it and as its folder is called.
        label: As tables and figures show it.
        model: Name in ``fenchel.models``.
        extra_preference: What u gives to the templates of another image of the class in training: ``zero``,
            ``shared``, or ``none`` where there are no such templates.
        reading: What that means, in words.
        in_paper: Whether the papers' tables report this arm.
    """

    name: str
    label: str
    model: str
    extra_preference: str
    reading: str
    in_paper: bool = False


ARMS: dict[str, Arm] = {
    arm.name: arm
    for arm in (
        Arm("vit", "ViT", "vit", "none", "softmax attention, the image's own templates", in_paper=True),
        Arm(
            "ot-vit",
            "OT-ViT",
            "ot-vit",
            "zero",
            "optimal-transport attention; the other image's templates have no preference and are reached through "
            "the transport only",
            in_paper=True,
        ),
        Arm(
            "ot-vit-shared",
            "OT-ViT, shared u",
            "ot-vit",
            "shared",
            "optimal-transport attention; u gives the other image's templates the same weight as the image's own",
            in_paper=True,
        ),
        Arm(
            "ot-vit-alone",
            "OT-ViT, no extras",
            "ot-vit",
            "none",
            "optimal-transport attention over the image's own templates, no other image",
        ),
        Arm(
            "vit-extra",
            "ViT with extras",
            "vit",
            "shared",
            "softmax attention over the templates of both images, no transport",
        ),
    )
}
"""All arms by name, in the order in which tables list them."""


def chosen_arms(names: Sequence[str]) -> tuple[Arm, ...]:
    """Looks arms up.

    Args:
        names: Some of ``ARMS``.

    Returns:
        The arms, each once, in the order of ``ARMS``.

    Raises:
        InputError: If there are none, or one is unknown.

    Example:
        >>> [arm.label for arm in chosen_arms(["ot-vit", "vit"])]
        ['ViT', 'OT-ViT']
    """
    unknown = [name for name in names if name not in ARMS]
    if unknown or not names:
        got = repr(unknown[0]) if unknown else "empty"
        raise InputError(f"arms is {got}; expected some of {', '.join(ARMS)}, separated by commas.")
    return tuple(arm for arm in ARMS.values() if arm.name in names)
