"""One forward pass of a pretrained model, seen as the inference problems that its attention heads stand for.

The model runs as it is; its attention function is replaced by one that computes the same output and, on the
way, hands each site's query, key and log-preference to a consumer. Nothing is kept from one batch to the
next.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fenchel.auditing.sites import (
    AttentionCall,
    AttentionSite,
    AttentionSites,
    check_capture,
    check_evaluating,
    check_names,
    estimator_of,
)
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.functional import attention
from fenchel.integrations.transformers.arguments import refuse_unsupported
from fenchel.integrations.transformers.attention_modules import attention_modules
from fenchel.integrations.transformers.backend import closeness_of
from fenchel.integrations.transformers.eager_check import check_against_eager
from fenchel.integrations.transformers.key_map import KeyMap, find_key_map
from fenchel.integrations.transformers.log_preference import LogPreferences
from fenchel.integrations.transformers.real_queries import RealQueries
from fenchel.integrations.transformers.registry import attention_implementation, register_backend
from fenchel.integrations.transformers.requirement import require_transformers
from fenchel.integrations.transformers.softmax_attention import softmax_attention
from fenchel.integrations.transformers.tracing import Tracer, Visit

__all__ = ["AttentionCall", "Capture"]

_BACKEND = "fenchel_capture"

_capturing: dict[int, Capture] = {}
"""The capture at work on each module, by ``id``: the registries are process-wide and know no models."""


@dataclass
class _Forward:
    """What lives as long as one forward pass."""

    real_queries: RealQueries
    preferences: LogPreferences = field(default_factory=LogPreferences)
    taken: dict[nn.Module, Tensor] = field(default_factory=dict)
    saw_single_key: bool = False


class Capture:
    """Run a model and hand every attention call to a consumer; a context manager.

    Args:
        model: A transformers model in eval mode whose family calls the attention registry.
        space: "input" also gives the key map and its input; "key" gives neither, and works for every family.
        consume: Called inside the forward, once per site and batch, under ``torch.no_grad``. What it raises
            comes through unchanged, and the model is left as it was.
        layers: Numbers (from 1) of the layers to consume, within each kind; None is all.

    Raises:
        MissingExtraError: If transformers is not installed.
        ModelError: If the model is not one of transformers, or has attention that cannot be captured.
        InputError: If ``space`` or ``layers`` is not one of those that there are.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> config = BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)
        >>> def consume(call):
        ...     print(call.site.name, call.site.kind, call.site.layer, tuple(call.query.shape))
        >>> with Capture(BertModel(config).eval(), space="input", consume=consume) as capture:
        ...     capture.run({"input_ids": torch.tensor([[1, 2, 3]])})
        encoder.layer.0.attention.self encoder_self 1 (1, 2, 3, 4)
        encoder.layer.1.attention.self encoder_self 2 (1, 2, 3, 4)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        space: Literal["input", "key"],
        consume: Callable[[AttentionCall], None],
        layers: Collection[int] | None = None,
    ) -> None:
        transformers = require_transformers()
        if not isinstance(model, transformers.PreTrainedModel):
            raise ModelError(
                f"got a {type(model).__name__}; expected a model of transformers (PreTrainedModel). "
                "Unwrap compiled and parallel models first"
            )
        check_capture(space, layers)
        self._model = model
        self._space = space
        self._consume = consume
        self._layers = None if layers is None else frozenset(layers)
        self._modules = attention_modules(model)
        self._sites = AttentionSites(model, self._modules)
        self._parameters = inspect.signature(model.forward).parameters
        # Read before the capture puts its own name in the place of the configuration's.
        self._own = {module: (closeness_of(module), estimator_of(module)) for module in self._modules}
        self._key_maps: dict[nn.Module, KeyMap] = {}
        self._checked: set[nn.Module] = set()
        self._forward: _Forward | None = None
        self._tracer: Tracer | None = None
        self._handles: list[RemovableHandle] = []
        self._entered = False

    @property
    def sites(self) -> tuple[AttentionSite, ...]:
        """The sites in the order in which the model calls them; complete after the first batch."""
        return tuple(self._sites)

    def __enter__(self) -> Capture:
        busy = next((name for module, name in self._modules.items() if id(module) in _capturing), None)
        if busy is not None:
            raise CaptureError(
                f"{busy} of this {type(self._model).__name__} is being captured already; leave that first"
            )
        register_backend(_BACKEND, _captured_attention)
        _capturing.update((id(module), self) for module in self._modules)
        self._tracer = Tracer(self._modules)
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for module in self._modules:
            _capturing.pop(id(module), None)
        self._stop_tracing()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._entered = False

    def run(
        self,
        inputs: Mapping[str, Tensor],
        *,
        counted: Tensor | None = None,
        counted_decoder: Tensor | None = None,
    ) -> None:
        """One forward pass, with ``consume`` called inside it.

        Args:
            inputs: What the model's forward takes, by name. An encoder-decoder model needs
                ``decoder_input_ids`` (see ``fenchel.integrations.transformers.decoder_inputs``). What the
                attention masks pad is not counted.
            counted: (B, n) bool, restricts further which queries are real.
            counted_decoder: (B, m) bool, the same for the decoder of an encoder-decoder model.

        Raises:
            CaptureError: If a site was not called, or called in a way that is not understood.
            ModelError: If the model is in training mode, or its attention cannot be audited in this space.
            InputError: If the inputs do not fit the model, or a layer that was asked for does not exist.
        """
        if not self._entered:
            raise CaptureError(
                "run was called outside of the capture; write: with Capture(...) as capture: capture.run(...)"
            )
        self._require_fitting(inputs)
        extra = {"use_cache": False} if "use_cache" in self._parameters and "use_cache" not in inputs else {}
        self._forward = forward = _Forward(RealQueries(inputs, counted, counted_decoder))
        self._sites.begin()
        try:
            with torch.no_grad(), attention_implementation(self._model, _BACKEND):
                self._model(**inputs, **extra)
                if self._sites.called:
                    self._sites.finish()
        finally:
            self._forward = None
            if self._tracer is not None:
                self._tracer.clear()
        self._sites.require_layers(self._layers or frozenset())
        # A rotation by position 0, that of a single token, looks like none: look again at the next batch.
        if self._tracer is not None and not forward.saw_single_key:
            self._stop_tracing()
            self._watch_key_maps()

    def _require_fitting(self, inputs: Mapping[str, Tensor]) -> None:
        model = type(self._model).__name__
        check_evaluating(self._model)
        check_names(self._model, inputs)
        if self._sites.has_decoder and not {"decoder_input_ids", "decoder_inputs_embeds"} & inputs.keys():
            raise InputError(
                f"{model} has a decoder and needs decoder_input_ids beside {', '.join(inputs) or 'nothing'}; "
                "make them from the target text with fenchel.integrations.transformers.decoder_inputs"
            )

    def _stop_tracing(self) -> None:
        if self._tracer is not None:
            self._tracer.remove()
            self._tracer = None

    def _watch_key_maps(self) -> None:
        def take(key_map: nn.Module, args: tuple[Any, ...]) -> None:
            if self._forward is not None:
                self._forward.taken[key_map] = args[0]

        maps = {key_map.map for key_map in self._key_maps.values()}
        self._handles = [key_map.register_forward_pre_hook(take) for key_map in maps]

    def attend(
        self,
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
    ) -> Tensor:
        """Attend for ``module`` inside ``run``; called by the registry, not by users.

        Returns:
            The model's own attention output, (B, m, H, d_v).
        """
        forward, name, family = self._forward, self._modules[module], type(module).__name__
        if forward is None:
            raise CaptureError(f"{name} attended outside of run; call capture.run(inputs), not the model")
        del dropout  # the model is in eval mode
        refuse_unsupported(name, family, arguments)
        if query.shape[1] % key.shape[1]:
            raise CaptureError(
                f"{name} ({family}) has {query.shape[1]} query heads, not a multiple of {key.shape[1]} key "
                "heads"
            )
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        is_causal = getattr(module, "is_causal", None) if is_causal is None else is_causal
        preference = forward.preferences(name, query, key, attention_mask, position_bias, is_causal)
        visit = None if self._tracer is None else self._tracer.take(module)
        site = self._sites.visit(module, query, key, value, preference, is_causal, visit)
        near, estimator = self._own[module]
        is_softmax = near is None and estimator == "first_order"
        output = softmax_attention(query, key, value, scale, preference) if is_softmax else None
        if module not in self._checked:
            # Families know softmax alone: what is compared is how they make their scores.
            softmax = softmax_attention(query, key, value, scale, preference) if output is None else output
            call = (query, key, value, softmax)
            check_against_eager(name, module, *call, scale, preference, position_bias, arguments)
            self._checked.add(module)
        if output is None:
            output = attention(
                query,
                key,
                value,
                log_preference=preference.mask_or_bias,
                scale=scale,
                closeness=near,
                estimator=estimator,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            output = output.transpose(1, 2).contiguous()
        if self._layers is None or site.layer in self._layers:
            inputs, key_map = self._key_map(forward, module, key, visit)
            decoder = self._sites.of_decoder(site)
            self._consume(
                AttentionCall(
                    site=site,
                    query=query,
                    key=key,
                    scaling=scale,
                    preference=preference.mask_or_bias,
                    counted=forward.real_queries(name, query, preference.empty_rows, decoder=decoder),
                    inputs=inputs,
                    key_weight=None if key_map is None else key_map.weight,
                    key_bias=None if key_map is None else key_map.bias,
                    value=value,
                )
            )
        return output

    def _key_map(
        self, forward: _Forward, module: nn.Module, key: Tensor, visit: Visit | None
    ) -> tuple[Tensor, KeyMap] | tuple[None, None]:
        """What the key map of ``module`` took just now, (B, n, width), and the map; for space="input"."""
        if self._space == "key":
            return None, None
        name = self._modules[module]
        if visit is not None:
            inputs, key_map = find_key_map(name, module, visit, key)
            self._key_maps[module] = key_map
            forward.saw_single_key |= key.shape[2] == 1
            return inputs, key_map
        key_map = self._key_maps[module]
        taken = forward.taken.pop(key_map.map, None)
        if taken is None:
            raise CaptureError(
                f"{name} attended without calling its key map {key_map.name}, as it did in the first forward"
            )
        return key_map.inputs(taken, key), key_map


def _captured_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **arguments: Any,
) -> tuple[Tensor, None]:
    capture = _capturing.get(id(module))
    if capture is None:
        raise CaptureError(
            f"{type(module).__name__} asked for the attention {_BACKEND!r} although it is not being "
            "captured. Choose another: model.set_attn_implementation('sdpa')"
        )
    return capture.attend(module, query, key, value, attention_mask, **arguments), None
