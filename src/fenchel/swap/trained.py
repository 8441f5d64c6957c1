"""The test examples of a training as what a swap measures: the model's outputs, and its task's own loss and score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from fenchel.auditing.trained_examples import TrainedBatch, TrainedExamples
from fenchel.data.batch import Batch
from fenchel.nn.attending import attention_layers
from fenchel.swap.examples import ExampleTask, Measure
from fenchel.train.precision import in_float32

__all__ = ["as_first_order", "trained_task"]


def as_first_order(model: nn.Module) -> str | None:
    """Has every attention of a trained model infer by first order, of which a swap starts.

    Args:
        model: Changed.

    Returns:
        The estimator that it was trained with, if that is another.
    """
    trained_with = None
    for layer in attention_layers(model).values():
        if layer.estimator != "first_order":
            trained_with, layer.estimator = layer.estimator, "first_order"
    return trained_with


def trained_task(examples: TrainedExamples, trained_with: str | None) -> ExampleTask:
    """What a swap of a training on something else than images measures.

    Args:
        examples: What the training was tested on.
        trained_with: The estimator that the model was trained with, where that is not first order.
    """
    task = examples.task

    def measure(name: str) -> Measure | None:
        if name not in task.judges:
            return None
        return lambda output, own: task.judged(in_float32(_on_processor(output)), own)[name]

    return ExampleTask(
        examples,
        unit=task.unit,
        targets=_own,
        loss=measure("loss"),
        score=measure("score"),
        loss_name=task.judges.get("loss", "loss"),
        score_name=task.judges.get("score", "score"),
        described={
            **({} if examples.test_examples is None else {"test_examples": examples.test_examples}),
            **({} if trained_with is None else {"trained_with": trained_with}),
        },
    )


def _own(batch: Batch) -> Any:
    assert isinstance(batch, TrainedBatch)  # noqa: S101 - what ``TrainedExamples`` gives
    return batch.own


def _on_processor(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output.cpu()
    assert isinstance(output, Mapping)  # noqa: S101 - what a task's model may say
    return {name: value.cpu() for name, value in output.items()}
