"""How the documentation site is made: ``make docs``, or ``python -m website``."""

from __future__ import annotations

__all__: list[str] = []
