"""What came of a training, as ``results.json`` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fenchel.errors import InputError
from fenchel.storage import Form, read_document, write_document
from fenchel.storage.form import refused
from fenchel.storage.schema import anything, listing, mapping, number, record, text, truth, whole
from fenchel.train.options import LoopOptions
from fenchel.train.registry import task_in, task_of
from fenchel.train.selected import selected_epoch
from fenchel.train.state import EPOCHS_SCHEMA, TrainState, epoch_schema
from fenchel.train.task import AnyTask

__all__ = ["RESULTS_FILE", "RESULTS_FORM", "TrainResult"]

RESULTS_FILE = "results.json"
"""The file's name in a training's folder."""

RESULTS_FORM = Form(
    name="results file of a training",
    version=2,
    schema=record(
        {
            "options": mapping(anything),
            "finished": truth(),
            "model": record({"parameters": whole()}, others=True),
            "data": mapping(anything),
            "machine": record({"device": text(), "versions": mapping(text())}, others=True),
            "notes": listing(text()),
            "epochs": EPOCHS_SCHEMA,
            "train_seconds": number(least=0),
            "test_seconds": number(least=0),
            "sessions": listing(mapping(anything)),
        },
        {"task": text()},
        others=True,
    ),
    advice="Put a good copy of it back, or remove it: --resume then goes on from what else is in its folder.",
)
"""What the file holds."""

_BEFORE_TASKS = "images"
"""The task of files that name none: earlier versions had no other."""


@dataclass(frozen=True, repr=False)
class TrainResult:
    """What came of a training, or of what was done of it.

    Attributes:
        options: What was asked for, with everything filled in that the recipe, the model or the machine decides.
        finished: Whether all epochs are done.
        description: The model, the data, the machine and notes on them.
        epochs: A record for each epoch: ``epoch``, ``step``, ``learning_rate``, ``seconds``, examples a second as
            ``images_per_second``, and what is measured: ``train_loss``, ``train_accuracy``, ``test_loss``,
            ``test_accuracy`` (None where not tested) and so on.
        train_seconds: Time spent on steps, over all sessions.
        test_seconds: Time spent on tests.
        sessions: Where each session ran and at which step it began.
    """

    options: LoopOptions
    finished: bool
    description: dict[str, Any]
    epochs: tuple[dict[str, Any], ...]
    train_seconds: float
    test_seconds: float
    sessions: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, options: LoopOptions, description: Mapping[str, Any], state: TrainState) -> TrainResult:
        """What a state amounts to."""
        return cls(
            options=options.resolved(),
            finished=len(state.epochs) == options.epochs,
            description=dict(description),
            epochs=tuple(state.epochs),
            train_seconds=sum(record["seconds"] for record in state.epochs),
            test_seconds=state.test_seconds,
            sessions=tuple(state.sessions),
        )

    def __repr__(self) -> str:
        """One line: how far the training is, and its headline."""
        name = self.task.headline.replace("_", " ")
        measured = "" if self.headline is None else f", test {name} {self.headline:.4f}"
        return f"<{type(self).__name__}: {len(self.epochs)} of {self.options.epochs} epochs{measured}>"

    @property
    def task(self) -> type[AnyTask]:
        """What was trained."""
        return task_of(self.options)

    def last(self, name: str) -> float | None:
        """A measure, such as ``test_loss``, after the last epoch that has it; None if none has."""
        return next((record[name] for record in reversed(self.epochs) if record.get(name) is not None), None)

    @property
    def headline(self) -> float | None:
        """The task's headline on the test examples, by the weights that are kept: the number to report."""
        return self.last(f"test_{self.task.headline}")

    @property
    def test_accuracy(self) -> float | None:
        """Test accuracy after the last epoch that was tested, of a classifier."""
        return self.last("test_accuracy")

    @property
    def test_loss(self) -> float | None:
        """Test loss after the last epoch that was tested."""
        return self.last("test_loss")

    @property
    def best(self) -> float | None:
        """The best headline of any epoch, or what epochs are chosen by, on the examples watched between them.

        It is chosen on them, so where they are those of the test it is better than is honest to report.
        """
        epoch = self._best()
        return None if epoch is None else epoch[self._watched]

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with ``best``; where a task chooses among epochs, its weights are those that are kept."""
        epoch = self._best()
        return None if epoch is None else epoch["epoch"]

    @property
    def per_second(self) -> float:
        """Mean training speed, in examples."""
        rate = f"{self.task.unit}_per_second"
        examples = sum(record[rate] * record["seconds"] for record in self.epochs)
        return examples / self.train_seconds if self.train_seconds > 0 else 0.0

    @property
    def parameters(self) -> int:
        """How many numbers the model learns."""
        return self.description["model"]["parameters"]

    @property
    def device(self) -> str:
        """Where the last session ran."""
        return self.description["machine"]["device"]

    @property
    def versions(self) -> dict[str, str]:
        """Versions of this package, torch and Python in the last session."""
        return self.description["machine"]["versions"]

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values; what can be computed from the rest is there too, for other readers."""
        task = self.task
        return {
            "task": task.name,
            "options": self.options.to_json(),
            "finished": self.finished,
            **self.description,
            "epochs": list(self.epochs),
            **{
                f"test_{metric.name}": self.last(f"test_{metric.name}")
                for metric in (*task.metrics, *task.only_tested)
            },
            f"best_{self._watched}": self.best,
            "best_epoch": self.best_epoch,
            "train_seconds": self.train_seconds,
            "test_seconds": self.test_seconds,
            f"{task.unit}_per_second": self.per_second,
            "sessions": list(self.sessions),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any], task: type[AnyTask]) -> TrainResult:
        """What ``to_json`` gave.

        Args:
            values: What it gave.
            task: What was trained.
        """
        return cls(
            options=task.options_type.from_json(values["options"]),
            finished=values["finished"],
            description={name: values[name] for name in ("model", "data", "machine", "notes")},
            epochs=tuple(values["epochs"]),
            train_seconds=values["train_seconds"],
            test_seconds=values["test_seconds"],
            sessions=tuple(values["sessions"]),
        )

    def write(self, directory: Path) -> None:
        """Write ``results.json`` into a folder, in one step, sealed with a digest."""
        write_document(directory / RESULTS_FILE, RESULTS_FORM, self.to_json())

    @classmethod
    def read(cls, directory: Path) -> TrainResult:
        """Load what ``write`` wrote.

        Raises:
            InputError: If there is none, another version wrote it, or it was changed after it was written.
        """
        path = Path(directory) / RESULTS_FILE
        values = read_document(path, RESULTS_FORM)
        task = task_in(path, RESULTS_FORM, values.get("task", _BEFORE_TASKS))
        with RESULTS_FORM.reading(path):
            listing(epoch_schema(task))(values["epochs"], "epochs")
        try:
            return cls.from_json(values, task)
        except (InputError, TypeError) as error:
            raise refused(path, RESULTS_FORM, f"is no {RESULTS_FORM.name}: {error}") from error

    @property
    def _watched(self) -> str:
        return f"{self.task.watched}_{self.task.selects or self.task.headline}"

    def _best(self) -> Mapping[str, Any] | None:
        metric = self.task.metric(self.task.selects or self.task.headline)
        return selected_epoch(self.epochs, self._watched, metric)
