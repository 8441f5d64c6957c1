"""The loop: steps, tests and checkpoints, from wherever the state is to the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fenchel.data.randomness import seeded_generator
from fenchel.errors import ConvergenceError
from fenchel.runs.pace import SavingPace
from fenchel.train.evaluation import Evaluation
from fenchel.train.observer import TrainObserver
from fenchel.train.precision import autocast, in_float32
from fenchel.train.progress import Progress
from fenchel.train.schedule import learning_rate_factor
from fenchel.train.selected import SelectedWeights
from fenchel.train.state import EpochSums, TrainState
from fenchel.train.task import AnyTask, Batch

__all__ = ["Loop"]

_STEPS_BETWEEN_LOOKS = {"cpu": 1}
_STEPS_BETWEEN_LOOKS_ELSEWHERE = 20


@dataclass
class Loop:
    """Trains a model.

    Attributes:
        task: What is trained, and by whom.
        precision: ``float32`` or ``bfloat16``.
        directory: Where the training is saved, for messages.
        model: On its device.
        optimiser: Over its parameters.
        state: Where the training is; changed in place.
        selected: The weights to keep, where they are chosen; changed in place.
        observer: Is told how it goes.
        save: Writes a checkpoint; called in the first process only.
        report: Writes the results so far; called in the first process only.
        checkpoint_seconds: Save at most once in so many seconds, and at the end.
        stop: Whether somebody wants the training to end; asked in every process.
    """

    task: AnyTask
    precision: str
    directory: Path
    model: nn.Module
    optimiser: torch.optim.Optimizer
    state: TrainState
    selected: SelectedWeights
    observer: TrainObserver
    save: Callable[[], None]
    report: Callable[[], None]
    checkpoint_seconds: float
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self.workers, self.options = self.task.workers, self.task.options
        self._evaluation = Evaluation(self.task)
        self._shared = self.workers.share(self.model)
        self._steps_per_epoch = self.task.steps_per_epoch
        self._steps = self.options.epochs * self._steps_per_epoch
        self._looks = _STEPS_BETWEEN_LOOKS.get(self.workers.device.type, _STEPS_BETWEEN_LOOKS_ELSEWHERE)
        # What has been measured since the last look, how many examples there were, and who wants to stop.
        self._unseen = torch.zeros(
            len(self.task.trained) + 2, dtype=torch.float64, device=self.workers.device
        )
        self._pace = SavingPace(self.checkpoint_seconds)
        self._session_seconds, self._session_count, self._session_begin = 0.0, 0.0, self.state.step
        self._tests, self._test_seconds = 0, 0.0
        self._stopping = False

    def run(self) -> None:
        """Trains to the end."""
        self.model.train()
        first, done = divmod(self.state.step, self._steps_per_epoch)
        for epoch in range(first, self.options.epochs):
            self._epoch(epoch, done)
            done = 0

    def _epoch(self, epoch: int, done: int) -> None:
        begin = time.perf_counter()
        for batch in self.task.batches(epoch, done):
            self._step(batch)
            last = self.state.step % self._steps_per_epoch == 0
            if last or self.state.step % self._looks == 0:
                self._look(begin)
                if not last:
                    self._tell()
                    self._stop_if_asked()
                    self._save_if_due()
                begin = time.perf_counter()
        self._finish_epoch(epoch)
        if epoch + 1 < self.options.epochs:
            self._stop_if_asked()

    def _step(self, batch: Batch) -> None:
        step, task = self.state.step, self.task
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate(step)
        torch.manual_seed(
            seeded_generator("dropout", self.options.seed, step, self.workers.rank).initial_seed()
        )
        with autocast(self.precision, self.workers.device):
            predicted = task.predicted(self._shared, batch)
        loss = task.loss(in_float32(predicted), batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.mean.backward()
        if self.options.gradient_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.gradient_clip)
        self.optimiser.step()
        for place, name in enumerate(task.trained):
            self._unseen[place] += loss.sums[name]
        self._unseen[-2] += batch.count
        self.state.step += 1

    def _learning_rate(self, step: int) -> float:
        factor = learning_rate_factor(step, self._steps, self.options.warmup_fraction or 0.0)
        return self.options.learning_rate * factor

    def _look(self, begin: float) -> None:
        """Adds to the epoch's sums what all processes have done since the last look, and asks whether to stop."""
        self._unseen[-1] = float(self.stop())
        *values, count, stopping = self.workers.sum(self._unseen).tolist()
        self._unseen.zero_()
        self._stopping = stopping > 0
        seconds = time.perf_counter() - begin
        measured = dict(zip(self.task.trained, values, strict=True))
        self._refuse_unless_finite(measured["loss"] / count)
        self.state.sums.add(measured, count, seconds)
        self._session_seconds += seconds
        self._session_count += count

    def _refuse_unless_finite(self, loss: float) -> None:
        if -float("inf") < loss < float("inf"):
            return
        step = self.state.step
        raise ConvergenceError(
            f"the training loss became {loss} at step {step} of {self._steps} (learning rate "
            f"{self._learning_rate(step - 1):.3g}). The last checkpoint in {self.directory} is from before and intact. "
            "Lower --learning-rate, raise --warmup-fraction or set --gradient-clip 1, and start anew with --overwrite."
        )

    def _tell(self) -> None:
        if not self.workers.leads:
            return
        try:
            self.observer.advanced(self._progress(self.state.sums, self.state.step))
        except KeyboardInterrupt:
            self.save()
            raise

    def _stop_if_asked(self) -> None:
        """Ends every process at the same step, once the first one has saved it."""
        if not self._stopping:
            return
        if self.workers.leads:
            self.save()
        self.workers.said_by_leader(True)
        raise KeyboardInterrupt

    def _save_if_due(self) -> None:
        if self.workers.leads and self._pace.due:
            self.save()
            self._pace.saved()

    def _finish_epoch(self, epoch: int) -> None:
        state, sums, number = self.state, self.state.sums, epoch + 1
        last = number == self.options.epochs
        record: dict[str, Any] = {
            "epoch": number,
            "step": state.step,
            "learning_rate": self._learning_rate(state.step - 1),
            **{f"train_{name}": mean for name, mean in sums.means().items()},
            **self._evaluated(number),
            "seconds": sums.seconds,
            f"{self.task.unit}_per_second": sums.count / sums.seconds,
        }
        state.epochs.append(record)
        state.sums = EpochSums()
        if not self.workers.leads:
            return
        if last or self._pace.due:
            self.save()
            self._pace.saved()
        self.report()
        self.observer.epoch_finished(record, self._progress(sums, state.step))

    def _evaluated(self, number: int) -> dict[str, float | None]:
        """Every metric of every split after an epoch, None for those whose turn it is not."""
        task, last, begin = self.task, number == self.options.epochs, time.perf_counter()
        due = last or number % self.options.evaluate_every == 0
        found: dict[str, float | None] = {}
        for split in task.splits():
            values: dict[str, float] = {}
            if split == task.watched and due:
                values = self._evaluation(self.model, split)
                if task.selects is not None:
                    self.selected.offer(self.model, values[task.selects])
            elif last:
                with self.selected.in_place(self.model):
                    values = self._evaluation(self.model, split)
            measured = (*task.metrics, *(task.only_tested if split == "test" else ()))
            found.update({f"{split}_{metric.name}": values.get(metric.name) for metric in measured})
        if due:
            seconds = time.perf_counter() - begin
            self.state.test_seconds += seconds
            self._tests, self._test_seconds = self._tests + 1, self._test_seconds + seconds
        return found

    def _progress(self, sums: EpochSums, step: int) -> Progress:
        seconds_left = None
        if step > self._session_begin:
            seconds_left = self._session_seconds / (step - self._session_begin) * (self._steps - step)
            seconds_left += self._seconds_of_tests_left()
        return Progress(
            epoch=(step - 1) // self._steps_per_epoch + 1,
            epochs=self.options.epochs,
            step=step,
            steps=self._steps,
            measures=sums.means(),
            unit=self.task.unit,
            per_second=self._session_count / self._session_seconds if self._session_seconds else 0.0,
            seconds_left=seconds_left,
        )

    def _seconds_of_tests_left(self) -> float:
        if not self._tests:
            return 0.0
        done = len(self.state.epochs)
        coming = {*range(done + 1, self.options.epochs + 1)}
        tests = sum(
            number == self.options.epochs or number % self.options.evaluate_every == 0 for number in coming
        )
        return tests * self._test_seconds / self._tests
