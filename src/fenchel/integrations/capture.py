"""The inference problem of every attention head of a model as tensors, and the replacement of heads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from types import TracebackType
from typing import Any, Literal
from weakref import WeakSet

import torch
from torch import Tensor, nn

from fenchel.arguments import KINDS, Kind, maybe, one_of, shown
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.functional.arguments import dropped
from fenchel.integrations.attention_calls import ModelSource
from fenchel.integrations.registry import calls_registry
from fenchel.integrations.sites import (
    AbstractCall,
    AbstractSource,
    AttentionCall,
    AttentionSite,
    LayerSource,
    RealQueries,
    existing,
    named_arguments,
)
from fenchel.nn.inference import Inferred, attention_layers, averaged
from fenchel.tensors import check_tensor, check_type, may_attend

__all__ = ["AttentionCall", "Capture", "CapturedHead"]

# Attention modules inside a capture.
_capturing: WeakSet[nn.Module] = WeakSet()


@dataclass(frozen=True, eq=False, repr=False)
class CapturedHead:
    """The inference problem of one attention head in one call, and its output.

    Under first order its weights are softmax(⟨templates, dual⟩ + log_preference), and its output is their mean of
    the values. Under ``torch.no_grad`` all but the output is computed when first read.

    Attributes:
        site: Its layer.
        head: Its number, from 1.
        alpha: α, a number, or a tensor that broadcasts to (B, m, 1).
        output: The output of the head, (B, m, d_v).
    """

    site: AttentionSite
    head: int
    alpha: float | Tensor
    output: Tensor
    _shared: _Shared

    @property
    def templates(self) -> Tensor:
        """t, (B, n, d): keys times the scale of the scores. Query heads that share keys share this tensor."""
        return self._own("templates")

    @property
    def log_preference(self) -> Tensor:
        """Log u, (B or 1, m or 1, n), -inf where masked, 0 if uniform."""
        return self._own("log_preference")

    @property
    def evidence(self) -> Tensor:
        """z, (B, m, d): the queries."""
        return self._own("evidence")

    @property
    def dual(self) -> Tensor:
        """The first-order dual point αz, (B, m, d)."""
        return self._own("dual")

    @property
    def values(self) -> Tensor:
        """The values, (B, n, d_v)."""
        return self._own("values")

    @property
    def weights(self) -> Tensor:
        """The weights before dropout, (B, m, n); zero in rows with nothing to attend to."""
        return self._shared.weights[self.head - 1]

    def without_evidence(self, *, uniform: bool = False) -> Tensor:
        """The output with z = 0, where the weights are the preference, (B, m, d_v).

        Args:
            uniform: Whether the weights are equal on all keys that the preference lets a query see.
        """
        return self._shared.without_evidence(uniform)[:, self.head - 1]

    def _own(self, name: str) -> Tensor:
        """The part of this head, which some heads may share."""
        parts = self._shared.parts[name]
        return parts[(self.head - 1) * len(parts) // self.site.num_heads]

    def __repr__(self) -> str:
        site, (batch, queries, _) = self.site, self.evidence.shape
        return (
            f"CapturedHead({site.kind}, layer {site.layer}, head {self.head}: "
            f"{batch} x {queries} queries, {self.templates.shape[1]} templates)"
        )


Replacement = Callable[[CapturedHead], Tensor]

# A kind, None for the default; the number or name of a layer; the number of a head, None for all.
_Place = tuple[Kind | None, int | str, int | None]


@dataclass
class _Replaced:
    function: Replacement
    called: bool = False


class Capture:
    """Capture the inference problems of the heads of a model that runs inside this context, with gradients.

    ``heads[layer, head]`` is a :class:`CapturedHead` of the last call of that layer, numbers from 1. Layers are
    numbered within their kind, ``encoder_self``, ``decoder_self`` or ``cross``, in the order in which the model calls
    them, as in an audit; ``heads[kind, layer, head]`` names the kind. A layer may also be given by the qualified name
    of its module.

    The output of the model does not change. All captured tensors are part of its graph: gradients of a loss with
    respect to each of them come from ``torch.autograd.grad``, or from ``retain_grad`` before ``backward``. For layers
    with templates that are Gaussians or differ by query this holds for weights and output only. Captured heads remain
    available after the block.

    Args:
        model: A model of transformers whose family calls the attention registry, or a module with attention layers of
            :mod:`fenchel.nn`; in eval or training mode.
        kind: The kind that ``heads[layer, head]`` means; None is that of the layer that attends first: the encoder's
            where there is one.
        layers: Which layers to capture, numbers from 1 within each kind or names of modules; None is all. Others cost
            nothing.
        consume: A function for use without keeping the tensors of all layers: called inside the forward, once per layer
            and batch, under ``torch.no_grad``, with an :class:`AttentionCall`. The model has to be in eval mode and is
            run by :meth:`run`. Exceptions of the function propagate, and the model is restored.
        space: With ``consume``, "input" also gives the key map and its input, where keys are a linear map; "key" gives
            neither, and works for every family.
        any_estimator: With ``consume``, whether layers of :mod:`fenchel.nn` may infer by another estimator than first
            order.

    Raises:
        MissingExtraError: If transformers is not installed.
        ModelError: If the model has attention that cannot be captured; at the end of the block, if no attention came
            through.
        InputError: If an option has an unknown value.
        CaptureError: If the model is being captured already; at the end of the block, if the replacement of a head was
            never called.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)).eval()
        >>> with Capture(model) as heads:
        ...     loss = model(torch.tensor([[1, 2, 3]])).last_hidden_state.square().mean()
        >>> head = heads[1, 2]
        >>> p = (head.dual @ head.templates.mT + head.log_preference).softmax(-1)
        >>> torch.allclose(p, head.weights), torch.allclose(p @ head.values, head.output, atol=1e-6)
        (True, True)
        >>> [tuple(part.shape) for part in torch.autograd.grad(loss, [head.weights, head.output])]
        [(1, 3, 3), (1, 3, 4)]
        >>> with Capture(model) as heads, torch.no_grad():
        ...     heads.replace(1, 2, lambda head: torch.zeros_like(head.output))
        ...     _ = model(torch.tensor([[1, 2, 3]]))
        >>> float(heads[1, 2].output.abs().max())
        0.0
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        kind: Kind | None = None,
        layers: Collection[int | str] | None = None,
        consume: Callable[[AttentionCall], None] | None = None,
        space: Literal["input", "key"] = "key",
        any_estimator: bool = False,
    ) -> None:
        one_of("input", "key").check("space", space)
        maybe(one_of(*KINDS)).check("kind", kind)
        chosen = layers if isinstance(layers, Collection) and not isinstance(layers, str) else ()
        if layers is not None and not (len(chosen) and all(map(_is_layer, chosen))):
            raise InputError(
                f"layers is {layers!r}; expected whole numbers from 1 or names of modules, or None for all layers"
            )
        if consume is None and (space != "key" or any_estimator):
            raise InputError(
                f"space is {space!r} and any_estimator is {any_estimator}, but both apply only with consume. Give "
                "consume=, or leave them out"
            )
        self._model, self._default, self._space, self._consume = model, kind, space, consume
        self._layers = None if layers is None else frozenset(layers)
        self._source = _source(
            model, chosen=layers is not None, measured=consume is not None, any_estimator=any_estimator
        )
        self._heads: dict[AttentionSite, tuple[CapturedHead, ...]] = {}
        self._replaced: dict[_Place, _Replaced] = {}
        self._real: RealQueries | None = None
        self._inside = self._entered = False
        self._exits = ExitStack()

    @property
    def sites(self) -> tuple[AttentionSite, ...]:
        """The layers in the order in which the model calls them; complete after the first batch."""
        return tuple(self._source.sites)

    def __enter__(self) -> Capture:
        modules = self._source.modules
        busy = next((name for module, name in modules.items() if module in _capturing), None)
        if busy is not None:
            raise CaptureError(
                f"{busy} of this {type(self._model).__name__} is already being captured; leave that capture first"
            )
        if any(
            part.training and getattr(part, "gradient_checkpointing", False) for part in self._model.modules()
        ):
            raise ModelError(
                f"{type(self._model).__name__} uses gradient checkpointing, which computes attention again after the "
                "capture; call model.gradient_checkpointing_disable() first"
            )
        with ExitStack() as stack:
            _capturing.update(modules)
            stack.callback(lambda: _capturing.difference_update(modules))
            if self._consume is None:
                stack.enter_context(self._source.intercept(self._captured))
                before = self._model.register_forward_pre_hook(lambda _model, _inputs: self._begin())
                stack.callback(before.remove)
                after = self._model.register_forward_hook(
                    lambda _model, _inputs, output: self._finish(output), always_call=True
                )
                stack.callback(after.remove)
            self._exits = stack.pop_all()
        self._entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._entered = False
        self._exits.__exit__(kind, error, traceback)
        if error is not None or self._consume is not None:
            return
        if not self.sites:
            raise ModelError(
                f"{type(self._model).__name__} did not attend; run it inside the with block of the capture"
            )
        self._check_replaced()

    def __getitem__(self, key: tuple[Any, ...]) -> CapturedHead:
        """The head ``(layer, head)`` or ``(kind, layer, head)``, as it was in the last call of its layer.

        Raises:
            InputError: If there is no such head.
            CaptureError: If its layer has not attended.
        """
        kind, layer, head = self._place(key)
        if head is None:
            raise InputError(f"head index is {shown(key)}; expected the number of one head, from 1")
        site = next((site for site in self._heads if self._is_requested(site, kind, layer)), None)
        if site is None:
            if not self.sites or any(self._is_requested(known, kind, layer) for known in self.sites):
                raise CaptureError(
                    f"layer {shown(layer)} has not attended, or is not among layers; run the model inside the with "
                    "block"
                )
            raise InputError(
                f"there is no layer {shown(layer)}{f' of kind {kind}' if kind else ''}; this "
                f"{type(self._model).__name__} has {existing(self.sites)}"
            )
        if head > site.num_heads:
            raise InputError(f"there is no head {head} in {site.name}, which has heads 1 to {site.num_heads}")
        return self._heads[site][head - 1]

    def __iter__(self) -> Iterator[CapturedHead]:
        """All heads that were captured, layer by layer."""
        return (head for heads in self._heads.values() for head in heads)

    def replace(
        self, layer: int | str, head: int | None, function: Replacement | None, *, kind: Kind | None = None
    ) -> None:
        """Replace the output of a head by that of ``function``, in every call from now on until the block ends.

        Args:
            layer: Number or name of the layer.
            head: Number of the head; None is every head of the layer, one after the other.
            function: Maps the :class:`CapturedHead` to its output, (B, m, d_v); gradients flow through it. None
                restores the model's own.
            kind: The kind of the layer; None as for ``heads[layer, head]``.

        Raises:
            InputError: If the layer or the head is not a number from 1, or the function cannot be called.
            CaptureError: If this capture hands calls to ``consume``.
        """
        if self._consume is not None:
            raise CaptureError("a capture with consume cannot replace heads; leave consume out")
        place = self._place((kind, layer, head))
        if function is None:
            self._replaced.pop(place, None)
        else:
            check_type(
                "function", function, Callable, "a function of a captured head, or None", error=InputError
            )
            self._replaced[place] = _Replaced(function)

    def run(
        self,
        inputs: Mapping[str, Tensor],
        *,
        counted: Tensor | None = None,
        counted_decoder: Tensor | None = None,
    ) -> None:
        """One forward pass, with ``consume`` called inside it.

        Args:
            inputs: Arguments of the model's forward, by name. An encoder-decoder model needs ``decoder_input_ids``
                (see ``fenchel.integrations.transformers.decoder_inputs``). Padding is not counted.
            counted: (B, n) bool, further restricts the real queries.
            counted_decoder: (B, m) bool, the same for the decoder of an encoder-decoder model, or for *cross* and
                *decoder_self* calls with as many queries.

        Raises:
            CaptureError: If a site was not called, or called in an unsupported way.
            ModelError: If the model is in training mode, or its attention cannot be audited in this space.
            InputError: If the inputs do not fit the model, or a layer that was asked for does not exist.
        """
        if not self._entered or self._consume is None:
            raise CaptureError(
                "run was called outside the capture, or without consume; write: with Capture(..., consume=...) as "
                "capture: capture.run(...)"
            )
        _check_evaluating(self._model)
        self._source.check_inputs(inputs)
        self._real = RealQueries(inputs, counted, counted_decoder)
        try:
            with torch.no_grad(), self._source.intercept(self._consumed):
                self._begin()
                self._model(**_without_cache(self._model, inputs))
                self._source.finish(all_called=True)
        finally:
            self._real = None
        self._source.sites.check(self._layers or ())

    def _begin(self) -> None:
        self._inside = True
        self._source.begin()

    def _finish(self, output: Any) -> None:
        self._inside = False
        if output is not None:  # None after an error
            self._source.finish(all_called=False)
            self._source.sites.check(self._layers or ())
            self._check_replaced()

    def _check_replaced(self) -> None:
        place = next((place for place, replaced in self._replaced.items() if not replaced.called), None)
        if place is not None:
            kind, layer, head = place
            raise CaptureError(
                f"the replacement of head {head or 'any'} of {f'{kind} ' if kind else ''}layer {shown(layer)} was "
                f"never called; {type(self._model).__name__} attended in {existing(self.sites)} with up to "
                f"{max((site.num_heads for site in self.sites), default=0)} heads"
            )

    def _place(self, key: Any) -> _Place:
        given = key if isinstance(key, tuple) else (key,)
        kind, layer, head = (
            given if len(given) == 3 else (None, *given) if len(given) == 2 else (None, None, 0)
        )
        if kind not in (None, *KINDS) or not _is_layer(layer) or not (head is None or _is_number(head)):
            raise InputError(
                f"head index is {shown(key)}; expected (layer, head) or (kind, layer, head), with numbers from 1 (or "
                f"a module's name as layer) and a kind of {', '.join(KINDS)}"
            )
        return kind, layer, head  # pyright: ignore[reportReturnType]

    def _is_requested(self, site: AttentionSite, kind: Kind | None, layer: int | str) -> bool:
        if isinstance(layer, str):
            return site.name == layer and kind in (None, site.kind)
        return site.layer == layer and site.kind == (kind or self._default or self.sites[0].kind)

    def _site(self, call: AbstractCall) -> AttentionSite:
        sites = self._source.sites
        if not self._inside:
            sites.begin(call.module)
        return sites.visit(call.module, call.problem.evidence.shape[1], lambda: self._source.kind(call))

    def _is_selected(self, site: AttentionSite) -> bool:
        return self._layers is None or bool({site.layer, site.name} & self._layers)

    def _consumed(self, call: AbstractCall) -> Inferred:
        """The model's own output, after ``consume``."""
        result, site = call.infer(), self._site(call)
        if self._is_selected(site) and self._consume is not None and self._real is not None:
            self._consume(self._source.described(call, site, self._space, self._real))
        return result

    def _captured(self, call: AbstractCall) -> Inferred:
        """The output with replaced heads, as a function of the captured tensors."""
        site = self._site(call)
        if not self._is_selected(site):
            return call.infer()
        result, heads = (_joined if torch.is_grad_enabled() else _looked_at)(call, site)
        kept = [self._with_replacement(head) for head in heads]
        self._heads[site] = tuple(kept)
        if all(one is other for one, other in zip(kept, heads, strict=True)):
            return result
        return result._replace(output=torch.stack([head.output for head in kept], 1))

    def _with_replacement(self, head: CapturedHead) -> CapturedHead:
        """A head with its replaced output, if any."""
        for (kind, layer, number), replaced in reversed(self._replaced.items()):
            if number in (None, head.head) and self._is_requested(head.site, kind, layer):
                replaced.called = True
                return replace(head, output=_fitting(replaced.function(head), head))
        return head


def _looked_at(call: AbstractCall, site: AttentionSite) -> tuple[Inferred, list[CapturedHead]]:
    """The model's own output, and its heads, whose other tensors are computed when first read."""
    result, shared = call.infer(), _Shared(call)
    if getattr(call.module, "other", None) is not None:
        _ = shared.weights  # while it lasts
    return result, shared.heads(site, result.output)


def _joined(call: AbstractCall, site: AttentionSite) -> tuple[Inferred, list[CapturedHead]]:
    """The output as a function of the tensors of each head, so that gradients reach each of them."""
    parts = _parts(call)
    if call.problem.variant is None:  # else templates are more than vectors that all queries share
        evidence = [
            dual if isinstance(alpha, float) and alpha == 1 else dual / alpha
            for dual, alpha in zip(parts["dual"], call.alphas, strict=True)
        ]
        call = replace(
            call,
            problem=replace(
                call.problem,
                evidence=torch.stack(evidence, 1),
                templates=torch.stack(parts["templates"], 1),
                values=torch.stack(parts["values"], 1),
                scale=1.0,
            ),
            preference=torch.stack(parts["log_preference"], 1),
        )
    shared = _Shared(call)
    shared.parts = parts
    result = shared.weighted()
    shared.weights = _weights(result)
    output = result.output
    if not call.problem.reads_templates:
        joined = dropped(torch.stack(shared.weights, 1), call.dropout)
        output, result = averaged(call.problem.values, joined), result._replace(weights=joined)
    heads = shared.heads(site, output)
    return result._replace(output=torch.stack([head.output for head in heads], 1)), heads


def _weights(result: Inferred) -> tuple[Tensor, ...]:
    assert result.weights is not None  # noqa: S101 -- they were requested
    return result.weights.unbind(1)


def _parts(call: AbstractCall) -> dict[str, list[Tensor]]:
    """The tensors of a call by heads, one tensor for heads that share it, by their names in :class:`CapturedHead`."""
    asked, evidence = call.problem, [*call.problem.evidence.unbind(1)]
    return {
        "templates": [keys * asked.scale for keys in asked.templates.unbind(1)],
        "values": [*asked.values.unbind(1)],
        "log_preference": [*call.log_preference.unbind(1)],
        "evidence": evidence,
        "dual": [alpha * z for alpha, z in zip(call.alphas, evidence, strict=True)],
    }


class _Shared:
    """The tensors of the heads of a call, each computed once, when first read."""

    def __init__(self, call: AbstractCall) -> None:
        self._call = call
        self._without_evidence: dict[bool, Tensor] = {}

    @cached_property
    def parts(self) -> dict[str, list[Tensor]]:
        with torch.no_grad():
            return _parts(self._call)

    @cached_property
    def weights(self) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return _weights(self.weighted())

    def weighted(self) -> Inferred:
        """The output without dropout, with weights."""
        return replace(self._call, dropout=0.0).infer(weights=True)

    def without_evidence(self, uniform: bool) -> Tensor:
        """The outputs of all heads with z = 0, under the preference or its support."""
        if uniform not in self._without_evidence:
            problem, u = self._call.problem, self._call.preference
            problem = replace(problem, evidence=torch.zeros_like(problem.evidence))
            u = may_attend(u) if uniform and u is not None else u
            asked = replace(self._call, problem=problem, preference=u, dropout=0.0)
            self._without_evidence[uniform] = asked.infer().output
        return self._without_evidence[uniform]

    def heads(self, site: AttentionSite, outputs: Tensor) -> list[CapturedHead]:
        return [
            CapturedHead(site, number, alpha, output, self)
            for number, (alpha, output) in enumerate(
                zip(self._call.alphas, outputs.unbind(1), strict=True), start=1
            )
        ]


def _fitting(output: Any, head: CapturedHead) -> Tensor:
    """The replaced output of a head in its dtype and device.

    Raises:
        InputError: If it is not a tensor of the same shape.
    """
    name, form = (
        f"the replacement of head {head.head} of {head.site.name}",
        "(batch, queries, width of the values)",
    )
    check_tensor(name, output, form, sizes=head.output.shape, error=InputError)
    return output.to(head.output)


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_layer(value: Any) -> bool:
    return isinstance(value, str) or _is_number(value)


def _without_cache(model: nn.Module, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
    return {**({"use_cache": False} if "use_cache" in named_arguments(model) else {}), **inputs}


def _check_evaluating(model: nn.Module) -> None:
    """Raise if any module is in training mode, naming the first."""
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise ModelError(
            f"{type(model).__name__} is in training mode{f' in {training}' if training else ''}, where dropout makes "
            "attention random. Call model.eval() first"
        )


def _source(model: nn.Module, *, chosen: bool, measured: bool, any_estimator: bool) -> AbstractSource:
    if not isinstance(model, nn.Module) or not attention_layers(model):
        return ModelSource(model)
    if hasattr(model, "config") and calls_registry(model):
        raise ModelError(
            f"{type(model).__name__} has attention of transformers and layers of fenchel.nn, and a capture handles "
            "only one of them. Give a submodule with one kind"
        )
    return LayerSource(model, chosen=chosen, measured=measured, any_estimator=any_estimator)
