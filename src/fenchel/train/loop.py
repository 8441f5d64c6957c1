"""The loop: steps, tests and checkpoints, from wherever the state is to the end."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from fenchel.data.randomness import seeded_generator
from fenchel.errors import ConvergenceError
from fenchel.train.evaluation import Evaluation
from fenchel.train.feed import Batch, Feed
from fenchel.train.observer import TrainObserver
from fenchel.train.options import TrainOptions
from fenchel.train.precision import autocast
from fenchel.train.progress import Progress
from fenchel.train.schedule import learning_rate_factor
from fenchel.train.state import EpochSums, TrainState
from fenchel.train.workers import Workers

__all__ = ["Loop"]

_STEPS_BETWEEN_LOOKS = {"cpu": 1}
_STEPS_BETWEEN_LOOKS_ELSEWHERE = 20


@dataclass
class Loop:
    """Trains a model.

    Attributes:
        options: Resolved.
        precision: ``float32`` or ``bfloat16``.
        directory: Where the training is saved, for messages.
        model: On its device.
        optimiser: Over its parameters.
        feed: Makes batches.
        evaluation: Tests.
        workers: The processes.
        state: Where the training is; changed in place.
        observer: Is told how it goes.
        save: Writes a checkpoint; called in the first process only.
        report: Writes the results so far; called in the first process only.
        checkpoint_seconds: Save at most once in so many seconds, and at the end.
        stop: Whether somebody wants the training to end; asked in every process.
    """

    options: TrainOptions
    precision: str
    directory: Path
    model: nn.Module
    optimiser: torch.optim.Optimizer
    feed: Feed
    evaluation: Evaluation
    workers: Workers
    state: TrainState
    observer: TrainObserver
    save: Callable[[], None]
    report: Callable[[], None]
    checkpoint_seconds: float
    stop: Callable[[], bool]

    def __post_init__(self) -> None:
        self._shared = self.workers.share(self.model)
        self._steps = self.options.epochs * self.feed.steps_per_epoch
        self._looks = _STEPS_BETWEEN_LOOKS.get(self.workers.device.type, _STEPS_BETWEEN_LOOKS_ELSEWHERE)
        self._unseen = torch.zeros(4, dtype=torch.float64, device=self.workers.device)
        self._saved_at = time.monotonic()
        self._session_seconds, self._session_images, self._session_begin = 0.0, 0.0, self.state.step
        self._tests, self._test_seconds = 0, 0.0
        self._stopping = False

    def run(self) -> None:
        """Trains to the end."""
        self.model.train()
        first, done = divmod(self.state.step, self.feed.steps_per_epoch)
        for epoch in range(first, self.options.epochs):
            self._epoch(epoch, done)
            done = 0

    def _epoch(self, epoch: int, done: int) -> None:
        begin = time.perf_counter()
        for indices in itertools.islice(self.feed.indices(epoch), done, None):
            self._step(indices)
            last = self.state.step % self.feed.steps_per_epoch == 0
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

    def _step(self, indices: Tensor) -> None:
        step, options = self.state.step, self.options
        for group in self.optimiser.param_groups:
            group["lr"] = self._learning_rate(step)
        batch = self.feed.batch(indices, step)
        torch.manual_seed(seeded_generator("dropout", options.seed, step, self.workers.rank).initial_seed())
        with autocast(self.precision, self.workers.device):
            logits = self._shared(batch.images, partners=batch.partners)
        logits = logits.float()
        loss = self._loss(logits, batch)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if options.gradient_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), options.gradient_clip)
        self.optimiser.step()
        count = len(indices)
        self._unseen[0] += loss.detach() * count
        self._unseen[1] += (logits.detach().argmax(-1) == batch.labels).sum()
        self._unseen[2] += count
        self.state.step += 1

    def _loss(self, logits: Tensor, batch: Batch) -> Tensor:
        smoothing = self.options.label_smoothing or 0.0
        loss = nn.functional.cross_entropy(logits, batch.labels, label_smoothing=smoothing)
        if batch.other_labels is None:
            return loss
        other = nn.functional.cross_entropy(logits, batch.other_labels, label_smoothing=smoothing)
        return batch.share * loss + (1.0 - batch.share) * other

    def _learning_rate(self, step: int) -> float:
        factor = learning_rate_factor(step, self._steps, self.options.warmup_fraction or 0.0)
        return self.options.learning_rate * factor

    def _look(self, begin: float) -> None:
        """Adds to the epoch's sums what all processes have done since the last look, and asks whether to stop."""
        self._unseen[3] = float(self.stop())
        loss, correct, images, stopping = self.workers.sum(self._unseen).tolist()
        self._unseen.zero_()
        self._stopping = stopping > 0
        seconds = time.perf_counter() - begin
        sums = self.state.sums
        self._refuse_unless_finite(loss / images)
        sums.loss += loss
        sums.correct += correct
        sums.images += images
        sums.seconds += seconds
        self._session_seconds += seconds
        self._session_images += images

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
        due = time.monotonic() - self._saved_at >= self.checkpoint_seconds
        if self.workers.leads and due:
            self.save()
            self._saved_at = time.monotonic()

    def _finish_epoch(self, epoch: int) -> None:
        state, sums, number = self.state, self.state.sums, epoch + 1
        last = number == self.options.epochs
        tested: tuple[float | None, float | None] = (None, None)
        if last or number % self.options.evaluate_every == 0:
            begin = time.perf_counter()
            tested = self.evaluation(self.model)
            seconds = time.perf_counter() - begin
            state.test_seconds += seconds
            self._tests, self._test_seconds = self._tests + 1, self._test_seconds + seconds
        record = {
            "epoch": number,
            "step": state.step,
            "learning_rate": self._learning_rate(state.step - 1),
            "train_loss": sums.loss / sums.images,
            "train_accuracy": sums.correct / sums.images,
            "test_loss": tested[0],
            "test_accuracy": tested[1],
            "seconds": sums.seconds,
            "images_per_second": sums.images / sums.seconds,
        }
        state.epochs.append(record)
        state.sums = EpochSums()
        if not self.workers.leads:
            return
        if last or time.monotonic() - self._saved_at >= self.checkpoint_seconds:
            self.save()
            self._saved_at = time.monotonic()
        self.report()
        self.observer.epoch_finished(record, self._progress(sums, state.step))

    def _progress(self, sums: EpochSums, step: int) -> Progress:
        seconds_left = None
        if step > self._session_begin:
            seconds_left = self._session_seconds / (step - self._session_begin) * (self._steps - step)
            seconds_left += self._seconds_of_tests_left()
        return Progress(
            epoch=(step - 1) // self.feed.steps_per_epoch + 1,
            epochs=self.options.epochs,
            step=step,
            steps=self._steps,
            loss=sums.loss / sums.images,
            accuracy=sums.correct / sums.images,
            images_per_second=self._session_images / self._session_seconds if self._session_seconds else 0.0,
            seconds_left=seconds_left,
            test_accuracy=self.state.test_accuracy,
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
