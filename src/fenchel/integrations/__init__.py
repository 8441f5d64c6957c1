"""Bridges from other libraries' models to the inference problem that their attention stands for."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Import ``fenchel.integrations.transformers`` when it is first used: it needs the extra ``hf``."""
    if name == "transformers":
        return import_module("fenchel.integrations.transformers")
    raise AttributeError(f"module 'fenchel.integrations' has no attribute {name!r}")
