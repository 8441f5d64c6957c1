"""Tests of behaviour that stays while the inside is rebuilt, with the SHA-256 of each: tests/frozen.txt.

A frozen test changes only where a name moves. ``python -m tests.frozen`` then writes the digests again, and the commit
says which file changed and why.
"""

import hashlib
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("frozen.txt")


def digest(path: Path) -> str:
    """SHA-256 of a file's text, whatever its line endings."""
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()


def listed() -> dict[str, str]:
    """Path, from the root of the project, and digest of each frozen test."""
    lines = [line.split() for line in LIST.read_text().splitlines()]
    return {path: recorded for recorded, path in lines}


if __name__ == "__main__":
    LIST.write_text("".join(f"{digest(ROOT / path)}  {path}\n" for path in sorted(listed())))
