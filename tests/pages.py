"""Pages of the documentation, whose Python blocks run in tests."""

import re
from pathlib import Path
from typing import Any

__all__ = ["page", "python_blocks", "run_blocks"]

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    """The text of a page, given its path in the repository."""
    return (ROOT / name).read_text()


def python_blocks(name: str) -> list[str]:
    """Its Python blocks, in order."""
    return re.findall(r"```python\n(.*?)```", page(name), flags=re.DOTALL)


def run_blocks(name: str) -> dict[str, Any]:
    """Run its Python blocks one after the other, and return the names that they bind."""
    names: dict[str, Any] = {}
    for block in python_blocks(name):
        exec(compile(block, name, "exec"), names)  # noqa: S102 - our own pages
    return names
