"""What an interrupted command says: what is saved, and the command that goes on."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from fenchel.errors import FenchelError
from fenchel.runs.occupied import RunKind

__all__ = ["what_was_saved"]


def what_was_saved(kind: RunKind, folder: Path) -> str:
    """What an interrupted run has left behind, and how to go on.

    Args:
        kind: What was run.
        folder: Where.

    Returns:
        One line.
    """
    try:
        saved = kind.saved(folder)
    except FenchelError:
        saved = None
    if saved is None:
        return "interrupted before anything was saved"
    if saved.finished:
        return f"interrupted; the finished {kind.name} in {folder} is intact"
    done = f"interrupted; {saved.done} are saved in {folder}. "
    if os.environ.get("WORLD_SIZE", "1") != "1":
        return f"{done}Go on with the same torchrun command and --resume"
    arguments = [argument for argument in sys.argv[1:] if argument not in ("--overwrite", "--resume")]
    return f"{done}Go on with: {shlex.join(['fenchel', *arguments, '--resume'])}"
