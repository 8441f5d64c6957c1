"""Captures the attention calls of layers of ``fenchel.nn``, in the place of ``AttendingLayer.answer``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fenchel.arguments import Kind
from fenchel.errors import CaptureError, ModelError
from fenchel.integrations.sites import (
    AbstractCall,
    AbstractSource,
    AttentionCall,
    AttentionSite,
    AttentionSites,
    RealQueries,
    check_all_attend,
    check_names,
    takes_any_name,
)
from fenchel.nn.continuous import ContinuousAttention
from fenchel.nn.evidence import AbstractPositionalEvidence
from fenchel.nn.inference import AttendingLayer, Inferred, LayerCall, Problem, attention_layers
from fenchel.nn.mixture import MixtureAttention
from fenchel.nn.transport import TransportAttention
from fenchel.tensors import may_attend


def _log_preference(asked: LayerCall) -> Tensor | None:
    """Log u, or a mask, with four dimensions."""
    given = asked.log_preference
    if given is None:
        return None
    if given.dtype != torch.bool:
        given = given.to(torch.float64 if asked.problem.evidence.dtype == torch.float64 else torch.float32)
    return given.reshape((1,) * (4 - given.dim()) + tuple(given.shape))


def _kind_of(asked: LayerCall) -> Kind:
    """The kind of a call."""
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
    name: str, space: str, problem: Problem, alphas: Sequence[float | Tensor]
) -> tuple[Tensor, Tensor, float]:
    r"""The same problems with reliability 1: templates and evidence times √α, which leaves every measure as it is.

    .. math:: \tfrac\alpha2\lVert\mu + z - \mathbb{E}_p[t]\rVert^2
              = \tfrac12\lVert\sqrt\alpha\mu + \sqrt\alpha z - \mathbb{E}_p[\sqrt\alpha t]\rVert^2
    """
    evidence, templates, scaling = problem.evidence, problem.templates, float(problem.scale)
    own = [float(alpha) for alpha in alphas]
    if len(set(own)) == 1:
        root = own[0] ** 0.5
        if root == 1:
            return evidence, templates, scaling
        return _widened(evidence) * root, templates, scaling * root
    if space == "input":
        raise ModelError(
            f"the heads of {name} have different α, and in space 'input' they would have to share templates. Audit it "
            "with space='key' (--space key)"
        )
    roots = torch.tensor(own, dtype=torch.float64).sqrt().view(-1, 1, 1).to(evidence.device)
    query, key = (_widened(part) for part in (evidence, templates))
    return query * roots.to(query.dtype), key * roots.to(key.dtype), scaling


def _widened(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _counted(site: AttentionSite, asked: LayerCall, preference: Tensor | None, real: RealQueries) -> Tensor:
    evidence = asked.problem.evidence
    empty = None if preference is None else ~may_attend(preference).any(-1, keepdim=True)
    of_decoder = site.kind != "encoder_self" and real.fits(evidence, decoder=True)
    padding = asked.key_padding if asked.asks_itself else None
    # Masks of a batch do not apply to queries at some of its positions, or at none.
    if not of_decoder and not (asked.asks_itself and evidence.shape[2] == _own_keys(asked)):
        real, padding = RealQueries({}, None, None), None
    counted = real(site.name, evidence, empty, decoder=of_decoder)
    return counted if padding is None or padding.shape != counted.shape else counted & ~padding


def _own_keys(asked: LayerCall) -> int:
    """Number of templates from the layer's input; templates that the layer adds come after them."""
    return asked.problem.templates.shape[2] - asked.added


def has_layers(model: object) -> bool:
    """Whether a model has attention layers of ``fenchel.nn``."""
    return isinstance(model, nn.Module) and bool(attention_layers(model))


_UNMEASURED = {
    TransportAttention: "whose closeness is optimal transport, and an audit measures the Kullback-Leibler divergence",
    ContinuousAttention: "whose weight is a density over places, and an audit measures weights of tokens",
    MixtureAttention: "whose templates are distributions, and an audit measures templates that are vectors",
}

"""Layers without softmax over vectors, and why an audit cannot measure them."""


@dataclass(frozen=True, eq=False)
class _LayerCall(AbstractCall):
    """A call of a layer of ``fenchel.nn``.

    Attributes:
        asked: The call as the layer made it.
        asked_preference: Its log-preference, with four dimensions.
        own: The layer's own answer.
        options: Its further arguments.
    """

    asked: LayerCall
    asked_preference: Tensor | None
    own: Callable[..., Inferred]
    options: Mapping[str, Any]

    @property
    def layer(self) -> Any:
        """The layer."""
        return self.module

    @property
    @override
    def alphas(self) -> list[float | Tensor]:
        alpha, other = self.problem.alpha, self.layer.other
        own = [
            alpha[head, 0] if isinstance(alpha, Tensor) and alpha.dim() else alpha
            for head in range(self.layer.num_heads)
        ]
        return [
            one if other is None or (other.heads and head not in other.heads) else other.reliability(one)
            for head, one in enumerate(own, start=1)
        ]

    @override
    def infer(self, *, weights: bool = False) -> Inferred:
        same = self.preference is self.asked_preference
        u = self.asked.log_preference if same else self.preference
        options = {**self.options, "need_weights": self.options["need_weights"] or weights}
        call = self.asked._replace(problem=self.problem, log_preference=u)
        return self.own(call, dropout=self.dropout, **options)


class LayerSource(AbstractSource):
    """A model with attention layers of ``fenchel.nn``.

    Layers are numbered from 1 within their kind in the order of their first calls; every call of a layer that is called
    several times in a forward counts as a layer. Kinds: *cross* if queries and keys are of different sequences,
    else *decoder_self* if no query may see a later key, else *encoder_self*.

    Real queries are those of ``counted`` if its shape fits, without padding keys; a query that may attend to nothing is
    never real.

    Args:
        model: A module with :class:`~fenchel.nn.MultiheadAttention` in it, or another layer that attends.
        chosen: Whether some of its layers are chosen, so that unsupported ones may be left out.
        measured: Whether the calls are measured by an audit, which does not support all layers.
        any_estimator: Whether measured layers may have another estimator than first order. Their problems are measured
            in a forward with their own outputs.

    Raises:
        ModelError: If the model has attention that cannot be captured or measured.
    """

    def __init__(self, model: nn.Module, *, chosen: bool, measured: bool, any_estimator: bool) -> None:
        self._model, self._measured, self._any_estimator = model, measured, any_estimator
        known = attention_layers(model)
        _check_layers_are_seen(model, known, chosen=chosen, measured=measured)
        self.modules: Any = {
            layer: name or type(model).__name__
            for name, layer in known.items()
            if _unseen_because(layer, measured=measured) is None
        }
        self.sites = AttentionSites(type(model).__name__, self.modules, repeated=True)
        self._rows: int | None = None

    @override
    @contextmanager
    def intercept(self, handler: Callable[[_LayerCall], Inferred]) -> Iterator[None]:
        def answer(
            layer: Any, own: Callable[..., Inferred], call: LayerCall, *, dropout: float, **options: Any
        ) -> Inferred:
            preference = _log_preference(call)
            return handler(
                _LayerCall(layer, call.problem, preference, dropout, call, preference, own, options)
            )

        for layer in self.modules:
            layer.answer = partial(answer, layer, layer.answer)
            layer.captured = True
        try:
            yield
        finally:
            for layer in self.modules:
                del layer.answer, layer.captured
            self._rows = None

    @override
    def kind(self, call: _LayerCall) -> Kind:
        return _kind_of(call.asked)

    @override
    def check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        if not takes_any_name(self._model):
            check_names(self._model, inputs)
        self._rows = next((len(value) for value in inputs.values() if value.dim()), 1)

    @override
    def described(
        self, call: _LayerCall, site: AttentionSite, space: str, real: RealQueries
    ) -> AttentionCall:
        layer, asked, sequences = call.layer, call.asked, len(call.problem.evidence)
        if sequences != self._rows:
            raise CaptureError(
                f"{site.name} attends over {sequences} sequences, but the batch has {self._rows} rows, so queries "
                "cannot be assigned to rows. Check batch_first of the layer; a model that splits its input into more "
                "sequences cannot be audited"
            )
        if layer.effective_estimator != "first_order" and not self._any_estimator:
            raise ModelError(
                f"{site.name} uses the estimator {layer.effective_estimator!r}, and an audit measures how far "
                "first-order attention is from exact. Audit the model under first order (with "
                "fenchel.nn.use_estimator(model, 'first_order'): ...), or leave this layer out of layers"
            )
        projection = asked.projection if space == "input" else None
        if space == "input" and (projection is None or asked.added):
            raise ModelError(
                f"{site.name} has templates that are not a linear map of its input: they are normalised, computed by "
                "its evidence, or added (add_bias_kv, add_zero_attn). Audit it with space='key' (--space key)"
            )
        query, key, scaling = _with_reliability(site.name, space, asked.problem, call.alphas)
        preference, values = call.preference, asked.problem.values
        counted = _counted(site, asked, preference, real)
        values = values if values.shape[:3] == key.shape[:3] else None
        return AttentionCall(
            site, query, key, scaling, preference, counted, *(projection or (None, None, None)), values
        )


def _check_layers_are_seen(
    model: nn.Module, known: Mapping[str, AttendingLayer], *, chosen: bool, measured: bool
) -> None:
    """Raise if some attention of a model would be missing from the result without notice."""
    check_all_attend(model)
    reasons = {name: _unseen_because(layer, measured=measured) for name, layer in known.items()}
    unseen = [name for name, reason in reasons.items() if reason is not None]
    if unseen and (len(unseen) == len(known) or not chosen):
        others = ",".join(str(number + 1) for number in range(len(known) - len(unseen)))
        advice = f". Choose the other attention layers: --layers {others}, or in Python layers=[{others}]"
        name, layer = unseen[0], known[unseen[0]]
        raise ModelError(
            f"{name or type(model).__name__} is a {type(layer).__name__}, {reasons[name]}{advice if others else ''}"
        )


def _unseen_because(layer: AttendingLayer, *, measured: bool) -> str | None:
    """Why a layer cannot be captured, or measured; None if it can."""
    if not measured:
        reason = "whose heads share one inference, so none can be captured alone"
        return reason if layer.heads_infer_together else None
    evidence = getattr(layer, "evidence", None)
    if isinstance(evidence, AbstractPositionalEvidence) and evidence.differs_by_query:
        return (
            f"whose templates differ by query (its evidence is {type(evidence).__name__}), and an audit measures "
            "templates that all queries share; layer.keep_certificate = True bounds every query of a call"
        )
    return next((reason for kind, reason in _UNMEASURED.items() if isinstance(layer, kind)), None)
