"""Rows of a file whose columns are parted by tabs and never quoted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fenchel.arguments import shown
from fenchel.data.text_folder import TextFolder
from fenchel.errors import InputError

__all__ = ["rows_of"]


def rows_of(place: TextFolder, path: Path, columns: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """The rows of a file under its header, with their line numbers; a quotation mark is a sign like others.

    Args:
        place: Reads it.
        path: The file.
        columns: What its header has to be.

    Raises:
        InputError: If it has another header, a row of another number of columns, or no rows.
    """
    lines = place.lines(path)
    header = "\t".join(columns)
    if not lines or lines[0] != header:
        raise InputError(
            f"{path}, line 1 is {shown(lines[0] if lines else '')}; expected the header {', '.join(columns)}, "
            "parted by tabs."
        )
    if not any(line.strip() for line in lines[1:]):
        raise InputError(f"{path} holds no rows under its header. Fetch it again from {place.page}.")
    for number, line in enumerate(lines[1:], 2):
        if not line.strip():
            continue
        row = line.split("\t")
        if len(row) != len(columns):
            raise InputError(
                f"{path}, line {number} has {len(row)} columns; expected {len(columns)}, parted by tabs: "
                f"{', '.join(columns)}."
            )
        yield number, row
