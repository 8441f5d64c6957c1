"""What is asked, line by line, each with where it stands, for the message that something is wrong with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fenchel.arguments import checked, shown
from fenchel.data.file_lines import file_lines
from fenchel.errors import InputError

__all__ = ["Line", "lines_of_file", "lines_of_texts"]

_BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True)
class Line:
    """A text and where it is from.

    Attributes:
        text: The text, not empty.
        where: Such as ``sentence 2`` or ``questions.txt, line 7``.
    """

    text: str
    where: str

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise InputError(f"{self.where} is empty; expected a text.")


def lines_of_texts(texts: Sequence[str], *, what: str = "sentence") -> list[Line]:
    """Texts of a list, numbered from 1.

    Args:
        texts: At least one.
        what: What each is called.

    Raises:
        InputError: If there are none, or one is no text or empty.

    Example:
        >>> lines_of_texts(["a dog barks"])[0].where
        'sentence 1'
    """
    if isinstance(texts, str):
        texts = [texts]
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise InputError(f"{what} {number} is {shown(text)}; expected a text.")
    if not texts:
        raise InputError(f"there is no {what}. Give at least one, or --text FILE with one a line.")
    return [Line(text, f"{what} {number}") for number, text in enumerate(texts, 1)]


def lines_of_file(path: str | Path) -> list[Line]:
    """The lines of a file in UTF-8; one that ends in ``.gz`` is unpacked.

    Raises:
        InputError: If it cannot be read, is not UTF-8, holds no line, or an empty one.
    """
    file = Path(checked("text", path))
    lines = file_lines(file, remedy="Convert the file, for example with iconv -f latin1 -t utf-8.")
    if not lines:
        raise InputError(f"{file} is empty; expected a text a line.")
    lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
    return [Line(line, f"{file}, line {number}") for number, line in enumerate(lines, 1)]
