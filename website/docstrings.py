"""Docstrings as the site's Markdown: their roles become links and formulas, their examples become code."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Docstrings", "as_markdown"]

_MATH = re.compile(r":math:`([^`]*)`")
# A directive, and what is indented below it.
_DISPLAY = re.compile(r"^( *)\.\. math::[ ]*(.*(?:\n(?:\1 +.*|[ ]*(?=\n\1 )))*)", flags=re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(~?)([^`]*)`")
_LITERAL = re.compile(r"``([^`]+)``")
_EXAMPLE = re.compile(r"^(\s*)Example:$", flags=re.MULTILINE)


class Docstrings(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe with every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring of the library in Markdown.

    Args:
        docstring: Google style, with roles of reStructuredText.

    Returns:
        The same with ``$...$`` for formulas, and code for roles.

    Example:
        >>> as_markdown("The score :math:`q^T k` of :class:`~fenchel.nn.MultiheadAttention`.")
        'The score $q^T k$ of `MultiheadAttention`.'
    """
    text = _DISPLAY.sub(
        lambda found: f"{found[1]}$$\n{found[1]}{' '.join(found[2].split())}\n{found[1]}$$", docstring
    )
    text = _MATH.sub(r"$\1$", text)
    text = _ROLE.sub(lambda found: f"`{found[2].split('.')[-1] if found[1] else found[2]}`", text)
    text = _LITERAL.sub(r"`\1`", text)
    return _EXAMPLE.sub(r"\1Examples:", text)
