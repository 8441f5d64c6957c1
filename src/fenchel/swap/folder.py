"""The folder of a swap: what it holds, and what an earlier session left there to go on from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fenchel.io.folder import RunKind, Saved, differences
from fenchel.swap.report import FILES
from fenchel.swap.state import STATE_FILE, SwapState

__all__ = ["SWAP", "open_state"]

# What is known at the end only, or may be elsewhere when it goes on.
_FREE_TO_RESUME = frozenset({"documents", "tokens", "stacks", "python", "texts", "pairs"})


def _saved(directory: Path) -> Saved:
    state = SwapState.read(directory)
    counts = {"document": state.documents, "token": state.tokens}
    return Saved(str(state.manifest.get("model")), counts, state.finished)


SWAP = RunKind("swap", STATE_FILE, FILES, _saved)
"""What a swap leaves in its folder."""


def open_state(directory: Path, manifest: Mapping[str, Any], arms: int, *, overwrite: bool) -> SwapState:
    """What a swap starts from in a folder that ``SWAP.refuse_occupied`` let pass: nothing, or what was saved.

    Args:
        directory: The folder.
        manifest: The swap that is wanted.
        arms: How many arms it has.
        overwrite: Start anew whatever is there.

    Raises:
        InputError: If the folder holds another swap, or a damaged one.
    """
    if overwrite or not (directory / STATE_FILE).exists():
        return SwapState(dict(manifest))
    state = SwapState.read(directory)
    there = {**state.manifest, "number of arms": arms if state.arms is None else state.arms}
    asked = {**manifest, "number of arms": arms}
    SWAP.refuse_other(directory, differences(there, asked, but=_FREE_TO_RESUME))
    return state
