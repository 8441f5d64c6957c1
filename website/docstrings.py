"""Docstrings as the site's Markdown: their roles become links and formulas, their examples become code."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

# A directive, and what is indented below it.
_DISPLAY = re.compile(r"^( *)\.\. math::[ ]*(.*(?:\n(?:\1 +.*|[ ]*(?=\n\1 )))*)", flags=re.MULTILINE)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc):`(?:~[\w.]*?(\w+)|([^`]*))`")


class Docstrings(griffe.Extension):
    """Rewrites each docstring once it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe with every module, class, function and attribute."""
        if obj.docstring is None:
            return
        text = obj.docstring.value
        if "**options:" in text and obj.parent is not None and obj.parent.is_module:
            function = getattr(import_module(obj.module.path), obj.name)
            # What fenchel.run_options.takes has written out.
            text = f"{inspect.getdoc(function)}" if hasattr(function, "__options__") else text
        obj.docstring.value = as_markdown(text)


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
    text = re.sub(r":math:`([^`]*)`", r"$\1$", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", _ROLE.sub(r"`\1\2`", text))
    return re.sub(r"(?m)^(\s*)Example:$", r"\1Examples:", text)
