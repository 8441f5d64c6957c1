"""What the attention layers of ``fenchel.nn`` attend with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fenchel.auditing.capture import Capture
from fenchel.auditing.heads import Kind
from fenchel.auditing.sites import (
    AttentionCall,
    AttentionSite,
    check_all_attend,
    check_capture,
    check_evaluating,
    check_layers,
    check_names,
)
from fenchel.errors import CaptureError, ModelError
from fenchel.integrations.transformers.attention_modules import calls_registry
from fenchel.integrations.transformers.real_queries import RealQueries
from fenchel.nn.continuous import ContinuousAttention
from fenchel.nn.evidence import AbstractPositionalEvidence
from fenchel.nn.inference import AttendingLayer, LayerCall, attention_layers
from fenchel.nn.mixture import MixtureAttention
from fenchel.nn.transport import TransportAttention
from fenchel.preference.discrete import may_attend

__all__ = ["LayerCapture", "attention_call", "capture_of", "has_layers", "kind_of"]


def attention_call(site: AttentionSite, asked: LayerCall, space: str, real: RealQueries) -> AttentionCall:
    """What a layer asks, with reliability 1.

    Args:
        site: Where.
        asked: What.
        space: "input" or "key".
        real: Which queries of the batch are real.

    Raises:
        ModelError: If templates are no linear map of the input, or not shared by heads, in space "input".
    """
    problem, projection = asked.problem, None
    if space == "input":
        projection = asked.projection
        if projection is None or asked.added:
            raise ModelError(
                f"{site.name} has templates that are no linear map of its input: they are normalised, made by its "
                "evidence, or added (add_bias_kv, add_zero_attn). Audit it with space='key' (--space key)"
            )
    query, key, scaling = _with_reliability(
        site.name, space, problem.evidence, problem.templates, problem.alpha, problem.scale
    )
    preference = _log_preference(asked)
    return AttentionCall(
        site=site,
        query=query,
        key=key,
        scaling=scaling,
        preference=preference,
        counted=_counted(site, asked, preference, real),
        inputs=None if projection is None else projection.inputs,
        key_weight=None if projection is None else projection.weight,
        key_bias=None if projection is None else projection.bias,
        value=problem.values if problem.values.shape[:3] == key.shape[:3] else None,
    )


def _log_preference(asked: LayerCall) -> Tensor | None:
    """Log u, or a mask, with four dimensions."""
    given = asked.log_preference
    if given is None:
        return None
    if given.dtype != torch.bool:
        given = given.to(torch.float64 if asked.problem.evidence.dtype == torch.float64 else torch.float32)
    return given.reshape((1,) * (4 - given.dim()) + tuple(given.shape))


def kind_of(asked: LayerCall) -> Kind:
    """How the queries of a call and its keys belong together."""
    if not asked.asks_itself:
        return "cross"
    queries, preference = asked.problem.evidence.shape[2], _log_preference(asked)
    if preference is None or preference.shape[2] < 2:
        return "encoder_self"
    tokens = _own_keys(asked)
    later = torch.ones(queries, tokens, dtype=torch.bool, device=preference.device).triu(1 + tokens - queries)
    seen = preference[..., :tokens].expand(*preference.shape[:2], queries, tokens)
    return "encoder_self" if bool(may_attend(seen)[..., later].any()) else "decoder_self"


def _with_reliability(
    name: str,
    space: str,
    evidence: Tensor,
    templates: Tensor,
    alpha: float | Tensor,
    scale: float | Tensor,
) -> tuple[Tensor, Tensor, float]:
    r"""The same problems with reliability 1: templates and evidence times √α, which leaves every measure as it is.

    .. math:: \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2
              = \tfrac12\lVert\sqrt\alpha\mu + \sqrt\alpha z - \mathbb{E}_p[\sqrt\alpha t]\rVert^2
    """
    scaling = float(scale)
    own = torch.as_tensor(alpha, dtype=torch.float64).flatten()
    if bool((own == own[0]).all()):
        root = float(own[0]) ** 0.5
        if root == 1:
            return evidence, templates, scaling
        return _widened(evidence) * root, templates, scaling * root
    if space == "input":
        raise ModelError(
            f"the heads of {name} have α of their own, and in space 'input' they would have to share their templates. "
            "Audit it with space='key' (--space key)"
        )
    roots = own.sqrt().reshape(-1, 1, 1).to(evidence.device)
    query, key = (_widened(part) for part in (evidence, templates))
    return query * roots.to(query.dtype), key * roots.to(key.dtype), scaling


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _counted(site: AttentionSite, asked: LayerCall, preference: Tensor | None, real: RealQueries) -> Tensor:
    name, kind = site.name, site.kind
    evidence = asked.problem.evidence
    empty = None if preference is None else ~may_attend(preference).any(-1, keepdim=True)
    # Masks of a batch say nothing of queries that are some of its positions, or none.
    of_decoder = kind != "encoder_self" and real.fits(evidence, decoder=True)
    if of_decoder:
        counted, padding = (
            real(name, evidence, empty, decoder=True),
            asked.key_padding if asked.asks_itself else None,
        )
    elif not asked.asks_itself or evidence.shape[2] != _own_keys(asked):
        counted, padding = RealQueries({}, None, None)(name, evidence, empty, decoder=False), None
    else:
        counted, padding = real(name, evidence, empty, decoder=False), asked.key_padding
    padding = asked.query_padding if asked.query_padding is not None else padding
    return counted if padding is None or padding.shape != counted.shape else counted & ~padding


def _own_keys(asked: LayerCall) -> int:
    """How many templates come from the layer's input; what it adds itself comes after them."""
    return asked.problem.templates.shape[2] - asked.added


def has_layers(model: object) -> bool:
    """Whether a model has attention layers of ``fenchel.nn``."""
    return isinstance(model, nn.Module) and bool(attention_layers(model))


_UNMEASURED = {
    TransportAttention: "whose closeness is optimal transport, and an audit measures closeness by Kullback and Leibler",
    ContinuousAttention: "whose weight is a density over places, and an audit measures weights of tokens",
    MixtureAttention: "whose templates are distributions, and an audit measures templates that are vectors",
}

"""Layers that attend and are no softmax over vectors, and why that is nothing for an audit."""


class LayerCapture:
    """Run a model and hand every call of its attention layers to a consumer; a context manager.

    Layers are numbered from 1 within their kind in the order of their first calls, and a layer that is called several
    times in a forward is a layer for every call. Kinds: *cross* where the queries are of another sequence than the
    keys, else *decoder_self* where no query may see a later key, else *encoder_self*.

    Real queries are those of ``counted`` where there are as many positions as it has, less what is padding as a key; a
    query that may attend to nothing is never real.

    Args:
        model: A module in eval mode with :class:`~fenchel.nn.MultiheadAttention` in it, or another layer that attends.
        space: "input" also gives the key map and its input; "key" gives neither, and works for every layer.
        consume: Called inside the forward, once per call and batch, under ``torch.no_grad``.
        layers: Numbers (from 1) of the layers to consume, within each kind; None is all.
        any_estimator: Whether layers may infer by another estimator than first order. What they ask is what is handed
            over, in a forward of their own answers.

    Raises:
        ModelError: If the model has attention that is not seen or not to be measured.
        InputError: If ``space`` or ``layers`` is none.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> x = torch.randn(2, 5, 16)
        >>> def consume(call):
        ...     print(call.site.name, call.site.kind, call.site.layer, tuple(call.query.shape))
        >>> layer = MultiheadAttention(16, 4, batch_first=True).eval()
        >>> with LayerCapture(layer, space="key", consume=consume) as capture:
        ...     capture.run({"query": x, "key": x, "value": x})
        MultiheadAttention encoder_self 1 (2, 4, 5, 4)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        space: Literal["input", "key"],
        consume: Callable[[AttentionCall], None],
        layers: Collection[int] | None = None,
        any_estimator: bool = False,
    ) -> None:
        check_capture(space, layers)
        self._any_estimator = any_estimator
        self._model, self._space, self._consume = model, space, consume
        self._chosen = None if layers is None else frozenset(layers)
        known = attention_layers(model)
        _check_all_are_seen(model, known, chosen=self._chosen is not None)
        self._layers = {
            layer: name or type(model).__name__
            for name, layer in known.items()
            if _unmeasured_because(layer) is None
        }
        self._sites: list[tuple[AttendingLayer, AttentionSite]] = []
        self._called = 0
        self._complete = False
        self._real: RealQueries | None = None
        self._rows = 0

    @property
    def sites(self) -> tuple[AttentionSite, ...]:
        """The sites in the order in which the model calls them; complete after the first batch."""
        return tuple(site for _, site in self._sites)

    def __enter__(self) -> LayerCapture:
        busy = next((name for layer, name in self._layers.items() if layer.onlooker is not None), None)
        if busy is not None:
            raise CaptureError(
                f"{busy} of this {type(self._model).__name__} is being captured already; leave that first"
            )
        for layer in self._layers:
            layer.onlooker = self._seen
        return self

    def __exit__(self, *_: object) -> None:
        for layer in self._layers:
            layer.__dict__.pop("onlooker", None)

    def run(
        self,
        inputs: Mapping[str, Tensor],
        *,
        counted: Tensor | None = None,
        counted_decoder: Tensor | None = None,
    ) -> None:
        """One forward pass, with ``consume`` called inside it.

        Args:
            inputs: What the model's forward takes, by name.
            counted: (B, n) bool, restricts further which queries are real.
            counted_decoder: (B, m) bool, the same for *cross* and *decoder_self* calls with as many queries.

        Raises:
            CaptureError: If a layer was not called, or called otherwise than in the first forward.
            ModelError: If the model is in training mode, or a layer has nothing to measure.
            InputError: If the inputs do not fit the model, or a layer that was asked for does not exist.
        """
        check_evaluating(self._model)
        forward = inspect.signature(self._model.forward).parameters.values()
        if not any(one.kind is one.VAR_KEYWORD for one in forward):
            check_names(self._model, inputs)
        self._real = RealQueries(inputs, counted, counted_decoder)
        self._rows = next((len(value) for value in inputs.values() if value.dim()), 1)
        self._called = 0
        try:
            with torch.no_grad():
                self._model(**inputs)
        finally:
            self._real = None
        self._finish()

    def _finish(self) -> None:
        called = {id(layer) for layer, _ in self._sites[: self._called]}
        silent = next((name for layer, name in self._layers.items() if id(layer) not in called), None)
        model = type(self._model).__name__
        if silent is not None:
            raise CaptureError(
                f"{silent} did not attend in this forward; every attention layer of {model} has to, or heads would be "
                "missing. Give the model every input that it has layers for, or give the submodule that the inputs go "
                "through"
            )
        if self._called < len(self._sites):
            raise CaptureError(
                f"{model} attended {self._called} times in this forward, and {len(self._sites)} times before, so which "
                "call is which layer is not known. Give batches that go through the model alike"
            )
        self._complete = True
        check_layers(self._chosen or frozenset(), self.sites, model)

    def _seen(self, module: nn.Module, asked: LayerCall) -> None:
        layer: Any = module
        name, real = self._layers[layer], self._real
        if real is None:
            raise CaptureError(f"{name} attended outside of run; call capture.run(inputs), not the model")
        evidence = asked.problem.evidence
        if len(evidence) != self._rows:
            raise CaptureError(
                f"{name} attends for {len(evidence)} sequences, but the batch has {self._rows} rows, so which "
                "row a query "
                "is of is not known. Check batch_first of the layer; a model that cuts its input into more sequences "
                "cannot be audited"
            )
        site = self._visit(layer, name, asked)
        if self._chosen is not None and site.layer not in self._chosen:
            return
        if layer.effective_estimator != "first_order" and not self._any_estimator:
            raise ModelError(
                f"{name} infers by {layer.effective_estimator!r}, and an audit measures how far first-order "
                "attention is "
                "from exact. Audit the model under first order (with fenchel.nn.use_estimator(model, "
                "'first_order'): ...)"
                ", or leave this layer out of layers"
            )
        self._consume(attention_call(site, asked, self._space, real))

    def _visit(self, layer: AttendingLayer, name: str, asked: LayerCall) -> AttentionSite:
        place, self._called = self._called, self._called + 1
        heads = asked.problem.evidence.shape[1]
        if place < len(self._sites):
            before, site = self._sites[place]
            if before is layer and site.num_heads == heads:
                return site
        elif not self._complete:
            kind = kind_of(asked)
            number = 1 + sum(site.kind == kind for site in self.sites)
            self._sites.append((layer, AttentionSite(name, kind, number, heads)))
            return self._sites[-1][1]
        raise CaptureError(
            f"{name} attended as number {place + 1} in this forward, which it did not before, so which call is which "
            "layer is not known. Give batches that go through the model alike"
        )


def _check_all_are_seen(model: nn.Module, known: Mapping[str, AttendingLayer], *, chosen: bool) -> None:
    """Refuse a model of which some attention would be missing from the result without notice."""
    check_all_attend(model)
    own = type(model).__name__
    unmeasured = [name for name, layer in known.items() if _unmeasured_because(layer) is not None]
    if unmeasured and (len(unmeasured) == len(known) or not chosen):
        others = ",".join(str(number + 1) for number in range(len(known) - len(unmeasured)))
        advice = f". Choose the other attention layers: --layers {others}, or in Python layers=[{others}]"
        advice = advice if others else ""
        layer = known[unmeasured[0]]
        raise ModelError(
            f"{unmeasured[0] or own} is a {type(layer).__name__}, {_unmeasured_because(layer)}{advice}"
        )


def _unmeasured_because(layer: AttendingLayer) -> str | None:
    """Why an attention layer is nothing for an audit; None if it is something."""
    evidence = getattr(layer, "evidence", None)
    if isinstance(evidence, AbstractPositionalEvidence) and evidence.differs_by_query:
        return (
            f"whose templates differ by query (its evidence is {type(evidence).__name__}), and an audit measures "
            "templates that all queries share; layer.keep_certificate = True bounds every query of a call"
        )
    return next((reason for kind, reason in _UNMEASURED.items() if isinstance(layer, kind)), None)


def capture_of(
    model: nn.Module,
    *,
    space: Literal["input", "key"],
    consume: Callable[[AttentionCall], None],
    layers: Collection[int] | None = None,
    any_estimator: bool = False,
) -> Capture | LayerCapture:
    """The capture of a model; see there.

    Raises:
        ModelError: If the model has attention of both libraries, of which either capture would see a part.
    """
    if not has_layers(model):
        return Capture(model, space=space, consume=consume, layers=layers)
    if hasattr(model, "config") and calls_registry(model):
        raise ModelError(
            f"{type(model).__name__} has attention of transformers and attention layers of fenchel.nn, and an "
            "audit sees "
            "either. Give the submodule that holds one of them"
        )
    return LayerCapture(model, space=space, consume=consume, layers=layers, any_estimator=any_estimator)
