"""The attention calls of a model of transformers, rerouted through the attention registry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from fenchel.arguments import Kind
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.sites import (
    AbstractSource,
    AttentionCall,
    AttentionSite,
    AttentionSites,
    PendingCall,
    check_names,
)
from fenchel.integrations.transformers.backend import (
    OWN,
    AttentionProblem,
    has_softcap,
    refuse_unsupported,
    weights_wanted,
)
from fenchel.integrations.transformers.backend import infer as infer_heads
from fenchel.integrations.transformers.key_map import KeyMap, Tracer, Visit, find_key_map
from fenchel.integrations.transformers.masks_and_sinks import (
    LogPreference,
    LogPreferences,
    among_indices,
    check_against_eager,
    softmax_attention,
)
from fenchel.integrations.transformers.model_inputs import RealQueries
from fenchel.integrations.transformers.registry import (
    attention_implementation,
    attention_modules,
    register_backend,
    require_transformers,
)
from fenchel.integrations.transformers.switching import HeadsInfer, inference_for_now
from fenchel.nn.inference import Inferred

__all__ = ["ModelSource"]

_BACKEND = "fenchel_capture"

_Handler = Callable[[PendingCall], Inferred]


class ModelSource(AbstractSource):
    """A model of transformers.

    Args:
        model: Its family calls the attention registry.

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
        takes_decoder_inputs = "decoder_input_ids" in inspect.signature(model.forward).parameters
        self._has_decoder = bool(getattr(model.config, "is_encoder_decoder", False)) and takes_decoder_inputs
        self._decoder = self._modules_of_decoder() if self._has_decoder else frozenset()
        self._checked: set[nn.Module] = set()
        self._preferences = LogPreferences()
        self._preference = LogPreference()
        self._tracer: Tracer | None = None
        self._visit: Visit | None = None
        self._is_causal: bool | None = None
        self._key_maps: dict[nn.Module, KeyMap] = {}
        self._taken: dict[nn.Module, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        self._saw_single_key = False
        self._added = 0
        self._traces = True

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
    def intercept(self, handler: _Handler) -> Iterator[None]:
        register_backend(_BACKEND, _intercepted_attention)
        # Read before the private name takes the place of the model's own.
        _intercepted.update(
            (module, partial(self._attention, handler, inference_for_now(module))) for module in self.modules
        )
        if self._traces:
            self._tracer = Tracer(self.modules)
        else:
            self._watch_key_maps()
        try:
            with attention_implementation(self._model, _BACKEND):
                yield
        finally:
            for module in self.modules:
                _intercepted.pop(module, None)
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            self._stop_tracing()
            self.begin()

    @override
    def begin(self) -> None:
        self._preferences, self._preference = LogPreferences(), LogPreference()
        self._visit, self._saw_single_key = None, False
        self._taken.clear()
        if self._tracer is not None:
            self._tracer.clear()

    @override
    def finish(self) -> None:
        # A rotation by position 0, that of a single token, looks like none: look again at the next batch.
        if self.sites.complete and not self._saw_single_key:
            self._traces = False
            self._stop_tracing()
        self.begin()

    def _stop_tracing(self) -> None:
        if self._tracer is not None:
            self._tracer.remove()
            self._tracer = None

    def _watch_key_maps(self) -> None:
        def take(key_map: nn.Module, args: tuple[Any, ...]) -> None:
            self._taken[key_map] = args[0]

        maps = {key_map.map for key_map in self._key_maps.values()}
        self._handles = [key_map.register_forward_pre_hook(take) for key_map in maps]

    def _attention(
        self,
        handler: _Handler,
        how: HeadsInfer,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        scaling: float | None = None,
        dropout: float = 0.0,
        position_bias: Tensor | None = None,
        is_causal: bool | None = None,
        **arguments: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as the capture answers, in the form in which transformers calls attention functions."""
        name, family = self.modules[module], type(module).__name__
        refuse_unsupported(name, family, arguments)
        if query.shape[1] % key.shape[1]:
            raise CaptureError(
                f"{name} ({family}) has {query.shape[1]} query heads, not a multiple of {key.shape[1]} key "
                "heads"
            )
        if has_softcap(arguments):
            raise ModelError(
                f"{name} ({family}) passes 'softcap' to its attention: what a soft cap changes depends on the query, "
                "so scores are no longer a preference plus linear evidence, and how far first order is from exact is "
                "not defined. Use a configuration without the cap"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        attention_mask = among_indices(attention_mask, arguments.pop("indices", None), key.shape[2])
        self._is_causal = is_causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        preference = self._preferences(name, query, key, attention_mask, position_bias, is_causal)
        self._preference = preference
        self._visit = None if self._tracer is None else self._tracer.take(module)
        asked = AttentionProblem(
            query, key, value, preference.mask_or_bias, scale, dropout if module.training else 0.0
        ).with_arguments(name, arguments)
        self._added = asked.sinks
        if module not in self._checked:
            # Families know softmax alone: what is compared is how they make their scores.
            with torch.no_grad():
                plain = infer_heads(replace(asked, dropout_p=0.0), OWN, site=name) if self._added else None
                softmax = (
                    softmax_attention(query, key, value, scale, preference)
                    if plain is None
                    else plain.output.transpose(1, 2)
                )
                call = (query, key, value, softmax)
                check_against_eager(name, module, *call, scale, preference, position_bias, arguments)
            self._checked.add(module)
        wanted = weights_wanted(module, arguments)

        def infer(call: PendingCall, weights: bool) -> Inferred:
            own = call.preference is preference.mask_or_bias and not call.dropout
            if how.is_softmax and own and not (weights or wanted):
                given = (call.evidence, call.templates, call.values, float(call.scale))
                return Inferred(softmax_attention(*given, preference).transpose(1, 2))
            problem = AttentionProblem(
                call.evidence, call.templates, call.values, call.preference, call.scale, call.dropout
            )
            chosen, others, heads = how
            return infer_heads(problem, chosen, heads, site=name, own=others, weights=weights or wanted)

        found = handler(
            PendingCall(
                module=module,
                evidence=query,
                templates=asked.key,
                values=asked.value,
                preference=asked.log_preference,
                scale=scale,
                alphas=how.alphas(query.shape[1]),
                dropout=asked.dropout_p,
                vectors=True,
                reads_values=True,
                how=infer,
            )
        )
        weights = found.weights if wanted else None
        if weights is not None and asked.sinks:
            weights = weights[..., : -asked.sinks]
        return found.output.transpose(1, 2).contiguous(), weights

    @override
    def kind(self, call: PendingCall) -> Kind:
        queries, keys = call.evidence.shape[2], call.templates.shape[2] - self._added
        visit = self._visit or Visit()
        # What a cache holds comes from the sequence itself.
        longer = queries != keys and not any(name.startswith("past_key_value") for name in visit.arguments)
        if longer or visit.reads_two_sources(call.values):
            return "cross"
        if self._has_decoder:
            return "decoder_self" if call.module in self._decoder else "encoder_self"
        if self._preference.is_causal(queries, keys):
            return "decoder_self"
        # One token tells nothing, and a decoder with a two-way prefix is not causal throughout: believe the
        # family. A mask that all queries share shows that a causal family is used as an encoder.
        undecided = queries == 1 or not self._preference.is_shared_by_queries()
        return "decoder_self" if self._is_causal and undecided else "encoder_self"

    @override
    def check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        check_names(self._model, inputs)
        if self._has_decoder and not {"decoder_input_ids", "decoder_inputs_embeds"} & inputs.keys():
            raise InputError(
                f"{type(self._model).__name__} has a decoder and needs decoder_input_ids beside "
                f"{', '.join(inputs) or 'nothing'}; "
                "make them from the target text with fenchel.integrations.transformers.decoder_inputs"
            )

    @override
    def described(
        self, call: PendingCall, site: AttentionSite, space: str, real: RealQueries
    ) -> AttentionCall:
        inputs, key_map = self._key_map(call) if space == "input" else (None, None)
        of_decoder = self._has_decoder and site.kind != "encoder_self"
        return AttentionCall(
            site=site,
            query=call.evidence,
            key=call.templates,
            scaling=float(call.scale),
            preference=call.preference,
            counted=real(
                site.name,
                call.evidence,
                self._preference.empty_rows,
                decoder=of_decoder,
                masked=self._preference.mask_or_bias is not None,
            ),
            inputs=inputs,
            key_weight=None if key_map is None else key_map.weight,
            key_bias=None if key_map is None else key_map.bias,
            value=call.values,
        )

    def _key_map(self, call: PendingCall) -> tuple[Tensor, KeyMap]:
        """What the key map of a module took just now, (B, n, width), and the map."""
        module, key, name = call.module, call.templates, self.modules[call.module]
        if self._added:
            raise ModelError(
                f"{name} ({type(module).__name__}) has an attention sink, a template that is no linear map of the "
                "layer's input. Use space='key' for this model"
            )
        if self._visit is not None:
            inputs, key_map = find_key_map(name, module, self._visit, key)
            self._key_maps[module] = key_map
            self._saw_single_key |= key.shape[2] == 1
            return inputs, key_map
        key_map = self._key_maps[module]
        taken = self._taken.pop(key_map.map, None)
        if taken is None:
            raise CaptureError(
                f"{name} attended without calling its key map {key_map.name}, as it did in the first forward"
            )
        return key_map.inputs(taken, key), key_map


_intercepted: WeakKeyDictionary[nn.Module, Callable[..., tuple[Tensor, Tensor | None]]] = WeakKeyDictionary()
"""Where the calls of a module go: the registries are process-wide and know no models."""


def _intercepted_attention(module: nn.Module, *call: Any, **arguments: Any) -> tuple[Tensor, Tensor | None]:
    attention = _intercepted.get(module)
    if attention is None:
        raise CaptureError(
            f"{type(module).__name__} asked for the attention {_BACKEND!r} although it is not being "
            "captured. Choose another: model.set_attn_implementation('sdpa')"
        )
    return attention(module, *call, **arguments)
