"""The folder of a training: whether one may be started in it, and whether all processes see the same one."""

from __future__ import annotations

from pathlib import Path

import torch

from fenchel.errors import InputError
from fenchel.storage import guarded_writing
from fenchel.train.checkpoint import CHECKPOINT_FILE
from fenchel.train.figure import CURVES_FILE
from fenchel.train.result import RESULTS_FILE, TrainResult
from fenchel.train.state import TrainState
from fenchel.train.workers import Workers

__all__ = ["agreed_state", "discard", "refuse_occupied", "refuse_out_of_step"]


def refuse_occupied(directory: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds a training, unless it is said what to do with that.

    Results that are not finished and have no checkpoint are no training to go on with: ``resume`` begins anew.

    Raises:
        InputError: If the folder holds a training and neither is wanted, or both are.
    """
    if resume and overwrite:
        raise InputError(
            "--resume and --overwrite contradict each other: the first keeps what the second discards."
        )
    if overwrite:
        return
    checkpoint = (directory / CHECKPOINT_FILE).exists()
    results = (directory / RESULTS_FILE).exists()
    if resume and results and not checkpoint and TrainResult.read(directory).finished:
        raise InputError(
            f"{directory} holds the results of a finished training without its checkpoint ({CHECKPOINT_FILE}). Start "
            "anew with --overwrite, or choose another folder."
        )
    if not resume and (checkpoint or results):
        raise InputError(
            f"{directory} holds a training. Go on with it by --resume, start anew with --overwrite, or choose another "
            "folder."
        )


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
