"""Steps of a swap, batches that the model reads once for every condition, and the results of a forward pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.auditing.inputs import on_device
from fenchel.errors import ModelError
from fenchel.integrations.capture import Capture, CapturedHead
from fenchel.integrations.registry import attending_modules
from fenchel.io.batches import BEGINNING, Batch, Cursor, ImageBatches
from fenchel.io.windows import ReadyBatches, TokenWindows
from fenchel.swap.conditions import Site

# Label that is ignored by losses.
IGNORED = -100

_NAMED = ("logits", "last_hidden_state")


@dataclass(frozen=True)
class Step:
    """A batch with its labels.

    Attributes:
        batch: Inputs of the model, with a unit (window, sentence or example) per row.
        labels: (B, n) or (B, m), see ``observe``; None where the model predicts no tokens.
    """

    batch: Batch
    labels: Tensor | None = None

    def inputs_for(self, model: Any) -> dict[str, Tensor]:
        """The inputs of the batch on the device of the model."""
        return on_device(self.batch.inputs, model)


class Task(ABC):
    """Steps of a swap that are the same at every pass.

    Attributes:
        unit: Name of the rows of a batch, in the plural.
        source: The batches.
    """

    unit: str
    source: TokenWindows | ImageBatches | ReadyBatches

    def steps(self, start: Cursor) -> Iterator[Step]:
        """The steps from a cursor on: ``Batch.after`` of the last step, or the beginning."""
        return map(Step, self.source.batches(start))

    def observed(self, model: Any, step: Step) -> Observation:
        """Run the model once on a step."""
        return observe(model, step)

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Its entries of the manifest: JSON values."""


@dataclass(frozen=True)
class Stack:
    """States of an encoder or a decoder, of attention layers, or of a model's output.

    Attributes:
        name: ``encoder`` or ``decoder`` where a model has both, else ``layers``; or ``attention`` and ``output``.
        states: (B, n, w) after every layer.
        counted: (B, n) bool for every layer, the positions that count.
        by_row: Whether a row counts once, by the mean over its positions, instead of every position.
    """

    name: str
    states: tuple[Tensor, ...]
    counted: tuple[Tensor, ...]
    by_row: bool = False

    @property
    def counts(self) -> Tensor:
        """(B,) float64, the number of positions of each row that count, or 1."""
        own = self.counted[-1].sum(-1).cpu().double()
        return torch.ones_like(own) if self.by_row else own

    def changes(self, before: Stack) -> Tensor:
        """(B, layers), the relative change of every layer's output, summed over the positions of a row."""
        return torch.stack([self.apart(before, layer=layer) for layer in range(len(self.states))], -1)

    def apart(self, other: Stack, scale: Stack | None = None, *, layer: int = -1) -> Tensor:
        r"""Relative distance of the outputs of a layer, by default the last, summed over the positions that count.

        .. math:: \sum_i \lVert h'_i - h_i \rVert / \lVert h_i \rVert

        Args:
            other: The stack with h.
            scale: The stack whose norms are divided by. Default: ``other``.
            layer: Index of the layer.

        Returns:
            (B,) float64 on the CPU.
        """
        before, counted = other.states[layer].double(), self.counted[layer]
        difference = (self.states[layer].double() - before).norm(dim=-1)
        length = (before if scale is None else scale.states[layer].double()).norm(dim=-1)
        ratio = torch.where(length > 0, difference / length, torch.zeros_like(difference))
        result = ratio.masked_fill(~counted, 0.0).sum(-1)
        return (result / counted.sum(-1).clamp_min(1) if self.by_row else result).cpu()


@dataclass(frozen=True)
class Observation:
    """Results of one forward pass.

    Attributes:
        stacks: The states; the last stack is that of the output.
        losses: (B,) float64, sum of the losses of the labelled tokens in nats, or the loss of each row; None without.
        embeddings: (B, w) sentence embeddings of norm 1; None where there are labels.
        scores: (B,) float64, score of each row, such as 1 for the correct class; None without.
    """

    stacks: tuple[Stack, ...]
    losses: Tensor | None = None
    embeddings: Tensor | None = None
    scores: Tensor | None = None


def observe(model: Any, step: Step) -> Observation:
    """Run a model on a step of text.

    Args:
        model: A transformers model in evaluation mode; with a language-model head if the step has labels.
        step: The step; a label is the token that a position predicts, -100 where none counts.

    Returns:
        States, with losses where there are labels and embeddings otherwise.

    Raises:
        ModelError: If an output is missing, or is NaN or infinite.
    """
    inputs, counted, counted_decoder = step.inputs_for(model), step.batch.counted, step.batch.counted_decoder
    assert counted is not None  # noqa: S101 - texts say which of their tokens count
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    parts = {"layers": ("hidden_states", counted)}
    if counted_decoder is not None:
        parts = {
            "encoder": ("encoder_hidden_states", counted),
            "decoder": ("decoder_hidden_states", counted_decoder),
        }
    stacks = []
    for name, (attribute, mask) in parts.items():
        # The first of the states are the embeddings, before any layer.
        if not (states := tuple(getattr(output, attribute, None) or ())[1:]):
            raise ModelError(
                f"{type(model).__name__} returned no {attribute} with output_hidden_states=True, so changes cannot be "
                "measured. Use a model of another family"
            )
        stacks.append(Stack(name, states, (mask.to(states[0].device),) * len(states)))
    last = stacks[-1].states[-1]
    _check_finite(last[stacks[-1].counted[-1]], type(model).__name__, "last hidden states on this text")
    if step.labels is None:
        return Observation(tuple(stacks), embeddings=mean_pooled(last, inputs["attention_mask"]).cpu())
    return Observation(tuple(stacks), losses=_losses(output.logits, step.labels).cpu())


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """Mean of the states of real tokens, normalized: the usual sentence embedding.

    Args:
        states: (B, n, w).
        mask: (B, n), nonzero for real tokens.

    Returns:
        (B, w) float32.

    Example:
        >>> states = torch.tensor([[[3.0, 0.0], [3.0, 8.0], [9.0, 9.0]]])
        >>> mean_pooled(states, torch.tensor([[1, 1, 0]])).tolist()
        [[0.6..., 0.8...]]
    """
    weights = mask.to(torch.float32)[..., None]
    mean = (states.float() * weights).sum(1) / weights.sum(1).clamp_min(1e-9)
    return torch.nn.functional.normalize(mean, dim=-1)


def _losses(logits: Tensor, labels: Tensor) -> Tensor:
    labels = labels.to(logits.device)
    wanted = labels != IGNORED
    chosen = torch.nn.functional.cross_entropy(logits[wanted].float(), labels[wanted], reduction="none")
    rows = wanted.nonzero()[:, 0]
    return torch.zeros(len(labels), dtype=torch.float64, device=logits.device).index_add_(
        0, rows, chosen.double()
    )


def observe_layers(model: nn.Module, step: Step) -> tuple[Any, tuple[Stack, Stack]]:
    """Run a model on a step and record the outputs of its attention layers.

    Args:
        model: The model, in evaluation mode.
        step: The step. Masks of its batch apply to states with as many positions, for the output that of the decoder
            first.

    Returns:
        The output of the model, and two stacks: ``attention``, the outputs of its attention layers, and ``output``, its
        own. A row counts once.

    Raises:
        ModelError: If a layer is not called, or its output or that of the model has another number of rows, or is not
            finite.
    """
    inputs, kind, layers = step.inputs_for(model), type(model).__name__, attending_modules(model)
    rows = next((len(value) for value in inputs.values() if value.dim()), 1)
    with torch.no_grad(), _recorded_outputs(layers) as outputs:
        output = model(**inputs)
    states = []
    for name, layer in layers.items():
        first = getattr(layer, "batch_first", True)
        calls = [_positions(one, rows, name, batch_first=first) for one in outputs[name]]
        if not calls:
            raise ModelError(
                f"{name} did not attend in this forward, so swapping it changes nothing. Give the model all inputs "
                "that its layers need, or give the submodule that the inputs pass through"
            )
        states.append(torch.cat(calls, 1))
    first = getattr(model, "batch_first", True) if model in layers.values() else True
    last = _positions(_tensor_of(output, kind), rows, f"the output of {kind}", batch_first=first)
    _check_finite(last, kind, "output on these inputs")
    masks = _masks(step.batch)
    return output, (_stack("attention", states, masks), _stack("output", [last], masks[::-1]))


def _check_finite(output: Tensor, kind: str, name: str) -> None:
    if not bool(output.isfinite().all()):
        raise ModelError(
            f"{kind} has NaN or infinity in its {name}. Check its weights, and its dtype: float16 overflows where "
            "bfloat16 and float32 do not"
        )


@contextmanager
def _recorded_outputs(layers: Mapping[str, nn.Module]) -> Iterator[Mapping[str, list[Tensor]]]:
    """Record the outputs of layers by name, a tensor per call."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in layers}

    def keep(name: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        outputs[name].append(output[0] if isinstance(output, tuple) else output)

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(keep, name)))
        yield outputs


def _positions(output: Tensor, rows: int, called: str, *, batch_first: bool) -> Tensor:
    """Reshape an output to (B, positions, width)."""
    laid = output if batch_first or output.dim() < 2 else output.transpose(0, 1)
    if not laid.dim() or len(laid) != rows:
        raise ModelError(
            f"{called} has shape {tuple(output.shape)} for {rows} rows of inputs, so its rows cannot be matched. "
            "Return a tensor with the rows first, and check batch_first of the layers"
        )
    if laid.dim() == 1:
        laid = laid.unsqueeze(-1)
    return laid.unsqueeze(1) if laid.dim() == 2 else laid.flatten(1, -2)


def _tensor_of(output: Any, kind: str) -> Tensor:
    """The tensor in the output of a model: the only one, one of ``_NAMED``, or the first."""
    parts: Any = [output]
    if isinstance(output, Mapping):
        parts = [output[name] for name in _NAMED if name in output] or list(output.values())
    elif not isinstance(output, Tensor):
        parts = [getattr(output, name) for name in _NAMED if hasattr(output, name)] or output
    result = parts[0] if isinstance(parts, Sequence) and len(parts) else output
    if not isinstance(result, Tensor) or not result.is_floating_point():
        raise ModelError(
            f"{kind} returned {shown(result)}; expected a tensor of real numbers, or a collection whose first entry "
            "or logits is one. Wrap the model in one that returns the tensor to compare"
        )
    return result


def _stack(name: str, states: list[Tensor], masks: Sequence[Tensor]) -> Stack:
    return Stack(name, tuple(states), tuple(_counted(one, masks) for one in states), by_row=True)


def _masks(batch: Batch) -> list[Tensor]:
    """Masks of the positions that count, of the encoder and of the decoder, as far as known."""
    return [mask for mask in (batch.counted, batch.counted_decoder) if mask is not None]


def _counted(states: Tensor, masks: Sequence[Tensor]) -> Tensor:
    """The first mask with the shape of the states; otherwise all positions count."""
    everything = torch.ones(states.shape[:2], dtype=torch.bool)
    return next((mask for mask in masks if mask.shape == everything.shape), everything).to(states.device)


def mean_outputs(model: nn.Module, task: Task, sites: Collection[Site]) -> dict[int, Tensor]:
    """Mean output of every head over the positions of a task that count, in one pass.

    Args:
        model: The model, in evaluation mode.
        task: The task.
        sites: The layers.

    Returns:
        By the number of a layer, (H, d_v) float64.
    """
    sums: dict[tuple[int, int], Tensor] = {}
    counts: Counter[tuple[int, int]] = Counter()
    masks: list[Tensor] = []

    def summed(number: int, head: CapturedHead) -> Tensor:
        # If both sequences have the same length, the name tells encoder and decoder apart.
        own = masks[::-1] if "decoder" in head.site.name.split(".") else masks
        counted = _counted(head.output, own)
        result = head.output[counted].double().sum(0).cpu()
        key = (number, head.head)
        sums[key] = sums.get(key, torch.zeros_like(result)) + result
        counts[key] += int(counted.sum())
        return head.output

    with torch.no_grad(), Capture(model, layers=[site.name for site in sites]) as heads:
        for site in sites:
            heads.replace(site.name, None, partial(summed, site.number))
        for step in task.steps(BEGINNING):
            masks[:] = _masks(step.batch)
            model(**step.inputs_for(model))
    return {
        site.number: torch.stack(
            [sums[site.number, head] / max(counts[site.number, head], 1) for head in range(1, site.heads + 1)]
        )
        for site in sites
    }
