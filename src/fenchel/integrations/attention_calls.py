"""Captures the attention calls of a model of transformers through the attention registry, and finds its key maps.

A key map is the linear map that computes a layer's keys; it is found by tracing a forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fenchel.arguments import Kind
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.functional.arguments import compute_dtype
from fenchel.integrations.backend import ModelCall, Setting, attending_by, setting_of
from fenchel.integrations.masks_and_sinks import LogPreferences
from fenchel.integrations.registry import attention_modules, require_transformers
from fenchel.integrations.sites import (
    AbstractSource,
    AttentionCall,
    AttentionSite,
    AttentionSites,
    RealQueries,
    check_names,
    named_arguments,
)
from fenchel.nn.inference import Inferred, KeyProjection


class ModelSource(AbstractSource):
    """A model of transformers.

    Args:
        model: A model whose family calls the attention registry.

    Raises:
        MissingExtraError: If transformers is not installed.
        ModelError: If the model is not one of transformers, or has attention that cannot be reached.
    """

    def __init__(self, model: nn.Module) -> None:
        if not isinstance(model, require_transformers().PreTrainedModel):
            raise ModelError(
                f"got a {type(model).__name__}; expected a model of transformers (PreTrainedModel) or one with "
                "attention layers of fenchel.nn. Unwrap compiled and parallel models first"
            )
        self._model: Any = model
        self.modules = attention_modules(model)
        layers = getattr(model.config, "num_hidden_layers", None)
        shares = isinstance(layers, int) and len(self.modules) < layers
        self.sites = AttentionSites(
            type(model).__name__, self.modules, repeated=shares, total=layers if shares else None
        )
        takes_decoder_inputs = "decoder_input_ids" in named_arguments(model)
        self._has_decoder = bool(getattr(model.config, "is_encoder_decoder", False)) and takes_decoder_inputs
        self._decoder = self._modules_of_decoder() if self._has_decoder else frozenset()
        self._checked: set[nn.Module] = set()
        self._preferences = LogPreferences()
        self._visits: dict[nn.Module, Visit] = {}
        self._key_maps: dict[nn.Module, KeyMap] = {}
        self._saw_single_key = self._knows_key_maps = False

    def _modules_of_decoder(self) -> frozenset[nn.Module]:
        decoder = self._model
        while hasattr(decoder, "get_decoder") and (inner := decoder.get_decoder()) not in (decoder, None):
            decoder = inner  # a wrapper's decoder may itself hold an encoder and a decoder
        if decoder is self._model:
            raise ModelError(
                f"{type(self._model).__name__} does not say which of its modules are the decoder"
            )
        return frozenset(decoder.modules())

    @override
    @contextmanager
    def intercept(self, handler: Callable[[ModelCall], Inferred]) -> Iterator[None]:
        def intercepted(own: Setting, call: ModelCall) -> Inferred:
            own.called = True  # inside use_backend this is its attention, too
            result = handler(replace(call, omits_sinks=False))
            self._visits.pop(call.module, None)
            if result.weights is not None and call.sinks:
                return result._replace(weights=result.weights[..., : -call.sinks])
            return result

        settings: dict[nn.Module, Setting] = {}
        for module, name in self.modules.items():
            own = setting_of(module)
            settings[module] = replace(
                own,
                site=name,
                handler=partial(intercepted, own),
                preferences=self._preferences,
                checked=self._checked,
            )
        try:
            with _traced(self.modules) as self._visits, attending_by(self._model, settings):
                yield
        finally:
            self._forget()

    @override
    def begin(self) -> None:
        super().begin()
        self._forget()

    def _forget(self) -> None:
        self._saw_single_key = False
        self._preferences.clear()
        self._visits.clear()

    @override
    def finish(self, *, all_called: bool) -> None:
        super().finish(all_called=all_called)
        # A rotation by position 0, that of a single token, looks like none: look again at the next batch.
        self._knows_key_maps |= self.sites.complete and not self._saw_single_key
        self._forget()

    @override
    def kind(self, call: ModelCall) -> Kind:
        problem, preference = call.problem, call.reduced
        assert preference is not None  # noqa: S101 -- captures reduce it
        visit = self._visits.get(call.module, Visit())
        queries, keys = problem.evidence.shape[2], problem.templates.shape[2] - call.sinks
        # Keys in a cache are of the same sequence.
        longer = queries != keys and not any(name.startswith("past_key_value") for name in visit.arguments)
        if longer or visit.reads_two_sources(problem.values):
            return "cross"
        if self._has_decoder:
            return "decoder_self" if call.module in self._decoder else "encoder_self"
        if preference.is_causal(queries, keys):
            return "decoder_self"
        # One token cannot decide, and a decoder with a bidirectional prefix is not causal throughout: use the
        # family's flag. A mask that all queries share shows that a causal family is used as an encoder.
        undecided = queries == 1 or not preference.is_shared_by_queries()
        return "decoder_self" if preference.family_is_causal and undecided else "encoder_self"

    @override
    def check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        check_names(self._model, inputs, declared=True)
        if self._has_decoder and not {"decoder_input_ids", "decoder_inputs_embeds"} & inputs.keys():
            raise InputError(
                f"{type(self._model).__name__} has a decoder and needs decoder_input_ids beside "
                f"{', '.join(inputs) or 'nothing'}; "
                "make them from the target text with fenchel.integrations.transformers.decoder_inputs"
            )

    @override
    def described(self, call: ModelCall, site: AttentionSite, space: str, real: RealQueries) -> AttentionCall:
        problem, preference = call.problem, call.reduced
        assert preference is not None  # noqa: S101 -- captures reduce it
        projection = self._projection(call) if space == "input" else (None, None, None)
        of_decoder = self._has_decoder and site.kind != "encoder_self"
        masked = preference.mask_or_bias is not None
        counted = real(site.name, problem.evidence, preference.empty_rows, decoder=of_decoder, masked=masked)
        tensors, scaling = (problem.evidence, problem.templates), float(problem.scale)
        return AttentionCall(site, *tensors, scaling, call.preference, counted, *projection, problem.values)

    def _projection(self, call: ModelCall) -> KeyProjection:
        """The linear map of the keys of a call, with its input."""
        module, key = call.module, call.problem.templates
        name, visit = self.modules[module], self._visits.get(module, Visit())
        if call.sinks:
            raise ModelError(
                f"{name} ({type(module).__name__}) has an attention sink, a template that is not a linear map of the "
                "layer's input. Use space='key' for this model"
            )
        if not self._knows_key_maps:
            projection, self._key_maps[module] = find_key_map(name, module, visit, key)
            self._saw_single_key |= key.shape[2] == 1
            return projection
        key_map = self._key_maps[module]
        trace = next((trace for trace in visit.traces if trace.map is key_map.map), None)
        if trace is None:
            raise CaptureError(
                f"{name} attended without calling its key map {key_map.name}, as it did in the first forward"
            )
        return key_map.projection(trace.input, key)


@dataclass(frozen=True)
class Trace:
    """Input and output of one linear map.

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
    """Whether the output of a map is exactly ``heads`` (B, H, n, d)."""
    if trace.output.numel() != heads.numel():
        return False
    return torch.equal(trace.output.reshape(heads.transpose(1, 2).shape).transpose(1, 2), heads)


@dataclass
class Visit:
    """One call of an attention module, up to its attention function.

    Attributes:
        arguments: Names of the keyword arguments that are not None.
        tensors: The tensors among all its arguments.
        traces: Its linear maps in the order of execution.
        module: The module.
    """

    arguments: set[str] = field(default_factory=set)
    tensors: list[Tensor] = field(default_factory=list)
    traces: list[Trace] = field(default_factory=list)
    module: nn.Module | None = None

    def reads_two_sources(self, value: Tensor) -> bool:
        """Whether queries and keys come from different arguments of the module.

        Args:
            value: (B, H_kv, n, d_v). Maps with this output are ignored: MobileBERT projects its values from another
                tensor than queries and keys, and yet attends from a sequence to itself.
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


@contextmanager
def _traced(modules: Mapping[nn.Module, str]) -> Iterator[dict[nn.Module, Visit]]:
    """Record the current call of each attention module until the block ends.

    A record ends with the call of the attention function and is kept until it is removed or the module is called again.

    Args:
        modules: Attention modules with their qualified names.
    """
    visits: dict[nn.Module, Visit] = {}

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = {name for name, value in kwargs.items() if value is not None}
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        visits[module] = Visit(given, tensors, module=module)

    def note(owner: nn.Module, name: str, linear: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
        if owner in visits and args:
            visits[owner].traces.append(Trace(name, linear, args[0], output))

    with ExitStack() as stack:
        for module, site in modules.items():
            stack.callback(module.register_forward_pre_hook(begin, with_kwargs=True).remove)
            for linear, name in _linear_maps(module).items():
                hook = partial(note, module, f"{site}.{name}")
                stack.callback(linear.register_forward_hook(hook).remove)
        yield visits


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

    def projection(self, traced: Tensor, key: Tensor) -> KeyProjection:
        """The map, with its traced input for ``key`` (B, H_kv, n, d_h) as (B, n, width)."""
        inputs = traced.reshape(key.shape[0], key.shape[2], self.weight.shape[-1])
        return KeyProjection(inputs, self.weight, self.bias)

    def disagreement(self, inputs: Tensor, key: Tensor) -> float:
        """Largest |k - (W x + b)|, as a multiple of the bound on rounding in the key's dtype.

        A sum of ``width`` products is off by at most (width + 2)·eps times the sum of their magnitudes; a
        product in a lower dtype is accumulated in float32 and rounded once or twice, but a GPU may use less
        (TF32).
        """
        wide = compute_dtype(key.dtype)
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
    """Possible indices of the key (H_kv, d_h) among the outputs of a map: one block, or one block a head."""
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
    """Indices of the outputs of the traced map that are the key, (H_kv, d_h); None if none are."""
    batch, heads, keys, width = key.shape
    if trace.output.numel() != batch * keys * trace.output.shape[-1]:
        return None
    output = trace.output.reshape(batch, keys, -1)
    for rows in _rows(output.shape[-1], heads, width):
        picked = output[..., rows.flatten().to(output.device)].view(batch, keys, heads, width).transpose(1, 2)
        if torch.equal(picked, key):
            return rows
    return None


def find_key_map(site: str, module: nn.Module, visit: Visit, key: Tensor) -> tuple[KeyProjection, KeyMap]:
    """The linear map inside ``module`` that computed ``key``, and its input.

    Args:
        site: Qualified name of the attention module, for messages.
        module: The attention module.
        visit: The record of its call.
        key: (B, H_kv, n, d_h) as it reached the attention function.

    Returns:
        The map with its input x, for which k = W x + b has been verified, and where it was found.

    Raises:
        ModelError: If the key is not a linear map of the input: rotary positions, key norms, adapters,
            quantisation.
        CaptureError: If several maps gave the same key, so that the input is ambiguous.
    """
    result = [(trace, rows) for trace in visit.traces if (rows := _matches(trace, key)) is not None]
    family = type(module).__name__
    advice = (
        "space='input' needs keys that are a linear map of the layer's input. Use space='key' for this model"
    )
    if not result:
        raise ModelError(
            f"{site} ({family}): no linear map gives the keys that reach its attention, because rotary position "
            f"embeddings, a norm or something else changes them after it. {advice}"
        )
    if len(result) > 1:
        names = ", ".join(trace.name for trace, _ in result)
        raise CaptureError(
            f"{site} ({family}): the maps {names} give the same keys on this batch, so the key map cannot be "
            "told from the others. Start with another batch, or use space='key'"
        )
    trace, rows = result[0]
    weight, bias = _weights(trace.map, rows)
    key_map = KeyMap(trace.name, trace.map, weight, bias)
    projection = key_map.projection(trace.input, key)
    disagreement = key_map.disagreement(projection.inputs, key)
    if not disagreement <= 1:
        raise ModelError(
            f"{site} ({family}): its keys are not {trace.name}'s weight times its input, plus its bias: the "
            f"difference is {disagreement:.1g} times what rounding explains, as with quantised or adapted "
            f"weights. {advice}"
        )
    return projection, key_map
