"""Notebooks as pages of the site: their text, their code, and what running it gave."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

__all__ = ["as_page", "notebook_pages"]


def notebook_pages(folder: Path) -> dict[str, str]:
    """A page for each notebook, by its path on the site; the notebook itself lies beside it.

    Args:
        folder: Of ``.ipynb`` files with their outputs.
    """
    return {
        f"notebooks/{path.stem}.md": as_page(json.loads(path.read_text(encoding="utf-8")), path.name)
        for path in sorted(folder.glob("*.ipynb"))
    }


def as_page(notebook: dict[str, Any], name: str) -> str:
    """A notebook of version 4 in Markdown.

    Args:
        notebook: As JSON.
        name: Of its file, which a link offers.

    Example:
        >>> cell = {"cell_type": "code", "source": "1 + 1", "outputs": [{"data": {"text/plain": "2"}}]}
        >>> print(as_page({"cells": [cell]}, "sum.ipynb").split("</p>")[0])
        <p class="notebook"><a href="sum.ipynb" download>This page is a notebook: sum.ipynb</a>
    """
    pieces = [f'<p class="notebook"><a href="{name}" download>This page is a notebook: {name}</a></p>']
    for cell in notebook["cells"]:
        source = _text(cell["source"])
        if cell["cell_type"] == "markdown":
            pieces.append(source)
        elif cell["cell_type"] == "code":
            pieces.append(f"```python\n{source}\n```")
            pieces += [_output(output) for output in cell.get("outputs", [])]
    title = next((number for number, piece in enumerate(pieces) if piece.startswith("# ")), None)
    if title is not None:
        # A page begins with its heading.
        pieces.insert(0, pieces.pop(title))
    return "\n\n".join(pieces) + "\n"


def _output(output: dict[str, Any]) -> str:
    data = output.get("data", {})
    if "text/html" in data:
        # A class keeps the theme from drawing it as a table of the text.
        shown = _text(data["text/html"]).replace("<table ", '<table class="kept" ')
    else:
        shown = f"<pre><code>{escape(_text(output.get('text', data.get('text/plain', ''))).rstrip())}</code></pre>"
    return f'<div class="output">{shown}</div>'


def _text(lines: str | list[str]) -> str:
    return lines if isinstance(lines, str) else "".join(lines)
