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
from fenchel.train.checkpoint import SCHEMA
from fenchel.train.options import TrainOptions
from fenchel.train.state import EPOCHS_SCHEMA, TrainState

__all__ = ["RESULTS_FILE", "RESULTS_FORM", "TrainResult"]

RESULTS_FILE = "results.json"
"""The file's name in a training's folder."""

RESULTS_FORM = Form(
    name="results file of a training",
    version=SCHEMA,
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
        others=True,
    ),
    advice="Put a good copy of it back, or remove it: --resume then goes on from what else is in its folder.",
)
"""What the file holds."""


@dataclass(frozen=True)
class TrainResult:
    """What came of a training, or of what was done of it.

    Attributes:
        options: What was asked for, with everything filled in that the recipe, the model or the machine decides.
        finished: Whether all epochs are done.
        description: The model, the data, the machine and notes on them.
        epochs: A record for each epoch: ``epoch``, ``step``, ``learning_rate``, ``train_loss``, ``train_accuracy``,
            ``test_loss`` and ``test_accuracy`` (None where not tested), ``seconds``, ``images_per_second``.
        train_seconds: Time spent on steps, over all sessions.
        test_seconds: Time spent on tests.
        sessions: Where each session ran and at which step it began.
    """

    options: TrainOptions
    finished: bool
    description: dict[str, Any]
    epochs: tuple[dict[str, Any], ...]
    train_seconds: float
    test_seconds: float
    sessions: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, options: TrainOptions, description: Mapping[str, Any], state: TrainState) -> TrainResult:
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

    @property
    def test_accuracy(self) -> float | None:
        """Test accuracy after the last epoch that was tested: the number to report."""
        return self._last("test_accuracy")

    @property
    def test_loss(self) -> float | None:
        """Test loss after the last epoch that was tested."""
        return self._last("test_loss")

    @property
    def best_test_accuracy(self) -> float | None:
        """The highest test accuracy of any epoch; chosen on the test images, so higher than is honest to report."""
        return max((record["test_accuracy"] for record in self._tested()), default=None)

    @property
    def best_epoch(self) -> int | None:
        """The first epoch with ``best_test_accuracy``."""
        best = self.best_test_accuracy
        return next((record["epoch"] for record in self._tested() if record["test_accuracy"] == best), None)

    @property
    def images_per_second(self) -> float:
        """Mean training speed."""
        images = sum(record["images_per_second"] * record["seconds"] for record in self.epochs)
        return images / self.train_seconds if self.train_seconds > 0 else 0.0

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
        return {
            "options": self.options.to_json(),
            "finished": self.finished,
            **self.description,
            "epochs": list(self.epochs),
            "test_accuracy": self.test_accuracy,
            "test_loss": self.test_loss,
            "best_test_accuracy": self.best_test_accuracy,
            "best_epoch": self.best_epoch,
            "train_seconds": self.train_seconds,
            "test_seconds": self.test_seconds,
            "images_per_second": self.images_per_second,
            "sessions": list(self.sessions),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainResult:
        """What ``to_json`` gave."""
        return cls(
            options=TrainOptions.from_json(values["options"]),
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
        try:
            return cls.from_json(values)
        except (InputError, TypeError) as error:
            raise refused(path, RESULTS_FORM, f"is no {RESULTS_FORM.name}: {error}") from error

    def _tested(self) -> list[dict[str, Any]]:
        return [record for record in self.epochs if record["test_accuracy"] is not None]

    def _last(self, name: str) -> Any:
        tested = self._tested()
        return tested[-1][name] if tested else None
