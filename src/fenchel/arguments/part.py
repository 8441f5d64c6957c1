"""Rules for what callers hand over that is neither a number nor a name: observers, functions, collections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fenchel.arguments.rule import AbstractRule, Unfit, listed, shown

__all__ = ["Having", "Keyed", "Names"]


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


@dataclass(frozen=True)
class Names(AbstractRule):
    """One name or more, in a list or tuple.

    Attributes:
        example: Some of them.
    """

    example: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"names, such as {self.example}"

    def fit(self, value: Any) -> tuple[str, ...]:
        """See ``AbstractRule``."""
        found = listed(value, 1000)
        for name in found:
            if not isinstance(name, str):
                raise Unfit(f"holds {shown(name)}")
        return tuple(found)


@dataclass(frozen=True)
class Keyed(AbstractRule):
    """A mapping from names.

    Attributes:
        what: What it is of.
    """

    what: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"a mapping of {self.what}"

    def fit(self, value: Any) -> dict[str, Any]:
        """See ``AbstractRule``."""
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise Unfit
        return dict(value)
