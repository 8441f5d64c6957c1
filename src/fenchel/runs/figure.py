"""Figures as files: whole or not there, drawn with settings of their own, the same bytes for the same numbers."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fenchel.runs.extras import require_packages
from fenchel.storage import atomic_path, guarded_writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_figure"]

_DOTS_PER_INCH = 160


def write_figure(
    draw: Callable[[], Figure], settings: Mapping[str, Any], paths: Sequence[Path], *, extra: str
) -> None:
    """Draw a figure once and write it in the format of each file's name.

    Args:
        draw: Makes the figure.
        settings: Of matplotlib, while it is drawn and written.
        paths: The files, ``.png`` or ``.svg``; their folders must exist.
        extra: The extra of ``fenchel`` that brings matplotlib for this command.

    Raises:
        MissingExtraError: If matplotlib is not installed.
        OutputError: If a file cannot be written; an earlier one of that name is then intact.
    """
    require_packages(extra, "matplotlib")
    import matplotlib

    chosen: Any = dict(settings)
    with matplotlib.rc_context(chosen):
        figure = draw()
        for path in paths:
            kind = path.suffix.removeprefix(".")
            written = io.BytesIO()
            # A date would make two files of the same numbers differ.
            figure.savefig(
                written,
                format=kind,
                dpi=_DOTS_PER_INCH,
                metadata={"Date": None} if kind == "svg" else None,
            )
            with atomic_path(path) as temporary, guarded_writing(path):
                temporary.write_bytes(written.getvalue())
