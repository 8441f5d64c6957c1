"""What one forward of a model says on examples: the output of each of its attention layers, and its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import shown
from fenchel.errors import ModelError
from fenchel.integrations.transformers.attention_modules import attention_modules
from fenchel.nn.inference import attention_layers
from fenchel.swap.layer_switch import has_own_layers
from fenchel.swap.observation import Stack

__all__ = ["observe_layers"]

_NAMED = ("logits", "last_hidden_state")


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
    found: dict[str, list[Tensor]] = {}
    with torch.no_grad(), _listening(model, found):
        output = model(**inputs)
    kind = type(model).__name__
    layers = []
    for name, layer in _layers(model).items():
        called = name or kind
        calls = [
            _positions(one, rows, called, batch_first=getattr(layer, "batch_first", True))
            for one in found.get(name, ())
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
