"""The one place that imports transformers, and says what to do where it is missing or too old."""

from __future__ import annotations

import re
from types import ModuleType

from fenchel.errors import MissingExtraError, ModelError

__all__ = ["OLDEST", "require_transformers"]

OLDEST = (5, 15)
"""The first release in which T5 calls the attention registry; BERT does from 5.0."""


def require_transformers() -> ModuleType:
    """The module ``transformers``, imported on first use.

    Returns:
        The imported module.

    Raises:
        MissingExtraError: If it is not installed.
        ModelError: If it is older than ``OLDEST``.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError("transformers", "hf") from error
    found = re.match(r"(\d+)\.(\d+)", transformers.__version__)
    if found is None or (int(found[1]), int(found[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise ModelError(
            f"transformers {transformers.__version__} is installed; {oldest} or newer is needed, because "
            "older releases do not send T5's attention through the registry. Run: pip install "
            f"'transformers>={oldest}'"
        )
    return transformers
