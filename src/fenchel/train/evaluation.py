"""What a task measures of a model, on examples that it was not trained on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fenchel.train.task import AnyTask

__all__ = ["Evaluation"]


class Evaluation:
    """Evaluates a model on every example of a split once; each process takes its share.

    Args:
        task: What is trained.
    """

    def __init__(self, task: AnyTask) -> None:
        self._task = task
        self._names = task.summed or tuple(metric.name for metric in task.metrics)

    def __call__(self, model: nn.Module, split: str) -> dict[str, float]:
        """The task's metrics by name, in evaluation mode.

        Args:
            model: Left in the mode that it is in.
            split: As ``Task.examples`` takes it.
        """
        workers, task = self._task.workers, self._task
        sums = torch.zeros(len(self._names) + 1, dtype=torch.float64, device=workers.device)
        kept: dict[str, list[Tensor]] = {name: [] for name in (task.kept if split == "test" else ())}
        was_training = model.training
        model.eval()
        with torch.inference_mode():
            for batch in task.examples(split):
                measured = task.examined(model, batch, split)
                for place, name in enumerate(self._names):
                    sums[place] += measured[name]
                for name in kept.keys() & measured.keys():
                    kept[name].append(measured[name].double())
                sums[-1] += batch.count
        model.train(was_training)
        *values, count = workers.sum(sums).tolist()
        # Every process asks for every name, though it may have no example itself.
        whole = {name: workers.rows(torch.cat([sums.new_zeros(0), *parts])) for name, parts in kept.items()}
        compared = task.compared({name: rows for name, rows in whole.items() if len(rows)})
        return {**task.evaluated(dict(zip(self._names, values, strict=True)), count), **compared}
