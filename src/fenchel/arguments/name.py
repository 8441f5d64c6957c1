"""Rules for names: of one of a few things, of files, and what else is words."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.arguments.rule import AbstractRule, Unfit, listed, shown

__all__ = ["Flag", "OneOf", "PathName", "SomeOf", "Text"]
_LONGEST_PATH = 4095
_LONGEST_NAME = 255


@dataclass(frozen=True)
class OneOf(AbstractRule):
    """One of a few names.

    Attributes:
        names: The names.
    """

    names: tuple[str, ...]

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"one of {', '.join(self.names)}"

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        if not isinstance(value, str) or value not in self.names:
            raise Unfit
        return value


@dataclass(frozen=True)
class SomeOf(AbstractRule):
    """One or more of a few names, each taken once, in the order in which they are given.

    Attributes:
        names: The names.
    """

    names: tuple[str, ...]

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"some of {', '.join(self.names)}"

    def fit(self, value: Any) -> tuple[str, ...]:
        """See ``AbstractRule``."""
        found = dict.fromkeys(listed(value, 1000, hashable=True))
        for name in found:
            if not isinstance(name, str) or name not in self.names:
                raise Unfit(f"names {shown(name)}")
        return tuple(found)


@dataclass(frozen=True)
class Flag(AbstractRule):
    """True or False."""

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return "True or False"

    def fit(self, value: Any) -> bool:
        """See ``AbstractRule``."""
        if not isinstance(value, bool):
            raise Unfit
        return value


@dataclass(frozen=True)
class Text(AbstractRule):
    """Words of which results can be written: neither empty nor with characters that UTF-8 has not.

    Attributes:
        what: What they are, such as "the name of a column".
    """

    what: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return self.what

    def fit(self, value: Any) -> str:
        """See ``AbstractRule``."""
        if not isinstance(value, str) or not value.strip():
            raise Unfit
        return _writable(value)


@dataclass(frozen=True)
class PathName(AbstractRule):
    """The name of a file or folder, whether or not it is there.

    Attributes:
        what: What it is of, such as "a folder for the results".
    """

    what: str

    @property
    def expected(self) -> str:
        """See ``AbstractRule``."""
        return f"the path of {self.what}"

    def fit(self, value: Any) -> Path:
        """See ``AbstractRule``."""
        if not isinstance(value, str | os.PathLike):
            raise Unfit
        name = os.fspath(value)
        # Path("") is the folder where one happens to be, which nobody who wrote '' has asked for.
        if not isinstance(name, str) or not name.strip() or (isinstance(value, str) and "\0" in name):
            raise Unfit
        _writable(name)
        if len(name.encode()) > _LONGEST_PATH or any(
            len(part.encode()) > _LONGEST_NAME for part in Path(name).parts
        ):
            raise Unfit(f"is {shown(name)}, a longer name than a file can have")
        try:
            return Path(name).expanduser()
        except RuntimeError as error:
            raise Unfit(f"is {shown(name)}: {error}".rstrip(".")) from None


def _writable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unfit(f"is {shown(text)}, which is no UTF-8 and can be written into no result") from None
    if "\0" in text:
        raise Unfit(f"is {shown(text)}, which has a NUL character")
    return text
