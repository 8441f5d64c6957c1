"""The one place that imports transformers, and says what to do where it is missing or too old."""

from __future__ import annotations

import re
from types import ModuleType

from fenchel.errors import MissingExtraError, ModelError

__all__ = ["OLDEST", "require_transformers"]

OLDEST = (5, 4)
"""The first release that makes masks from numbers of queries and returns the weights of every family that is asked."""


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
            f"transformers {transformers.__version__} is installed; {oldest} or newer is needed, because older "
            f"releases make masks from other arguments. Run: pip install 'transformers>={oldest}'"
        )
    return transformers
