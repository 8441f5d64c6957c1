"""Every mechanism of the catalogue written anew from its paper, with loops and torch alone.

The files have the names of those in ``fenchel.catalogue``, and the functions those of their entries.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fenchel.catalogue import ENTRIES
from tests.catalogue.references import (
    closeness_and_memory,
    importance,
    positions,
    psychology,
    scores,
    textbook,
    vision_and_gates,
)

_MODULES = (textbook, scores, positions, vision_and_gates, psychology, closeness_and_memory, importance)
_DEFINED: dict[str, Any] = {name: one for module in _MODULES for name, one in vars(module).items()}

REFERENCES: dict[str, Callable[..., Tensor]] = {name: _DEFINED[name.replace("-", "_")] for name in ENTRIES}
"""By the entry's name: a function of the entry's inputs by name."""
