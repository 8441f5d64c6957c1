"""Every mechanism of the catalogue written anew from its paper, with loops and torch alone: one file a family."""

from collections.abc import Callable

from torch import Tensor

from tests.catalogue.references import beyond, gates, images, importance, mind, places, scores, textbook

REFERENCES: dict[str, Callable[..., Tensor]] = {
    **textbook.REFERENCES,
    **scores.REFERENCES,
    **places.REFERENCES,
    **images.REFERENCES,
    **gates.REFERENCES,
    **mind.REFERENCES,
    **beyond.REFERENCES,
    **importance.REFERENCES,
}
"""By the entry's name: a function of the entry's inputs by name."""
