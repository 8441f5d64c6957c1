"""Which version of the package this is, where every module may read it."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.2.0"
