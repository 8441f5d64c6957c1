"""A scale for differences: colourless at 0, blue and hatched below, orange above, so that grey shows the sign too."""

from __future__ import annotations

import math

from fenchel.drawing import ink

__all__ = ["STEPS", "style", "stylesheet"]

STEPS = 8
"""How many steps each side has; a step is a CSS class ``f1`` to ``f8`` (fell) or ``r1`` to ``r8`` (rose)."""

# Light and dark screens: what the least and the largest step of a side are, and what 0 is.
_LIGHT = {"f": ("#dce9f5", "#5f9bd0", "#0f3c72"), "r": ("#fdead3", "#e58a2c", "#7a3003"), "z": "#f4f4f1"}
_DARK = {"f": ("#1d2b3d", "#3f7bb5", "#b5d7fb"), "r": ("#38281a", "#b9671a", "#ffd3a0"), "z": "#20252f"}


def style(value: float | None, highest: float | None) -> str:
    """The CSS class of a difference, where ``highest`` is the largest size on the scale.

    Example:
        >>> style(0.5, 1.0), style(-1.0, 1.0), style(0.001, 1.0), style(0.0, 1.0), style(None, 1.0)
        ('r4', 'f8', 'r1', 'z', 'missing')
    """
    if value is None:
        return "missing"
    if value == 0 or not highest:
        return "z"
    return f"{'r' if value > 0 else 'f'}{min(STEPS, max(1, math.ceil(STEPS * abs(value) / highest)))}"


def stylesheet(*, dark: bool) -> str:
    """CSS rules of the classes, with ink that contrasts with each."""
    colours = _DARK if dark else _LIGHT
    rules = [_rule("z", str(colours["z"]), hatched=False)]
    for side in ("f", "r"):
        low, middle, high = colours[side]
        for step in range(STEPS):
            place = 2 * step / (STEPS - 1)
            mixed = _between(low, middle, place) if place <= 1 else _between(middle, high, place - 1)
            rules.append(_rule(f"{side}{step + 1}", mixed, hatched=side == "f"))
    return "".join(rules)


def _rule(name: str, colour: str, *, hatched: bool) -> str:
    written = ink(colour)
    stripe = "#ffffff38" if written == "#fff" else "#10131a24"
    pattern = (
        f"background-image:repeating-linear-gradient(135deg,{stripe} 0 1px,#0000 1px 4px);" if hatched else ""
    )
    return f".{name}{{background-color:{colour};{pattern}color:{written}}}"


def _between(first: str, second: str, share: float) -> str:
    channels = (
        round(int(first[i : i + 2], 16) + share * (int(second[i : i + 2], 16) - int(first[i : i + 2], 16)))
        for i in (1, 3, 5)
    )
    return "#" + "".join(f"{channel:02x}" for channel in channels)
