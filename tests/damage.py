"""Damage to files of state: what a reader has to notice, whatever byte or field it is."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fenchel.errors import InputError

Change = Callable[[Any], None]
"""What changes a record that is read from JSON."""


def field(*path: str | int, to: Any) -> Change:
    """Sets a field of a record to another value; to KeyError, removes it."""

    def apply(record: Any) -> None:
        for name in path[:-1]:
            record = record[name]
        if to is KeyError:
            del record[path[-1]]
        else:
            record[path[-1]] = to

    return apply


def ill_formed(record: Any, *optional: str, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str, Change]]:
    """Each field of a record, but for optional ones, removed; and each of another type; of lists the first entry."""
    entries = record.items() if isinstance(record, dict) else enumerate(record[:1])
    for name, value in entries:
        place = (*path, name)
        if isinstance(name, str) and name not in optional:
            yield f"no {place}", field(*place, to=KeyError)
        yield f"another {place}", field(*place, to={"another": 1})
        if isinstance(value, dict | list):
            yield from ill_formed(value, *optional, path=place)


def damaged_contents(content: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """The content with a byte changed, at seeded places and at both ends; cut short; and with more around it."""
    draw = random.Random(seed)  # noqa: S311
    places = [*range(12), len(content) - 1, *(draw.randrange(len(content)) for _ in range(count))]
    for number, place in enumerate(places):
        changed = bytearray(content)
        # Spaces and line ends in turn as well: what leaves the meaning of JSON alone is damage too.
        other = (changed[place] ^ (1 << draw.randrange(8)), draw.randrange(256), 0x20, 0x0A)[number % 4]
        changed[place] = other if other != content[place] else other ^ 0xFF
        yield bytes(changed)
    for length in (0, 1, 7, 8, 9, len(content) // 2, len(content) - 1):
        yield content[:length]
    yield content + b"\0"
    yield content + b"\n"
    yield b"\xef\xbb\xbf" + content


def refuses(path: Path, read: Callable[[], Any]) -> str:
    """What a reader says of a file that it refuses in one line that names it, and leaves as it was."""
    before = path.read_bytes()
    with pytest.raises(InputError) as caught:
        read()
    message = str(caught.value)
    assert str(path) in message
    assert len(message) < 1_000
    assert path.read_bytes() == before
    return message
