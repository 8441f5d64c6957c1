"""Which kind of file of state a file is, so that no other is taken for it, and what to do where it cannot be used."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.storage.files import reason_of
from fenchel.storage.schema import Check, Mismatch

__all__ = ["CHANGED", "Form", "refused", "size_of_file"]

CHANGED = "is damaged or was changed after it was written: its digest is not that of its content"
"""What is wrong with a file whose digest says otherwise than its content."""


@dataclass(frozen=True)
class Form:
    """A kind of file of state.

    Attributes:
        name: What a file of it is called, ``saved audit``; it is written into the file.
        version: Of what stands in it.
        schema: What its JSON holds.
        advice: What to do where a file of this form cannot be used: a sentence.
    """

    name: str
    version: int
    schema: Check
    advice: str

    @contextlib.contextmanager
    def reading(self, path: Path) -> Iterator[None]:
        """Turns what a check or a parser says into one line that names the file.

        Args:
            path: What is being read.

        Raises:
            InputError: In place of any ``Mismatch``.
        """
        try:
            yield
        except Mismatch as error:
            raise refused(path, self, f"is not what fenchel writes: {error}") from error

    def check_kind(self, path: Path, name: Any, version: Any) -> None:
        """Refuses another kind of file, and another version of it.

        Raises:
            InputError: If either differs.
        """
        if name != self.name:
            raise refused(path, self, f"holds a {name}, not a {self.name}")
        if version != self.version:
            written = "an earlier" if isinstance(version, int) and version < self.version else "a later"
            raise refused(
                path,
                self,
                f"has schema {version!r} of a {self.name}, of {written} version of fenchel; this one reads schema "
                f"{self.version}",
            )


def size_of_file(path: Path, form: Form) -> int:
    """How many bytes a file has, before it is opened: what is no regular file could be read without end.

    Raises:
        InputError: If there is no such file, or it is something else.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise refused(path, form, f"cannot be read: {reason_of(error)}") from error
    if not stat.S_ISREG(found.st_mode):
        raise refused(path, form, "is not a file")
    return found.st_size


def refused(path: Path, form: Form, reason: str) -> InputError:
    """The error of a file that cannot be used: its name, why, and what to do."""
    return InputError(f"{path} {reason}. {form.advice}")
