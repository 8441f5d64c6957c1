"""The linear map that makes a layer's keys, found by tracing a forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fenchel.errors import CaptureError, ModelError

__all__ = ["KeyMap", "Trace", "Tracer", "Visit", "find_key_map"]


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
        module: The module.
    """

    arguments: set[str] = field(default_factory=set)
    tensors: list[Tensor] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    module: nn.Module | None = None

    def reads_two_sources(self, value: Tensor) -> bool:
        """Whether queries and keys come from different arguments of the module.

        Args:
            value: (B, H_kv, n, d_v). A map that gives nothing else is left aside: MobileBERT takes its values
                from another tensor than queries and keys, and yet attends from a sequence to itself.
        """
        if isinstance(self.module, nn.MultiheadAttention):
            return not _same_memory(*self.tensors[:2])
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
        self._visits[module] = Visit(given, tensors, module=module)

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


@dataclass(frozen=True)
class KeyMap:
    """The key map of one attention module.

    Attributes:
        name: Qualified name of the linear map.
        map: The module itself; its input is x.
        weight: (H_kv, d_h, width).
        bias: (H_kv, d_h), or None.
    """

    name: str
    map: nn.Module
    weight: Tensor
    bias: Tensor | None

    def inputs(self, given: Tensor, key: Tensor) -> Tensor:
        """What the map took to give ``key`` (B, H_kv, n, d_h), as (B, n, width)."""
        return given.reshape(key.shape[0], key.shape[2], self.weight.shape[-1])

    def disagreement(self, inputs: Tensor, key: Tensor) -> float:
        """Largest |k - (W x + b)|, as a multiple of what rounding in the key's dtype explains.

        A sum of ``width`` products is off by at most (width + 2)·eps times the sum of their magnitudes; a
        product in a lower dtype is accumulated in float32 and rounded once or twice, but a GPU may use less
        (TF32).
        """
        wide = torch.float64 if key.dtype == torch.float64 else torch.float32
        x, weight = inputs.to(wide), self.weight.to(wide)
        expected = torch.einsum("bnw,hdw->bhnd", x, weight)
        scale = torch.einsum("bnw,hdw->bhnd", x.abs(), weight.abs())
        if self.bias is not None:
            bias = self.bias.to(wide)[None, :, None, :]
            expected, scale = expected + bias, scale + bias.abs()
        if key.dtype == torch.float32 and key.is_cuda and torch.backends.cuda.matmul.allow_tf32:
            unit = 2.0**-9
        elif key.dtype in (torch.float32, torch.float64):
            unit = (x.shape[-1] ** 0.5 + 8) * torch.finfo(key.dtype).eps
        else:
            unit = 2 * torch.finfo(key.dtype).eps
        error = (key.to(wide) - expected).abs() / (unit * scale).clamp_min(torch.finfo(wide).tiny)
        return float(error.max())


def _rows(outputs: int, heads: int, width: int) -> list[Tensor]:
    """Where the key (H_kv, d_h) may sit among the outputs of a map: a block of its own, or one a head."""
    size = heads * width
    if outputs % size:
        return []
    every = torch.arange(outputs)
    parts = outputs // size
    blocks = [part.view(heads, width) for part in every.chunk(parts)]
    interleaved = list(every.view(heads, parts, width).unbind(1)) if parts > 1 else []
    return blocks + interleaved


def _weights(map_: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weight (H_kv, d_h, width) and bias (H_kv, d_h) of the outputs ``rows``, as views where possible."""
    weight, bias = map_.get_parameter("weight").detach(), getattr(map_, "bias", None)
    if not isinstance(map_, nn.Linear):  # Conv1D multiplies from the right
        weight = weight.T
    first, size = int(rows.flatten()[0]), rows.numel()
    is_block = torch.equal(rows.flatten(), torch.arange(first, first + size))
    chosen = slice(first, first + size) if is_block else rows.flatten().to(weight.device)
    weight = weight[chosen].reshape(*rows.shape, -1)
    return weight, None if bias is None else bias.detach()[chosen].view(rows.shape)


def _matches(trace: Trace, key: Tensor) -> Tensor | None:
    """Which outputs of the traced map are the key, as (H_kv, d_h); None if none are."""
    batch, heads, keys, width = key.shape
    if trace.output.numel() != batch * keys * trace.output.shape[-1]:
        return None
    output = trace.output.reshape(batch, keys, -1)
    for rows in _rows(output.shape[-1], heads, width):
        picked = output[..., rows.flatten().to(output.device)].view(batch, keys, heads, width).transpose(1, 2)
        if torch.equal(picked, key):
            return rows
    return None


def _cause(module: nn.Module, arguments: set[str]) -> str:
    """The likeliest reason why no linear map gives the key, from what the module holds and takes."""
    names = [name for name, _ in module.named_modules()]
    norms = [name for name in names if "norm" in name.lower() and "k" in name.lower().split("norm")[0]]
    rotary = bool(arguments & {"position_embeddings", "rotary_pos_emb"}) or any(
        "rotary" in name for name in names
    )
    causes = ["rotary position embeddings turn the keys"] if rotary else []
    causes += [f"the keys are normalised ({norms[0]})"] if norms else []
    return " and ".join(causes) or "something changes the keys"


def find_key_map(site: str, module: nn.Module, visit: Visit, key: Tensor) -> tuple[Tensor, KeyMap]:
    """The linear map inside ``module`` that made ``key``, and what it took.

    Args:
        site: Qualified name of the attention module, for messages.
        module: The attention module.
        visit: What it was called with, and its linear maps that have run since.
        key: (B, H_kv, n, d_h) as it reached the attention function.

    Returns:
        The input x of the map, (B, n, width), and the map, for which k = W x + b has been verified.

    Raises:
        ModelError: If the key is not a linear map of the input: rotary positions, key norms, adapters,
            quantisation.
        CaptureError: If several maps made the same key, so that the input cannot be told.
    """
    found = [(trace, rows) for trace in visit.traces if (rows := _matches(trace, key)) is not None]
    family = type(module).__name__
    advice = (
        "space='input' needs keys that are a linear map of the layer's input. Use space='key' for this model"
    )
    if not found:
        raise ModelError(
            f"{site} ({family}): no linear map gives the keys that reach its attention, because "
            f"{_cause(module, visit.arguments)} between the map and the attention. {advice}"
        )
    if len(found) > 1:
        names = ", ".join(trace.name for trace, _ in found)
        raise CaptureError(
            f"{site} ({family}): the maps {names} give the same keys on this batch, so the key map cannot be "
            "told from the others. Start with another batch, or use space='key'"
        )
    trace, rows = found[0]
    weight, bias = _weights(trace.map, rows)
    key_map = KeyMap(trace.name, trace.map, weight, bias)
    inputs = key_map.inputs(trace.input, key)
    disagreement = key_map.disagreement(inputs, key)
    if not disagreement <= 1:
        raise ModelError(
            f"{site} ({family}): its keys are not {trace.name}'s weight times its input, plus its bias: the "
            f"difference is {disagreement:.1g} times what rounding explains, as with quantised or adapted "
            f"weights. {advice}"
        )
    return inputs, key_map
