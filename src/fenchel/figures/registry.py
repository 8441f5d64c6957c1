"""Every figure that can be made, by name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Final

from fenchel.arguments import shown
from fenchel.errors import InputError
from fenchel.figures.convergence import CONVERGENCE
from fenchel.figures.covariance import COVARIANCE
from fenchel.figures.deviations import DEVIATIONS
from fenchel.figures.encodings import ENCODINGS
from fenchel.figures.figure3 import FIGURE3
from fenchel.figures.figure_kind import FigureKind
from fenchel.figures.kernel_regression import KERNEL_REGRESSION
from fenchel.figures.positions import POSITIONS
from fenchel.figures.reliability import RELIABILITY
from fenchel.figures.spotlight import SPOTLIGHT
from fenchel.reproducing.paper import FIGURES as REPRODUCED

__all__ = ["FIGURES", "figure_named"]

FIGURES: Final[Mapping[str, FigureKind]] = {
    kind.name: kind
    for kind in (
        FIGURE3,
        RELIABILITY,
        COVARIANCE,
        DEVIATIONS,
        CONVERGENCE,
        KERNEL_REGRESSION,
        POSITIONS,
        ENCODINGS,
        SPOTLIGHT,
    )
}
"""By name, in the order in which they are listed."""


def figure_named(name: object) -> FigureKind:
    """The figure of a name.

    Raises:
        InputError: If there is none; the message names the nearest.

    Example:
        >>> figure_named("figure3").audit
        'none'
        >>> figure_named("spotlights")
        Traceback (most recent call last):
        fenchel.errors.InputError: figure is 'spotlights'; did you mean spotlight? Expected one of figure3, alpha, \
covariance, deviations, convergence, kernel-regression, positions, encodings, spotlight.
    """
    if isinstance(name, str) and name in FIGURES:
        return FIGURES[name]
    if isinstance(name, str) and name in REPRODUCED:
        raise InputError(
            f"figure is {shown(name)}, which is made of a trained model: fenchel reproduce {name} --text "
            f"FILE. Expected one of {', '.join(FIGURES)}."
        )
    near = difflib.get_close_matches(name.lower(), FIGURES, n=1, cutoff=0.5) if isinstance(name, str) else []
    meant = f"did you mean {near[0]}? Expected" if near else "expected"
    raise InputError(f"figure is {shown(name)}; {meant} one of {', '.join(FIGURES)}.")
