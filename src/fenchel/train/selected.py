"""The weights that a training keeps: those of the epoch that did best on the examples that are watched."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from fenchel.train.metric import Metric

__all__ = ["SelectedWeights", "selected_epoch"]


def selected_epoch(
    epochs: Sequence[Mapping[str, Any]], name: str, metric: Metric
) -> Mapping[str, Any] | None:
    """The first of the epochs that did best; None where none was evaluated.

    Args:
        epochs: Their records.
        name: What is compared, such as ``validation_accuracy``.
        metric: Says whether more is better.

    Example:
        >>> records = [{"v": 0.5, "epoch": 1}, {"v": 0.7, "epoch": 2}, {"v": None, "epoch": 3}, {"v": 0.7, "epoch": 4}]
        >>> selected_epoch(records, "v", Metric("v", "", True))["epoch"]
        2
    """
    sign = 1 if metric.higher_is_better else -1
    watched = [record for record in epochs if record.get(name) is not None]
    return max(watched, key=lambda record: sign * record[name], default=None)


class SelectedWeights:
    """A copy of the weights that did best so far.

    Args:
        metric: What they are chosen by; None where those of the last step are kept.
        name: What records call it, such as ``validation_accuracy``.
    """

    def __init__(self, metric: Metric | None, name: str) -> None:
        self.metric, self.name = metric, name
        self.tensors: dict[str, Tensor] = {}
        self._best: float | None = None

    def restore(self, tensors: Mapping[str, Tensor], epochs: Sequence[Mapping[str, Any]]) -> None:
        """Goes on from what was saved.

        Args:
            tensors: Weights and buffers by name.
            epochs: Records of the epochs that are done.
        """
        if self.metric is None or not tensors:
            return
        self.tensors = dict(tensors)
        best = selected_epoch(epochs, self.name, self.metric)
        self._best = None if best is None else best[self.name]

    def offer(self, model: nn.Module, value: float) -> None:
        """Copies the weights of a model that does better than every one before.

        Args:
            model: As it is now.
            value: Of the metric.
        """
        if self.metric is None:
            return
        sign = 1 if self.metric.higher_is_better else -1
        if self._best is None or sign * value > sign * self._best:
            self._best = value
            self.tensors = {name: held.detach().cpu().clone() for name, held in model.state_dict().items()}

    @contextlib.contextmanager
    def in_place(self, model: nn.Module) -> Iterator[None]:
        """The model with the weights that were chosen; afterwards it has its own again."""
        if not self.tensors:
            yield
            return
        own = {name: held.detach().clone() for name, held in model.state_dict().items()}
        model.load_state_dict(self.tensors)
        try:
            yield
        finally:
            model.load_state_dict(own)
