"""What an attention module and its linear maps are given, noted while the model runs for the first time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

__all__ = ["Trace", "Tracer", "Visit"]


@dataclass(frozen=True)
class Trace:
    """What one linear map took and gave.

    Attributes:
        name: Its qualified name.
        map: The map itself.
        input: (..., width).
        output: (..., outputs).
    """

    name: str
    map: nn.Module
    input: Tensor
    output: Tensor


def _linear_maps(module: nn.Module) -> dict[nn.Module, str]:
    """The linear maps inside ``module`` (``nn.Linear``, and GPT-2's ``Conv1D``), by their names within it."""
    from transformers.pytorch_utils import Conv1D

    return {below: name for name, below in module.named_modules() if isinstance(below, (nn.Linear, Conv1D))}


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one is other or (one.data_ptr() == other.data_ptr() and one.numel() == other.numel())


def _gives(trace: Trace, heads: Tensor) -> bool:
    """Whether the output of a map is ``heads`` (B, H, n, d), all of it and nothing else."""
    if trace.output.numel() != heads.numel():
        return False
    return torch.equal(trace.output.reshape(heads.transpose(1, 2).shape).transpose(1, 2), heads)


@dataclass
class Visit:
    """One call of an attention module, up to where it asks for its attention.

    Attributes:
        arguments: Names of the keyword arguments that were given and not None.
        tensors: The tensors among all its arguments.
        traces: Its linear maps in the order in which they ran.
    """

    arguments: set[str] = field(default_factory=set)
    tensors: list[Tensor] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)

    def reads_two_sources(self, value: Tensor) -> bool:
        """Whether queries and keys come from different arguments of the module.

        Args:
            value: (B, H_kv, n, d_v). A map that gives nothing else is left aside: MobileBERT takes its values
                from another tensor than queries and keys, and yet attends from a sequence to itself.
        """
        traces = [trace for trace in self.traces if not _gives(trace, value)]
        sources: list[Tensor] = []
        for tensor in self.tensors:
            taken = any(_same_memory(trace.input, tensor) for trace in traces)
            if taken and not any(_same_memory(source, tensor) for source in sources):
                sources.append(tensor)
        return len(sources) > 1


class Tracer:
    """Hooks that note, per attention module, its arguments and its linear maps' inputs and outputs.

    Only what runs between the start of the module and its attention is kept, and only until it is taken.

    Args:
        modules: Attention modules with their qualified names.
    """

    def __init__(self, modules: Mapping[nn.Module, str]) -> None:
        self._visits: dict[nn.Module, Visit] = {}
        self._handles: list[RemovableHandle] = []
        for module, site in modules.items():
            self._handles.append(module.register_forward_pre_hook(self._open, with_kwargs=True))
            for linear, name in _linear_maps(module).items():
                hook = self._linear_hook(module, f"{site}.{name}")
                self._handles.append(linear.register_forward_hook(hook))

    def _open(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {name for name, value in kwargs.items() if value is not None}
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        self._visits[module] = Visit(given, tensors)

    def _linear_hook(self, owner: nn.Module, name: str) -> Any:
        def note(linear: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            visit = self._visits.get(owner)
            if visit is not None and args:
                visit.traces.append(Trace(name, linear, args[0], output))

        return note

    def take(self, module: nn.Module) -> Visit:
        """What was noted about the current call of ``module``; nothing of it is kept here."""
        return self._visits.pop(module, Visit())

    def clear(self) -> None:
        """Forget what was noted and not taken."""
        self._visits.clear()

    def remove(self) -> None:
        """Take all hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._visits.clear()
