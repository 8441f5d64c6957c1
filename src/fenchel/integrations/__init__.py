"""Bridges from other libraries' models to the inference problem that their attention stands for."""

from __future__ import annotations

__all__: list[str] = []
