"""What a swap does at once, a batch that the model reads once for every arm, and what one forward of it says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ModelError
from fenchel.integrations.capture import Capture, CapturedHead
from fenchel.integrations.transformers.registry import attention_modules
from fenchel.loading import on_device
from fenchel.nn.inference import attention_layers
from fenchel.swap.conditions import Site, has_own_layers

IGNORED = -100
"""A label that no loss counts."""

_NAMED = ("logits", "last_hidden_state")

Place = dict[str, int]
"""Where the next step starts; plain integers, for JSON."""


@dataclass(frozen=True)
class Step:
    """One batch.

    Attributes:
        inputs: The model's keyword arguments, on the CPU.
        counted: (B, n) bool, tokens whose states count; None: all of them.
        counted_decoder: (B, m) bool, the same for a decoder beside an encoder; None without one.
        labels: (B, n) or (B, m), see ``observe``; None for embeddings.
        units: (B,) numbers of the units (windows or sentences), from 0.
        rows: (B,) numbers of the documents that they are of.
        after: Where the next step starts.
        documents: Documents read up to the end of the step.
        tokens: Tokens counted up to the end of the step.
        fraction: Share of the source read at the end of the step, if known.
        target: What losses and scores of examples are worked out from, besides the output.
        by_example: Whether a row is an example, with one loss.
    """

    inputs: dict[str, Tensor]
    counted: Tensor | None
    counted_decoder: Tensor | None
    labels: Tensor | None
    units: Tensor
    rows: Tensor
    after: Place
    documents: int
    tokens: int
    fraction: float | None
    target: Any = None
    by_example: bool = False

    @property
    def label_counts(self) -> Tensor:
        """(B,) float64, how many labels each row has: one where it is an example, else zeros without labels."""
        if self.labels is None:
            return torch.full((len(self.units),), float(self.by_example), dtype=torch.float64)
        return (self.labels >= 0).sum(-1).double()


class Task(Protocol):
    """What the model is asked to do, as steps that are the same at every pass."""

    def steps(self, place: Place) -> Iterator[Step]:
        """The steps from a place on; an empty place is the beginning."""
        ...

    def observed(self, model: Any, step: Step, inputs: dict[str, Tensor]) -> Observation:
        """Run the model once on a step; ``inputs`` are the step's, where the model is."""
        ...

    def description(self) -> dict[str, Any]:
        """What of it belongs in the manifest: JSON values."""
        ...


@dataclass(frozen=True)
class Stack:
    """The states of an encoder or a decoder, of attention layers, or of a model's output alone.

    Attributes:
        name: ``encoder`` or ``decoder`` where a model has both, else ``layers``; or ``attention`` and ``output``.
        states: (B, n, w) after every layer.
        counted: (B, n) bool for every layer, which positions count.
        by_row: Whether a row counts once, by the mean over its positions, and not every position for itself.
    """

    name: str
    states: tuple[Tensor, ...]
    counted: tuple[Tensor, ...]
    by_row: bool = False

    @property
    def counts(self) -> Tensor:
        """(B,) float64, how often each row counts: its positions that count, or once."""
        own = self.counted[-1].sum(-1).cpu().double()
        return torch.ones_like(own) if self.by_row else own

    def changes(self, before: Stack) -> Tensor:
        """(B, layers): relative change of every layer's output, summed over what counts in a row."""
        return torch.stack(
            [self._change(place, before.states[place], None) for place in range(len(self.states))], -1
        )

    def apart(self, other: Stack, scale: Stack | None = None) -> Tensor:
        """(B,): how far the last outputs are apart, relative to ``other``'s lengths or those of ``scale``."""
        return self._change(-1, other.states[-1], None if scale is None else scale.states[-1])

    def _change(self, place: int, other: Tensor, scale: Tensor | None) -> Tensor:
        counted = self.counted[place]
        result = relative_change(self.states[place], other, counted, scale)
        return result / counted.sum(-1).clamp_min(1).cpu() if self.by_row else result


@dataclass(frozen=True)
class Observation:
    """What one forward says.

    Attributes:
        stacks: The states, the stack that the output comes from last.
        losses: (B,) float64, sum of the losses of the labelled tokens in nats, or the loss of each row; None without.
        embeddings: (B, w) sentence embeddings of length 1; None where none are asked for.
        scores: (B,) float64, how good each row is, such as 1 where its class is found; None without.
    """

    stacks: tuple[Stack, ...]
    losses: Tensor | None
    embeddings: Tensor | None
    scores: Tensor | None = None


def observe(model: Any, step: Step, inputs: Mapping[str, Tensor]) -> Observation:
    """Run a model that reads text once.

    Args:
        model: A transformers model in evaluation mode; with a language-model head if the step has labels.
        step: The step, which says which tokens count; a label is the token that a position predicts, -100 where none
            counts.
        inputs: Its inputs, where the model is.

    Returns:
        What it says: losses where there are labels, else embeddings.

    Raises:
        ModelError: If an output is missing, or is NaN or infinite.
    """
    counted, counted_decoder = step.counted, step.counted_decoder
    assert counted is not None  # noqa: S101 - texts say which of their tokens count
    with torch.no_grad():
        output = model(**inputs, output_hidden_states=True)
    names = {"layers": "hidden_states"}
    if counted_decoder is not None:
        names = {"encoder": "encoder_hidden_states", "decoder": "decoder_hidden_states"}
    stacks = []
    for name, attribute in names.items():
        states = getattr(output, attribute, None)
        if not states:
            raise ModelError(
                f"{type(model).__name__} returned no {attribute} with output_hidden_states=True, so changes cannot be "
                "measured. Use a model of another family"
            )
        mask = counted_decoder if name == "decoder" and counted_decoder is not None else counted
        # The first of the states are the embeddings, before any layer.
        own = tuple(states)[1:]
        stacks.append(Stack(name, own, (mask.to(own[0].device),) * len(own)))
    last = stacks[-1]
    if not bool(last.states[-1][last.counted[-1]].isfinite().all()):
        raise ModelError(
            f"{type(model).__name__} has NaN or infinity in its last hidden states on this text. Check its weights, "
            "and its dtype: float16 overflows where bfloat16 and float32 do not"
        )
    if step.labels is None:
        pooled = mean_pooled(last.states[-1], inputs["attention_mask"])
        return Observation(tuple(stacks), None, pooled.cpu())
    return Observation(tuple(stacks), _losses(output.logits, step.labels).cpu(), None)


def mean_pooled(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the real tokens' states, scaled to length 1: how sentence encoders are read.

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


def relative_change(states: Tensor, other: Tensor, counted: Tensor, scale: Tensor | None = None) -> Tensor:
    r"""How far two states of a batch are apart, summed over the tokens of a row that count.

    .. math:: \sum_i \lVert h'_i - h_i \rVert / \lVert h_i \rVert

    Args:
        states: (B, n, w), h'.
        other: (B, n, w), h.
        counted: (B, n) bool.
        scale: (B, n, w), whose lengths to divide by instead of those of h.

    Returns:
        (B,) float64 on the CPU.
    """
    difference = (states.double() - other.double()).norm(dim=-1)
    length = (other if scale is None else scale).double().norm(dim=-1)
    ratio = torch.where(length > 0, difference / length, torch.zeros_like(difference))
    return ratio.masked_fill(~counted, 0.0).sum(-1).cpu()


def observe_layers(
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    counted: Tensor | None,
    counted_decoder: Tensor | None = None,
) -> tuple[Any, tuple[Stack, Stack]]:
    """Run the model once.

    Args:
        model: In evaluation mode.
        inputs: Its keyword arguments, of B rows.
        counted: (B, n) bool, which positions count wherever there are n of them; None: all.
        counted_decoder: (B, m) bool, the same of a decoder beside an encoder; of the output it is asked first.

    Returns:
        What the model returned, and two stacks: ``attention``, the outputs of its attention layers, and ``output``, its
        own. Whatever a row's output is of, it counts once.

    Raises:
        ModelError: If a layer is not called, or what it or the model returns has no row for each of the inputs, or is
            NaN or infinite.
    """
    rows = next((len(value) for value in inputs.values() if value.dim()), 1)
    result: dict[str, list[Tensor]] = {}
    with torch.no_grad(), _listening(model, result):
        output = model(**inputs)
    kind = type(model).__name__
    layers = []
    for name, layer in _layers(model).items():
        called = name or kind
        calls = [
            _positions(one, rows, called, batch_first=getattr(layer, "batch_first", True))
            for one in result.get(name, ())
        ]
        if not calls:
            raise ModelError(
                f"{called} did not attend in this forward, so nothing changes where it is swapped. Give the model "
                "every input that it has layers for, or give the submodule that the inputs go through"
            )
        layers.append(torch.cat(calls, 1))
    first = getattr(model, "batch_first", True) if model in attention_layers(model).values() else True
    own = _positions(_tensor_of(output, kind), rows, f"the output of {kind}", batch_first=first)
    if not bool(own.isfinite().all()):
        raise ModelError(
            f"{kind} has NaN or infinity in its output on these inputs. Check its weights, and its dtype: float16 "
            "overflows where bfloat16 and float32 do not"
        )
    masks = [mask for mask in (counted, counted_decoder) if mask is not None]
    return output, (_stack("attention", layers, masks), _stack("output", [own], masks[::-1]))


@contextmanager
def _listening(model: nn.Module, found: dict[str, list[Tensor]]) -> Iterator[None]:
    def listener(name: str) -> Any:
        def heard(_module: nn.Module, _inputs: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            found.setdefault(name, []).append(first)

        return heard

    hooks = [layer.register_forward_hook(listener(name)) for name, layer in _layers(model).items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _layers(model: nn.Module) -> dict[str, nn.Module]:
    """Attention layers of ``fenchel.nn``; without any, the attention modules of transformers."""
    if has_own_layers(model):
        return {name: module for name, module in model.named_modules() if name in attention_layers(model)}
    return {name: module for module, name in attention_modules(model).items()}


def _positions(output: Tensor, rows: int, called: str, *, batch_first: bool) -> Tensor:
    """(B, positions, width), whatever a row's output is shaped like."""
    laid = output if batch_first or output.dim() < 2 else output.transpose(0, 1)
    if not laid.dim() or len(laid) != rows:
        raise ModelError(
            f"{called} has shape {tuple(output.shape)} for {rows} rows of inputs, so which row is which is not known. "
            "Have the model return a tensor with the rows first, and check batch_first of its layers"
        )
    if laid.dim() == 1:
        laid = laid.unsqueeze(-1)
    return laid.unsqueeze(1) if laid.dim() == 2 else laid.flatten(1, -2)


def _tensor_of(output: Any, kind: str) -> Tensor:
    if isinstance(output, Mapping):
        output = next((output[name] for name in _NAMED if name in output), next(iter(output.values()), None))
    elif not isinstance(output, Tensor):
        named = next((getattr(output, name) for name in _NAMED if hasattr(output, name)), None)
        output = (
            named
            if named is not None
            else output[0]
            if isinstance(output, Sequence) and len(output)
            else output
        )
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise ModelError(
            f"{kind} returned {shown(output)}; expected a tensor of real numbers, or several of which the first or "
            "logits is one. Wrap the model in one that returns what is to be compared"
        )
    return output


def _stack(name: str, states: list[Tensor], masks: Sequence[Tensor]) -> Stack:
    return Stack(name, tuple(states), tuple(_counted(one, masks) for one in states), by_row=True)


def _counted(states: Tensor, masks: Sequence[Tensor]) -> Tensor:
    for counted in masks:
        if counted.shape == states.shape[:2]:
            return counted.to(states.device)
    return torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)


def mean_outputs(model: nn.Module, task: Task, sites: Collection[Site]) -> dict[int, Tensor]:
    """The mean output of every head over all that counts of what a task reads, in one pass.

    Args:
        model: In evaluation mode.
        task: What it is asked to do.
        sites: The layers.

    Returns:
        By the number of a layer, (H, d_v) float64.
    """
    sums: dict[tuple[int, int], Tensor] = {}
    counts: Counter[tuple[int, int]] = Counter()
    masks: list[Tensor] = []

    def summed(number: int, head: CapturedHead) -> Tensor:
        # Where an encoder's sequence is as long as the decoder's, the name tells them apart.
        own = masks[::-1] if "decoder" in head.site.name.split(".") else masks
        counted = _counted(head.output, own)
        result = head.output[counted].double().sum(0).cpu()
        place = (number, head.head)
        sums[place] = sums.get(place, torch.zeros_like(result)) + result
        counts[place] += int(counted.sum())
        return head.output

    with torch.no_grad(), Capture(model, layers=[site.name for site in sites]) as heads:
        for site in sites:
            heads.replace(site.name, None, partial(summed, site.number))
        for step in task.steps({}):
            masks[:] = [mask for mask in (step.counted, step.counted_decoder) if mask is not None]
            model(**on_device(step.inputs, model))
    return {
        site.number: torch.stack(
            [sums[site.number, head] / max(counts[site.number, head], 1) for head in range(1, site.heads + 1)]
        )
        for site in sites
    }


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same value, such as what a model returned, with every tensor in it changed."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        made = {name: mapped(one, change) for name, one in value.items()}
        return made if type(value) is dict else type(value)(**made)
    if isinstance(value, list | tuple):
        parts = [mapped(one, change) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value
