"""The folder of a training: what it holds, and whether all processes see the same one."""

from __future__ import annotations

from pathlib import Path

import torch

from fenchel.errors import InputError
from fenchel.runs.occupied import RunKind, Saved
from fenchel.storage import guarded_writing
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from fenchel.train.figure import CURVES_FILE
from fenchel.train.result import RESULTS_FILE
from fenchel.train.state import TrainState
from fenchel.train.workers import Workers

__all__ = ["TRAINING", "agreed_state", "discard", "refuse_out_of_step"]


def _saved(directory: Path) -> Saved:
    checkpoint = Checkpoint.read(directory)
    epochs = len(checkpoint.state.epochs)
    counts = {"step": checkpoint.state.step, "whole epoch": epochs}
    return Saved(str(checkpoint.model["name"]), counts, epochs == checkpoint.configuration.get("epochs"))


TRAINING = RunKind("training", CHECKPOINT_FILE, (RESULTS_FILE,), _saved)
"""What a training leaves in its folder."""


def discard(directory: Path) -> None:
    """Removes the files of an earlier training, so that none of them is taken for the one that begins.

    Raises:
        OutputError: If the folder does not allow it.
    """
    with guarded_writing(directory):
        for name in (CHECKPOINT_FILE, RESULTS_FILE, CURVES_FILE):
            (directory / name).unlink(missing_ok=True)


def agreed_state(state: TrainState, workers: Workers, directory: Path) -> None:
    """Refuse to begin where processes are at different steps.

    Raises:
        InputError: In every process, if one read another checkpoint than the rest.
    """
    steps = torch.zeros(workers.count, dtype=torch.float64, device=workers.device)
    steps[workers.rank] = state.step
    seen = workers.sum(steps)
    if int(seen.min()) != int(seen.max()):
        raise InputError(
            f"the processes found different checkpoints in {directory}: steps {seen.long().tolist()}. The folder must "
            "be one that all machines share."
        )


def refuse_out_of_step(state: TrainState, steps_per_epoch: int, directory: Path) -> None:
    """Refuse a state whose step is not in, or at the end of, the epoch after those that it has finished.

    Raises:
        InputError: If it is not.
    """
    first = len(state.epochs) * steps_per_epoch
    if not first <= state.step <= first + steps_per_epoch:
        raise InputError(
            f"{directory / CHECKPOINT_FILE} is at step {state.step} after {len(state.epochs)} epochs of "
            f"{steps_per_epoch} steps; expected a step from {first} to {first + steps_per_epoch}. Start anew with "
            "--overwrite, or choose another folder."
        )
