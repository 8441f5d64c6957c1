"""A sequential colour scale that stays ordered in grey and for colour-blind eyes, on paper and on screen."""

from __future__ import annotations

__all__ = ["LEVELS", "ink", "level", "luminance", "scale", "stylesheet"]

LEVELS = 24
"""How many steps the scale has; a step is a CSS class ``q0`` to ``q23``."""

# ColorBrewer's YlGnBu, whose lightness falls steadily, so that it survives a photocopier.
_ANCHORS = (
    "#fffdde", "#edf8b1", "#c7e9b4", "#7fcdbb", "#41b6c4", "#1d91c0", "#225ea8", "#253494", "#0a1c55",
)  # fmt: skip


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def _companded(channel: float) -> float:
    channel = min(max(channel, 0.0), 1.0)
    return 12.92 * channel if channel <= 0.0031308 else 1.055 * channel ** (1 / 2.4) - 0.055


def _channels(colour: str) -> tuple[float, float, float]:
    red, green, blue = (_linear(int(colour[i : i + 2], 16) / 255) for i in (1, 3, 5))
    return red, green, blue


def luminance(colour: str) -> float:
    """Relative luminance of a colour, 0 for black and 1 for white.

    Example:
        >>> luminance("#000000"), round(luminance("#ffffff"), 6)
        (0.0, 1.0)
    """
    red, green, blue = _channels(colour)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _between(first: str, second: str, share: float) -> str:
    mixed = (a + share * (b - a) for a, b in zip(_perceived(first), _perceived(second), strict=True))
    return _colour(*mixed)


def _perceived(colour: str) -> tuple[float, float, float]:
    # Oklab, in which equal steps look equal.
    red, green, blue = _channels(colour)
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    medium = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    little = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * medium - 0.0040720468 * little,
        1.9779984951 * long - 2.4285922050 * medium + 0.4505937099 * little,
        0.0259040371 * long + 0.7827717662 * medium - 0.8086757660 * little,
    )


def _colour(lightness: float, green_red: float, blue_yellow: float) -> str:
    long = (lightness + 0.3963377774 * green_red + 0.2158037573 * blue_yellow) ** 3
    medium = (lightness - 0.1055613458 * green_red - 0.0638541728 * blue_yellow) ** 3
    little = (lightness - 0.0894841775 * green_red - 1.2914855480 * blue_yellow) ** 3
    channels = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * little,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * little,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * little,
    )
    return "#" + "".join(f"{round(255 * _companded(c)):02x}" for c in channels)


def scale() -> tuple[str, ...]:
    """The colours from light to dark, one a level."""
    colours = []
    for step in range(LEVELS):
        position = step * (len(_ANCHORS) - 1) / (LEVELS - 1)
        below = min(int(position), len(_ANCHORS) - 2)
        colours.append(_between(_ANCHORS[below], _ANCHORS[below + 1], position - below))
    return tuple(colours)


def level(value: float, highest: float) -> int:
    """The step of the scale for a value, where ``highest`` is its upper end.

    Example:
        >>> level(0.0, 1.0), level(0.5, 1.0), level(1.0, 1.0), level(0.0, 0.0)
        (0, 12, 23, 0)
    """
    if highest <= 0:
        return 0
    return min(LEVELS - 1, max(0, int(LEVELS * value / highest)))


def ink(colour: str) -> str:
    """Near-black or white, whichever contrasts more with a colour.

    Example:
        >>> ink("#fffdde"), ink("#0a1c55")
        ('#10131a', '#fff')
    """
    return "#fff" if (luminance(colour) + 0.05) ** 2 < 1.05 * 0.05 else "#10131a"


def stylesheet(colours: tuple[str, ...]) -> str:
    """CSS rules of the classes ``q0``, ``q1``, ... with ink that contrasts with each."""
    return "".join(
        f".q{step}{{background:{colour};color:{ink(colour)}}}" for step, colour in enumerate(colours)
    )
