"""Every mechanism of the catalogue written anew from its paper, with loops and torch alone.

The files have the names of those in ``fenchel.catalogue``.
"""

from collections.abc import Callable

from torch import Tensor

from tests.catalogue.references import (
    closeness_and_memory,
    importance,
    positions,
    psychology,
    scores,
    textbook,
    vision_and_gates,
)

REFERENCES: dict[str, Callable[..., Tensor]] = {
    **textbook.REFERENCES,
    **scores.REFERENCES,
    **positions.REFERENCES,
    **vision_and_gates.REFERENCES,
    **psychology.REFERENCES,
    **closeness_and_memory.REFERENCES,
    **importance.REFERENCES,
}
"""By the entry's name: a function of the entry's inputs by name."""
