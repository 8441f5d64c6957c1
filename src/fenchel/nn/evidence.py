"""The evidence z: what a query says, as modules that also say what the templates are."""

from __future__ import annotations

__all__: list[str] = []
