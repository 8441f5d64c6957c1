"""One training from options to results."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from fenchel.arguments import checked
from fenchel.data.randomness import seeded_generator
from fenchel.errors import ConvergenceError, CostWarning, FenchelError, InputError
from fenchel.runs import require_packages
from fenchel.runs.lock import claimed
from fenchel.runs.manifest import differences
from fenchel.runs.pace import SavingPace
from fenchel.storage import check_writable, removed_if_empty
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from fenchel.train.figure import write_curves
from fenchel.train.files import digests_of, write_files
from fenchel.train.folder import TRAINING, agreed_state, discard, refuse_out_of_step
from fenchel.train.loop import Loop
from fenchel.train.observer import SilentObserver, TrainObserver
from fenchel.train.optimiser import adamw
from fenchel.train.options import LoopOptions
from fenchel.train.precision import check_precision, chosen_precision
from fenchel.train.preparation import prepared
from fenchel.train.registry import task_of
from fenchel.train.result import RESULTS_FILE, TrainResult
from fenchel.train.selected import SelectedWeights
from fenchel.train.state import TrainState
from fenchel.train.task import AnyTask
from fenchel.train.workers import Workers, joined_workers

__all__ = ["train"]

_BYTES_PER_PARAMETER = 12


def train(
    options: LoopOptions,
    directory: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    observer: TrainObserver | None = None,
    device: str | None = None,
    checkpoint_seconds: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
    data: Any = None,
) -> TrainResult:
    """Train a model and write what came of it.

    ``directory`` receives ``checkpoint.safetensors`` (weights, optimiser and state), ``results.json`` (after every
    epoch) and ``curves.png``. On one process of a CPU, a training that was killed at any moment and is resumed
    ends with the same weights, bit for bit, as one that was not. Under ``torchrun`` every process calls this function:
    gradients are averaged, the batches are the same ones, and the first process writes.

    Args:
        options: What to train on what, and how: ``TrainOptions`` for images, ``TextOptions`` for sentences, or those of
            another task that is registered.
        directory: Folder for the results; made if needed.
        resume: Go on with the training that the folder holds, if it holds one; a finished one is kept.
        overwrite: Start anew, whatever training the folder holds.
        observer: Is told how the training goes. Default: nobody is.
        device: Where to compute, such as ``cuda:1``. Default: a GPU if there is one.
        checkpoint_seconds: Save before the first step, at most once in so many seconds, and at the end.
        stop: Asked after every step (on accelerators, after some); where it says yes in any process, all of them end
            at that step with a ``KeyboardInterrupt``, after it has been saved.
        data: What to train and to test on, in place of what ``options.data`` names: a pair of ``ImageDataset`` or of
            ``Sentences``.

    Returns:
        What came of it.

    Raises:
        InputError: If an option or the data cannot be used, or the folder holds another training, or one that is not
            to be resumed, or a damaged checkpoint.
        ConvergenceError: If the loss stops being a finite number; the last good checkpoint is kept.
        OutputError: If something cannot be written; what was written before is intact.
        MissingExtraError: If safetensors or matplotlib is not installed.
        KeyboardInterrupt: If ``stop`` said so.
    """
    require_packages("train", "safetensors", "matplotlib", "numpy")
    checkpoint_seconds, device = checked("checkpoint_seconds", checkpoint_seconds), checked("device", device)
    resume, overwrite = checked("resume", resume), checked("overwrite", overwrite)
    observer, stop = checked("train_observer", observer, name="observer"), checked("stop", stop)
    task = task_of(options)
    directory = Path(checked("folder", directory, name="directory"))
    options = options.resolved()
    with (
        removed_if_empty(directory),
        joined_workers(device) as workers,
        _claimed_for_all(directory, workers),
        _own_random_numbers(workers.device),
        warnings.catch_warnings(),
    ):
        TRAINING.refuse_occupied(directory, resume=resume, overwrite=overwrite)
        warnings.simplefilter("ignore", CostWarning)
        given = task.read(options.data) if data is None else data
        session = _Session(task, options, directory, workers, given, checkpoint_seconds)
        return session.run(observer or SilentObserver(), stop, resume=resume)


@contextlib.contextmanager
def _claimed_for_all(directory: Path, workers: Workers) -> Iterator[None]:
    """The first process claims the folder; what is wrong with that ends every process."""
    failure: FenchelError | None = None
    with contextlib.ExitStack() as claim:
        if workers.leads:
            try:
                claim.enter_context(claimed(directory, extra="train"))
            except FenchelError as error:
                failure = error
        if not workers.said_by_leader(failure is None):
            raise failure or InputError("the first process could not begin; its message says why.")
        yield


class _Session:
    """From loaded data to results."""

    def __init__(
        self,
        task: type[AnyTask],
        options: LoopOptions,
        directory: Path,
        workers: Workers,
        data: Any,
        checkpoint_seconds: float,
    ) -> None:
        self._precision = chosen_precision(options.precision, workers.device)
        self._options = dataclasses.replace(options, precision=self._precision)
        self._directory, self._workers = directory, workers
        self._checkpoint_seconds = checkpoint_seconds
        self._task = prepared(task, self._options, data, workers)
        self._configuration = {
            **{name: value for name, value in self._options.to_json().items() if name != "data"},
            **self._task.fingerprints(),
        }
        torch.manual_seed(seeded_generator("weights", options.seed).initial_seed())
        self._model = self._task.model().to(workers.device)
        self._optimiser = adamw(self._model, options.learning_rate, options.weight_decay or 0.0)
        self._state = TrainState()
        self._files = self._task.files()
        self._selected = SelectedWeights(self._task.selection(), f"{self._task.watched}_{self._task.selects}")
        self._drawing = SavingPace(checkpoint_seconds)

    def run(self, observer: TrainObserver, stop: Callable[[], bool], *, resume: bool) -> TrainResult:
        goes_on = resume and (self._directory / CHECKPOINT_FILE).exists()
        if goes_on:
            self._restore()
        agreed_state(self._state, self._workers, self._directory)
        refuse_out_of_step(self._state, self._task.steps_per_epoch, self._directory)
        if len(self._state.epochs) == self._options.epochs:
            return self._kept()
        check_precision(self._precision, self._model, self._workers.device)
        if self._workers.leads:
            check_writable(self._directory, 2 * _BYTES_PER_PARAMETER * self._parameters())
        self._state.sessions.append({"step": self._state.step, **_machine(self._workers, self._precision)})
        if self._workers.leads and not goes_on:
            discard(self._directory)
            self._save()  # before any results, so that whatever is there can be gone on with
        if self._workers.leads:
            write_files(self._directory, self._files)
        loop = Loop(
            task=self._task,
            precision=self._precision,
            directory=self._directory,
            model=self._model,
            optimiser=self._optimiser,
            state=self._state,
            selected=self._selected,
            observer=observer,
            save=self._save,
            report=self._report,
            checkpoint_seconds=self._checkpoint_seconds,
            stop=stop,
        )
        if self._workers.leads:
            observer.started(self._description())
        try:
            loop.run()
        finally:
            if self._workers.leads:
                observer.finished()
        return self._result()

    def _restore(self) -> None:
        checkpoint = Checkpoint.read(self._directory)
        there = {"task": checkpoint.task, **checkpoint.configuration}
        asked = {"task": self._task.name, **self._configuration}
        TRAINING.refuse_other(self._directory, differences(there, asked))
        checkpoint.restore(self._model, self._optimiser)
        self._selected.restore(checkpoint.selected, checkpoint.state.epochs)
        self._state = checkpoint.state

    def _kept(self) -> TrainResult:
        """A finished training, whose last files are written if it was killed before they were."""
        result = self._result()
        if self._workers.leads:
            written = (self._directory / RESULTS_FILE).exists()
            complete = written and TrainResult.read(self._directory).finished
            if not complete or not (self._directory / "curves.png").exists():
                self._report()
            write_files(self._directory, self._files)
        return result

    def _save(self) -> None:
        checkpoint = Checkpoint.of(
            self._task.name,
            self._configuration,
            self._description()["model"],
            self._state,
            self._model,
            self._optimiser,
            self._selected.tensors,
        )
        if name := checkpoint.first_not_finite():
            raise ConvergenceError(
                f"{name.partition('/')[2]} is no longer finite at step {self._state.step} (the model's weights or the "
                f"optimiser's state). The last checkpoint in {self._directory} is from before and intact. Lower "
                "--learning-rate, raise --warmup-fraction or set --gradient-clip 1, and start anew with --overwrite."
            )
        checkpoint.write(self._directory)

    def _report(self) -> None:
        result = self._result()
        if result.finished or self._drawing.due:
            write_curves(result, self._directory)
            self._drawing.saved()
        result.write(self._directory)

    def _result(self) -> TrainResult:
        return TrainResult.of(self._options, self._description(), self._state)

    def _parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._model.parameters())

    def _description(self) -> dict[str, Any]:
        sessions = self._state.sessions or [_machine(self._workers, self._precision)]
        described = self._task.described(self._model)
        return {
            **described,
            "model": {
                **described["model"],
                "parameters": self._parameters(),
                **({"files": digests_of(self._files)} if self._files else {}),
            },
            "machine": {name: value for name, value in sessions[-1].items() if name != "step"},
        }


def _machine(workers: Workers, precision: str) -> dict[str, Any]:
    from fenchel.version import __version__

    cuda = workers.device.type == "cuda"
    return {
        "device": str(workers.device),
        "device_name": torch.cuda.get_device_name(workers.device) if cuda else platform.machine(),
        "processes": workers.count,
        "threads": torch.get_num_threads(),
        "precision": precision,
        "versions": {"fenchel": __version__, "torch": torch.__version__, "python": platform.python_version()},
    }


@contextlib.contextmanager
def _own_random_numbers(device: torch.device) -> Iterator[None]:
    """Leaves torch's global generators as they were."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
