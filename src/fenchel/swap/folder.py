"""The folder of a swap: whether one may be started in it, and what an earlier session left there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fenchel.auditing.manifest import differences
from fenchel.errors import InputError
from fenchel.swap.report import FILES
from fenchel.swap.state import STATE_FILE, SwapState

__all__ = ["open_state", "refuse_occupied"]

# What is known at the end only, or may be elsewhere when it goes on.
_FREE_TO_RESUME = frozenset({"documents", "tokens", "stacks", "python", "texts", "pairs"})


def refuse_occupied(directory: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds a swap, unless it is said what to do with that.

    Raises:
        InputError: If the folder holds results and neither is wanted, or both are.
    """
    if resume and overwrite:
        raise InputError(
            "--resume and --overwrite contradict each other: the first keeps what the second discards."
        )
    if overwrite or resume:
        return
    if (directory / STATE_FILE).exists():
        state = SwapState.read(directory)
        end = "finished" if state.finished else "interrupted"
        raise InputError(
            f"{directory} holds a swap of {state.manifest.get('model')}, {end} after {state.documents} documents and "
            f"{state.tokens} tokens. Keep it and do what is left with --resume, start anew with --overwrite, or choose "
            "another folder."
        )
    if any((directory / name).exists() for name in FILES):
        raise InputError(
            f"{directory} holds results without the state that they came from. Replace them with --overwrite, or "
            "choose another folder."
        )


def open_state(directory: Path, manifest: Mapping[str, Any], arms: int, *, overwrite: bool) -> SwapState:
    """What a swap starts from in a folder that ``refuse_occupied`` let pass: nothing, or what was saved.

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
    differing = differences(manifest, state.manifest, but=_FREE_TO_RESUME)
    if state.arms not in (None, arms):
        differing.append(f"number of arms: {arms} and {state.arms}")
    if differing:
        raise InputError(
            f"{directory} holds another swap than the one asked for; they differ in {'; '.join(differing)}. Give the "
            "same options, start anew with --overwrite, or choose another folder."
        )
    return state
