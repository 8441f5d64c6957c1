"""Whether optional packages are installed, asked before there is anything to lose."""

from __future__ import annotations

import importlib.util

from fenchel.errors import MissingExtraError

__all__ = ["require_packages"]


def require_packages(extra: str, *packages: str) -> None:
    """See that packages are installed, without importing them.

    Args:
        extra: The extra of ``fenchel`` that brings them.
        packages: Their import names.

    Raises:
        MissingExtraError: If one is not.

    Example:
        >>> require_packages("report", "no_such_package")
        Traceback (most recent call last):
        fenchel.errors.MissingExtraError: no_such_package is not installed. Run: pip install 'fenchel[report]'
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package, extra)
