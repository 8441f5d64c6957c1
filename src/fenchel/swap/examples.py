"""Examples of any kind, such as images, and what a model makes of each: its output, and a loss or a score of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, Protocol

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import InputError
from fenchel.io.batches import Batch, Cursor
from fenchel.loading import device_and_dtype
from fenchel.swap.layer_observation import observe_layers
from fenchel.swap.observation import Observation
from fenchel.swap.step import Place, Step

__all__ = ["ExampleTask", "Examples", "Measure", "Targets"]

Measure = Callable[[Any, Any], Tensor]
"""From what the model returned for B rows and their target to (B,) numbers."""

Targets = Callable[[Batch], Any]
"""What came with a batch, besides the model's inputs."""


class Examples(Protocol):
    """Batches that can be read again from any place, such as ``ReadyBatches``."""

    @property
    def description(self) -> str:
        """The source as it was given."""
        ...

    @property
    def text_sha256(self) -> str | None:
        """What tells them from others, if anything does."""
        ...

    def batches(self, start: Cursor = ...) -> Iterator[Batch]:
        """The batches from a place on."""
        ...


class ExampleTask:
    """Examples of which each is one unit, whatever its size.

    Args:
        examples: The batches.
        unit: What an example is called, in the plural.
        targets: What losses and scores are worked out from besides the output; the batch's inputs where None.
        loss: Lower is better; None without.
        score: Higher is better; None without.
        described: What else belongs in the manifest.
    """

    def __init__(
        self,
        examples: Examples,
        *,
        unit: str,
        targets: Targets | None = None,
        loss: Measure | None = None,
        score: Measure | None = None,
        described: Mapping[str, Any] | None = None,
    ) -> None:
        self._examples, self.unit, self._targets = examples, unit, targets
        self._measures = {
            name: measure for name, measure in (("loss", loss), ("score", score)) if measure is not None
        }
        self._described = dict(described or {})

    def description(self) -> dict[str, Any]:
        """See ``Task``."""
        reads = getattr(self._examples, "reads", "text")
        return {
            "task": "examples",
            "unit": self.unit,
            "measures": {name: name for name in self._measures},
            "texts": self._examples.description,
            **({} if reads == "text" else {"reads": reads}),
            "text_sha256": self._examples.text_sha256,
            **self._described,
        }

    def observed(self, model: Any, step: Step, inputs: dict[str, Tensor]) -> Observation:
        """See ``Task``."""
        output, stacks = observe_layers(model, inputs, step.counted, step.counted_decoder)
        target = _moved(step.target, device_and_dtype(model)[0])
        found = {
            name: _measured(name, measure, output, target, len(step.units))
            for name, measure in self._measures.items()
        }
        return Observation(stacks, found.get("loss"), None, found.get("score"))

    def steps(self, place: Place) -> Iterator[Step]:
        """See ``Task``."""
        cursor = Cursor(**{name: count for name, count in place.items() if name != "unit"})
        unit = place.get("unit", 0)
        for batch in self._examples.batches(cursor):
            after = unit + len(batch.documents)
            yield Step(
                inputs=dict(batch.inputs),
                counted=batch.counted,
                counted_decoder=batch.counted_decoder,
                labels=None,
                units=torch.arange(unit, after),
                after={**asdict(batch.after), "unit": after},
                documents=batch.after.documents,
                tokens=batch.after.tokens,
                fraction=batch.fraction,
                target=dict(batch.inputs) if self._targets is None else self._targets(batch),
                by_example=True,
            )
            unit = after


def _measured(name: str, measure: Measure, output: Any, target: Any, rows: int) -> Tensor:
    with torch.no_grad():
        found = measure(output, target)
    if not isinstance(found, Tensor) or found.shape != (rows,):
        got = tuple(found.shape) if isinstance(found, Tensor) else shown(found)
        raise InputError(
            f"{name} gave {got} for {rows} examples; expected a tensor of one number an example, ({rows},), such as "
            'cross_entropy(output, target, reduction="none")'
        )
    found = found.detach().double().cpu()
    if bool(found.isnan().any()):
        raise InputError(f"{name} gave NaN for an example, which no mean can be taken of. Mend the function.")
    return found


def _moved(target: Any, device: torch.device) -> Any:
    if isinstance(target, Tensor):
        return target.to(device)
    if isinstance(target, Mapping):
        return {name: _moved(value, device) for name, value in target.items()}
    if isinstance(target, list | tuple):
        moved = [_moved(value, device) for value in target]
        return moved if isinstance(target, list) else tuple(moved)
    return target
