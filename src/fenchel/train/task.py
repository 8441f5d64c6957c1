"""What a training is of: the one thing that the loop does not know."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from torch import Tensor, nn

from fenchel import models
from fenchel.arguments import shown
from fenchel.errors import InputError
from fenchel.train.metric import Metric
from fenchel.train.options import LoopOptions
from fenchel.train.precision import autocast, in_float32
from fenchel.train.workers import Workers

__all__ = ["AnyTask", "Batch", "DataSummary", "StepLoss", "Task", "check_pair"]


class Batch(Protocol):
    """A process's share of some examples, on its device."""

    @property
    def count(self) -> int:
        """How many examples it holds."""
        ...


@dataclass(frozen=True)
class StepLoss:
    """What a step comes to on a process's share of its batch.

    Attributes:
        mean: What is descended, a scalar with gradient: the mean over the examples of the share.
        sums: For each of ``Task.trained``, the sum over the examples of the share, a scalar without gradient.
    """

    mean: Tensor
    sums: Mapping[str, Tensor]


@dataclass(frozen=True)
class DataSummary:
    """What is recorded of data: enough to report without them, and to notice that they are others.

    Attributes:
        train: How many examples there are to train on.
        test: How many to test on.
        classes: How many classes they have; None where they have none.
        note: What users must know, such as that images are lossy.
        digest: SHA-256 of all of them.
    """

    train: int
    test: int
    classes: int | None
    note: str
    digest: str


OptionsT = TypeVar("OptionsT", bound=LoopOptions)
DataT = TypeVar("DataT")
BatchT = TypeVar("BatchT", bound=Batch)


def check_pair(data: Any, kind: type) -> None:
    """Refuse data that are not two sets of a kind, one to train and one to test on.

    Raises:
        InputError: Naming what was given.
    """
    whole = isinstance(data, tuple | list) and len(data) == 2
    if not whole or not all(isinstance(part, kind) for part in data):
        raise InputError(
            f"data is {shown(data)}; expected a pair of {kind.__name__}, to train and to test on."
        )


class Task(ABC, Generic[OptionsT, DataT, BatchT]):
    """What a training is of: a model, the batches of its steps, a loss, and how good it is.

    The loop asks for nothing else: precision, optimiser, schedule, checkpoints, exact resume, several processes and
    files are its own. In return a task promises two things, on which resuming and sharing rest:

    * What a step trains on follows from the seed, the epoch, the step and the share (``workers.rank`` of
      ``workers.count``) alone, never from a generator that has come a long way. The shares of a step are equally
      large and make up together the batch that one process would have.
    * What is measured is a sum over examples, so that any number of processes adds up to the same; or, of the test
      alone, it is kept of each example and does not depend on their order.

    A class is made known by ``fenchel.train.registered``; ``fenchel.train.train`` then runs it for its options.

    Args:
        options: Resolved.
        data: What ``read`` gives, or what the caller has in its place.
        workers: The processes.

    Raises:
        InputError: If options, data and processes do not fit each other.
    """

    name: ClassVar[str]
    """As files call it."""
    unit: ClassVar[str]
    """What examples are, in the plural: ``images``."""
    options_type: ClassVar[type[LoopOptions]]
    """Its options."""
    metrics: ClassVar[tuple[Metric, ...]]
    """What is measured of examples that are not trained on; ``loss``, the mean objective, is measured in training."""
    only_tested: ClassVar[tuple[Metric, ...]] = ()
    """What is measured of the ``test`` examples besides, since it would take too long between epochs."""
    headline: ClassVar[str]
    """The metric that a model is judged by, after the last epoch, on the ``test`` examples."""
    trained: ClassVar[tuple[str, ...]] = ("loss",)
    """Metrics that are measured in training too, ``loss`` among them."""
    watched: ClassVar[str] = "test"
    """The examples that an evaluation between epochs is of; ``test`` is evaluated after the last at any rate."""
    summed: ClassVar[tuple[str, ...]] = ()
    """Names of the sums that ``measured`` gives, where they are not those of ``metrics``."""
    kept: ClassVar[tuple[str, ...]] = ()
    """Names of what ``measured`` may give besides, (b,) of a batch: kept of each ``test`` example for ``compared``."""
    selects: ClassVar[str | None] = None
    """The metric of the ``watched`` examples by which an epoch is chosen: its weights are kept and tested in the end.
    None keeps and tests those of the last."""
    judges: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What ``judged`` gives, and what people call it, such as ``{"loss": "cross-entropy", "score": "accuracy"}``."""
    models: ClassVar[tuple[str, ...]] = ()
    """Names of the models that it trains, as ``--model`` takes them."""

    def __init__(self, options: OptionsT, data: DataT, workers: Workers) -> None:
        self.options, self.data, self.workers = options, data, workers

    @classmethod
    @abstractmethod
    def read(cls, data: str) -> DataT:
        """Reads the data of a name or path, all splits.

        Raises:
            InputError: If they are not there or are damaged.
        """

    @classmethod
    @abstractmethod
    def summary(cls, data: DataT) -> DataSummary:
        """What is recorded of data."""

    @classmethod
    def rebuilt(cls, description: Mapping[str, Any]) -> nn.Module:
        """A new model, from what ``described`` says under ``model``, with any weights."""
        return models.build(description["name"], **description["configuration"])

    @abstractmethod
    def model(self) -> nn.Module:
        """The model to train, its weights drawn from torch's global generator, which has been seeded."""

    @property
    @abstractmethod
    def steps_per_epoch(self) -> int:
        """How many steps every epoch has."""

    @abstractmethod
    def batches(self, epoch: int, first: int) -> Iterator[BatchT]:
        """What the steps of an epoch train on, one by one.

        Args:
            epoch: From 0.
            first: The step of the epoch to begin with, from 0.

        Returns:
            This process's share of each batch.
        """

    @abstractmethod
    def examples(self, split: str) -> Iterator[BatchT]:
        """This process's share of the examples to evaluate on, each example once in all processes together.

        Args:
            split: ``test`` or what ``watched`` says.
        """

    def inputs(self, batch: BatchT) -> dict[str, Tensor]:
        """What a model is called with for a batch, by name, a row an example.

        A task that does not say it cannot be audited or swapped as the folder of a training.

        Raises:
            InputError: If it does not.
        """
        del batch
        raise InputError(f"trainings of the task {self.name!r} do not say what their models are called with.")

    def predicted(self, model: nn.Module, batch: BatchT) -> Any:
        """What a model says of a batch, a tensor or several by name; computed in the precision of the training.

        Args:
            model: In training or evaluation mode; with several processes, what averages their gradients.
            batch: From ``batches`` or ``examples``.
        """
        return model(**self.inputs(batch))

    @abstractmethod
    def loss(self, predicted: Any, batch: BatchT) -> StepLoss:
        """What a prediction costs.

        Args:
            predicted: What ``predicted`` gave, in float32.
            batch: From ``batches``.
        """

    def examined(self, model: nn.Module, batch: BatchT, split: str) -> Mapping[str, Tensor]:
        """What ``measured`` says of what a model predicts; a task that asks more of its model than that says how.

        Args:
            model: In evaluation mode.
            batch: From ``examples``.
            split: Of which split.
        """
        del split
        with autocast(self.options.precision, self.workers.device):
            predicted = self.predicted(model, batch)
        return self.measured(in_float32(predicted), batch)

    def judged(self, predicted: Any, batch: BatchT) -> Mapping[str, Tensor]:
        """How well a model does on each example of a batch: ``loss`` (B,) and, where there is one, ``score`` (B,).

        It is what a swap compares. Empty where a task says nothing of single examples.

        Args:
            predicted: What ``predicted`` gave, in float32.
            batch: From ``examples``.
        """
        del predicted, batch
        return {}

    @abstractmethod
    def measured(self, predicted: Any, batch: BatchT) -> Mapping[str, Tensor]:
        """Sums over the examples of a batch, scalars, from which ``evaluated`` computes the metrics.

        Args:
            predicted: What ``predicted`` gave, in float32.
            batch: From ``examples``.
        """

    @classmethod
    def evaluated(cls, sums: Mapping[str, float], count: float) -> dict[str, float]:
        """The metrics by name; each is the mean over the examples where a task does not say otherwise.

        Args:
            sums: What ``measured`` gave, added up over all examples and processes.
            count: How many examples.
        """
        return {metric.name: sums[metric.name] / count for metric in cls.metrics}

    @classmethod
    def compared(cls, kept: Mapping[str, Tensor]) -> dict[str, float]:
        """Those of ``only_tested`` that no sums give, such as a correlation of ranks, by name.

        Args:
            kept: What ``measured`` gave of each test example under the names of ``kept``, (N,) in float64; the order
                of the examples is any, the same for all names. Empty where it gave nothing.
        """
        del kept
        return {}

    @abstractmethod
    def described(self, model: nn.Module) -> dict[str, Any]:
        """What ``results.json`` says of the training, as JSON values.

        Returns:
            ``model`` (``name``, ``configuration`` and what its input is made of), ``data`` (``name``, ``note``,
            ``train_UNIT`` and more) and ``notes``, a list of sentences.
        """

    @abstractmethod
    def fingerprints(self) -> dict[str, str]:
        """SHA-256 by name of everything that is read and decides numbers; a resumed training has to have the same."""

    def files(self) -> Mapping[str, str]:
        """What has to lie beside the weights for the model to be used, such as ``tokenizer.json``, by name of file."""
        return {}

    @classmethod
    def metric(cls, name: str) -> Metric:
        """One of ``metrics``."""
        return next(metric for metric in cls.metrics if metric.name == name)

    @classmethod
    def selection(cls) -> Metric | None:
        """The metric that ``selects`` names."""
        return None if cls.selects is None else cls.metric(cls.selects)

    @classmethod
    def splits(cls) -> tuple[str, ...]:
        """The examples that are evaluated on, those between epochs first."""
        return tuple(dict.fromkeys((cls.watched, "test")))


AnyTask = Task[Any, Any, Any]
"""A task of which nothing more is known."""
