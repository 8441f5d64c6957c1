"""Rules for what callers hand over that is neither a number nor a name, such as observers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fenchel.arguments.rule import AbstractRule, Unfit

__all__ = ["Having"]


@dataclass(frozen=True)
class Having(AbstractRule):
    """An object, and no class, that has some methods.

    Attributes:
        methods: Their names.
        what: What it is.
    """

    methods: tuple[str, ...]
    what: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return self.what

    def fit(self, value: Any) -> Any:
        """See ``AbstractRule``."""
        if isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in self.methods):
            raise Unfit
        return value
