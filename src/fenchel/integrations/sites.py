"""The attention layers of a model and their calls, as a capture sees them, with layers of ``fenchel.nn`` themselves."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from fenchel.arguments import KIND_NAMES, Kind
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.functional.arguments import compute_dtype
from fenchel.nn.continuous import ContinuousAttention
from fenchel.nn.estimator_switch import attributes_set
from fenchel.nn.evidence import AbstractPositionalEvidence
from fenchel.nn.inference import (
    AttendingLayer,
    Inferred,
    LayerCall,
    Problem,
    attention_layers,
    check_all_attend,
)
from fenchel.nn.mixture import MixtureAttention
from fenchel.nn.transport import TransportAttention
from fenchel.tensors import BOOL, check_tensor, log_weights, may_attend, widened


@dataclass(frozen=True)
class AttentionSite:
    """One attention layer of a model.

    Attributes:
        name: Qualified name of the attention module. Layers that share one module share its name.
        kind: encoder_self, decoder_self or cross.
        layer: From 1, within its kind, in the order in which the model calls them.
        num_heads: Number of query heads.
    """

    name: str
    kind: Kind
    layer: int
    num_heads: int


class AttentionSites:
    """The sites of one model, recorded during its first forward and checked in every later one.

    A module is called once a forward, unless ``repeated``, and then every call is a site of its own.

    Args:
        model: Name of the model, for messages.
        modules: Its attention modules, with their qualified names.
        repeated: Whether a module may attend more than once in a forward.
        total: Number of sites where modules attend more than once; None if unknown.
    """

    def __init__(
        self, model: str, modules: Mapping[Any, str], *, repeated: bool, total: int | None = None
    ) -> None:
        self._model, self._modules, self._repeated, self._total = model, modules, repeated, total
        self._known: dict[tuple[Any, int], AttentionSite] = {}
        self._calls: Counter[Any] = Counter()
        # Whether every module has attended in a forward.
        self.complete = False

    def __iter__(self) -> Iterator[AttentionSite]:
        return iter(self._known.values())

    def begin(self, module: nn.Module | None = None) -> None:
        """Start a forward of the model, or of one module alone."""
        if module is None:
            self._calls.clear()
        else:
            self._calls.pop(module, None)

    def visit(self, module: nn.Module, heads: int, kind: Callable[[], Kind]) -> AttentionSite:
        """The site of the attention call that ``module`` is making, the same in every forward.

        Args:
            module: The attention module.
            heads: Number of its query heads.
            kind: Returns the kind of the call; called for a new site.

        Raises:
            CaptureError: If the call was not made in the first forward, or is an unexpected second one.
        """
        name = self._modules[module]
        occurrence = self._calls[module]
        self._calls[module] += 1
        known = self._known.get((module, occurrence))
        if known is not None:
            if known.num_heads != heads:
                raise CaptureError(
                    f"{name} has {heads} heads in this forward, but had {known.num_heads} before"
                )
            return known
        if self.complete or (occurrence and not self._repeated):
            raise CaptureError(
                f"{name} ({type(module).__name__}) attended {occurrence + 1} times in one forward, which is not "
                f"supported: {'the first forward had fewer calls' if self.complete else 'expected one call'}. A "
                "module that attends in chunks cannot be audited; give shorter or fewer inputs per batch"
            )
        result = kind()
        layer = 1 + sum(site.kind == result for site in self)
        site = self._known[module, occurrence] = AttentionSite(name, result, layer, heads)
        return site

    def finish(self, *, all_called: bool) -> None:
        """End a forward.

        Args:
            all_called: Whether every site must have attended in it.

        Raises:
            CaptureError: Naming a site that did not, or if shared layers do not add up.
        """
        expected = self._known.keys() | {(module, 0) for module in self._modules}
        missed = {module for module, occurrence in expected if self._calls[module] <= occurrence}
        names = [name for module, name in self._modules.items() if module in missed]
        if names and all_called:
            others = f" (nor did {len(names) - 1} others)" if len(names) > 1 else ""
            raise CaptureError(
                f"{names[0]} did not attend in this forward{others}, or fewer times than before; every attention "
                f"module of {self._model} has to, or heads would be missing. Give the model all inputs that its "
                "modules need, or give the submodule that the inputs pass through"
            )
        if self._total is not None and len(self._known) not in (len(self._modules), self._total):
            raise CaptureError(
                f"{self._model} attended {len(self._known)} times with {len(self._modules)} attention modules, but "
                f"its configuration says {self._total} layers, so calls cannot be matched to layers"
            )
        self.complete = {module for module, _ in self._known} == {*self._modules}

    def check(self, layers: Collection[int | str]) -> None:
        """Check that these are numbers of layers of some kind, or names of modules that attend.

        Raises:
            InputError: Naming those that are not, and the existing ones.
        """
        missing = {*layers} - {site.layer for site in self} - {site.name for site in self}
        if missing:
            raise InputError(
                f"layers {sorted(missing, key=str)} do not exist in {self._model}, which has {existing(self)}"
            )


def existing(sites: Iterable[AttentionSite]) -> str:
    """The numbers of layers of each kind, in words.

    Example:
        >>> existing([AttentionSite("a", "cross", 1, 4), AttentionSite("b", "cross", 2, 4)])
        'cross-attention 1 to 2'
    """
    counts = Counter(site.kind for site in sites)
    return ", ".join(
        f"{name.lower()} 1 to {counts[kind]}" for kind, name in KIND_NAMES.items() if kind in counts
    )


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The tensors of one attention call: its weights are softmax(scaling·⟨query, key⟩ + log_preference).

    Attributes:
        site: The layer.
        query: (B, H, m, d_h), as it reaches the attention function.
        key: (B, H_kv, n, d_h), likewise; a head shared by a group of query heads is not repeated.
        scaling: Factor of the scores.
        preference: The log preference, broadcastable to (B, H, m, n), float32 (float64 for float64 models), -inf where
            masked; a pure mask is bool, True where a query may attend, since as numbers it would be the largest array
            of a long context. Size 1 along batch, head and query where it is constant there. None is uniform.
        counted: (B, m) bool, the real queries. One that may attend to nothing is not real.
        inputs: (B, n, width), x_i, the inputs of the key map; None for space="key".
        key_weight: (H_kv, d_h, width), the key map; None for space="key".
        key_bias: (H_kv, d_h), its bias; None if it has none, and for space="key".
        value: (B, H_kv, n, d_v); None if unknown.
    """

    site: AttentionSite
    query: Tensor
    key: Tensor
    scaling: float
    preference: Tensor | None
    counted: Tensor
    inputs: Tensor | None
    key_weight: Tensor | None
    key_bias: Tensor | None
    value: Tensor | None = None

    @property
    def log_preference(self) -> Tensor | None:
        """The preference as numbers, converted at every access if it is a mask."""
        return None if self.preference is None else preference_numbers(self.preference, self.query, 0)


@dataclass(frozen=True, eq=False)
class AbstractCall(ABC):
    """An attention call that is not computed yet.

    Attributes:
        module: The attention module.
        problem: The problem of its heads, without the preference and α; query heads may share templates and values.
        preference: As in :class:`AttentionCall`.
        dropout: Probability of dropping a weight, 0 in inference.
    """

    module: Any
    problem: Problem
    preference: Tensor | None
    dropout: float

    @property
    @abstractmethod
    def alphas(self) -> Sequence[float | Tensor]:
        """α of every head, H numbers, or tensors that broadcast to (B, m, 1)."""

    @abstractmethod
    def infer(self, *, weights: bool = False) -> Inferred:
        """The inference of the heads, with weights before dropout if asked for."""

    @property
    def log_preference(self) -> Tensor:
        """Log u as numbers, (B or 1, H or 1, m or 1, n)."""
        return preference_numbers(self.preference, self.problem.evidence, self.problem.templates.shape[2])


def preference_numbers(preference: Tensor | None, query: Tensor, keys: int) -> Tensor:
    """Log u as numbers, in float32 at least: of a mask, or of ``keys`` equally likely templates where it is None."""
    dtype = compute_dtype(query.dtype)
    if preference is None:
        return torch.zeros(1, 1, 1, keys, dtype=dtype, device=query.device)
    return log_weights(preference, dtype)


class RealQueries:
    """The real queries of one batch, for the main stack and for the decoder of an encoder-decoder model.

    Args:
        inputs: Inputs of the model; ``attention_mask`` and ``decoder_attention_mask`` (B, n) mark the padding.
        counted: (B, n) bool, or None: further restricts the main stack.
        counted_decoder: (B, m) bool, or None: further restricts the decoder.

    Raises:
        InputError: If a restriction does not have the shape of the mask or of the ids that it restricts.
    """

    def __init__(
        self, inputs: Mapping[str, Tensor], counted: Tensor | None, counted_decoder: Tensor | None
    ) -> None:
        self._main = self._intersect(inputs, "attention_mask", "counted", counted)
        self._decoder = self._intersect(inputs, "decoder_attention_mask", "counted_decoder", counted_decoder)

    @staticmethod
    def _intersect(
        inputs: Mapping[str, Tensor], key: str, name: str, counted: Tensor | None
    ) -> Tensor | None:
        mask, ids = inputs.get(key), inputs.get(key.replace("attention_mask", "input_ids"))
        real = None if mask is None or mask.ndim != 2 else mask != 0
        if counted is None:
            return real
        known = ids if real is None and ids is not None and ids.ndim == 2 else real
        form, sizes = "(batch, queries), as the inputs", (None, None) if known is None else known.shape
        check_tensor(name, counted, form, dtypes=BOOL, sizes=sizes, error=InputError)
        return counted if real is None else real & counted.to(real.device)

    def fits(self, query: Tensor, *, decoder: bool) -> bool:
        """Whether the known mask has the shape of the queries (B, H, m, d)."""
        real = self._decoder if decoder else self._main
        return real is not None and tuple(real.shape) == (query.shape[0], query.shape[2])

    def __call__(
        self, site: str, query: Tensor, empty_rows: Tensor | None, *, decoder: bool, masked: bool = True
    ) -> Tensor:
        """The real queries at one site.

        Args:
            site: Qualified name of the attention module, for the message.
            query: (B, H, m, d).
            empty_rows: Bool, broadcastable to (B, H, m, 1): queries that may attend to nothing, which are left out;
                or None.
            decoder: Whether the queries are the decoder's.
            masked: Whether the call masks anything. Where it does not, and the padding mask is of another sequence (the
                text beside an image), all queries are real.

        Returns:
            (B, m) bool on the query's device.

        Raises:
            CaptureError: If the batch's padding mask does not fit the queries.
        """
        shape = (query.shape[0], query.shape[2])
        real = self._decoder if decoder else self._main
        if real is None or (real.shape != shape and not masked):
            real = torch.ones(shape, dtype=torch.bool, device=query.device)
        elif real.shape != shape:
            raise CaptureError(
                f"{site} has queries of shape {shape} (batch, queries), but the padding mask of the batch is "
                f"{tuple(real.shape)}, so padding queries cannot be identified. Leave the mask out if nothing is "
                "padded"
            )
        real = real.to(query.device)
        if empty_rows is not None:
            real = real & ~empty_rows.any(1).squeeze(-1)
        return real


class AbstractSource(ABC):
    """A model of one of the libraries, with the interface of a capture.

    Attributes:
        modules: Its attention modules, with their qualified names.
        sites: Its attention layers.
    """

    modules: Mapping[nn.Module, str]
    sites: AttentionSites

    @abstractmethod
    def intercept(self, handler: Callable[[Any], Inferred]) -> AbstractContextManager[None]:
        """Compute every attention call of the model, an :class:`AbstractCall`, by ``handler`` until the block ends."""

    @abstractmethod
    def kind(self, call: Any) -> Kind:
        """The kind of a call."""

    @abstractmethod
    def described(self, call: Any, site: AttentionSite, space: str, real: RealQueries) -> AttentionCall:
        """A call as an audit measures it, with reliability 1."""

    @abstractmethod
    def check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        """Raise InputError unless the inputs fit the model; for an audit."""

    def begin(self) -> None:
        """Start a forward."""
        self.sites.begin()

    def finish(self, *, all_called: bool) -> None:
        """End a forward without errors; see :meth:`AttentionSites.finish`."""
        self.sites.finish(all_called=all_called)


def named_arguments(model: nn.Module) -> list[str]:
    """Names of the arguments of a model's forward, without ``*args`` and ``**kwargs``."""
    parameters = inspect.signature(model.forward).parameters.values()
    return [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]


def check_names(model: nn.Module, inputs: Mapping[str, Tensor], *, declared: bool = False) -> None:
    """Check that the forward of a model takes inputs of these names.

    Args:
        model: The model.
        inputs: Its inputs by name.
        declared: Whether its forward has to name them all, although it takes others as ``**kwargs``.

    Raises:
        InputError: Naming the first unknown name, and the known ones.
    """
    parameters = inspect.signature(model.forward).parameters
    if not declared and any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return
    unknown = next((name for name in inputs if name not in parameters), None)
    if unknown is not None:
        takes = ", ".join(named_arguments(model))
        raise InputError(f"the forward of {type(model).__name__} takes no {unknown!r}; it takes {takes}")


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
        return widened(evidence) * root, templates, scaling * root
    if space == "input":
        raise ModelError(
            f"the heads of {name} have different α, and in space 'input' they would have to share templates. Audit it "
            "with space='key' (--space key)"
        )
    roots = torch.tensor(own, dtype=torch.float64).sqrt().view(-1, 1, 1).to(evidence.device)
    query, key = (widened(part) for part in (evidence, templates))
    return query * roots.to(query.dtype), key * roots.to(key.dtype), scaling


def _counted(site: AttentionSite, asked: LayerCall, preference: Tensor | None, real: RealQueries) -> Tensor:
    evidence = asked.problem.evidence
    empty = None if preference is None else ~may_attend(preference).any(-1, keepdim=True)
    of_decoder = site.kind != "encoder_self" and real.fits(evidence, decoder=True)
    padding = asked.key_padding if asked.is_self_attention else None
    # Masks of a batch do not apply to queries at some of its positions, or at none.
    if not of_decoder and not (asked.is_self_attention and evidence.shape[2] == _own_keys(asked)):
        real, padding = RealQueries({}, None, None), None
    counted = real(site.name, evidence, empty, decoder=of_decoder)
    return counted if padding is None or padding.shape != counted.shape else counted & ~padding


def _own_keys(asked: LayerCall) -> int:
    """Number of templates from the layer's input; templates that the layer adds come after them."""
    return asked.problem.templates.shape[2] - asked.added


# Layers without softmax over vectors, and why an audit cannot measure them.
_UNMEASURED = {
    TransportAttention: "whose closeness is optimal transport, and an audit measures the Kullback-Leibler divergence",
    ContinuousAttention: "whose weight is a density over places, and an audit measures weights of tokens",
    MixtureAttention: "whose templates are distributions, and an audit measures templates that are vectors",
}


@dataclass(frozen=True, eq=False)
class _LayerCall(AbstractCall):
    """A call of a layer of ``fenchel.nn``.

    Attributes:
        asked: The call as the layer made it.
        asked_preference: Its log-preference, with four dimensions.
        own: The layer's own inference.
        options: Its further arguments.
    """

    asked: LayerCall
    asked_preference: Tensor | None
    own: Callable[..., Inferred]
    options: Mapping[str, Any]

    @property
    @override
    def alphas(self) -> list[float | Tensor]:
        alpha, other = self.problem.alpha, self.module.other
        heads = self.module.num_heads
        own = alpha[:, 0].unbind() if isinstance(alpha, Tensor) and alpha.dim() else [alpha] * heads
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
        check_all_attend(model)
        known = {name or type(model).__name__: layer for name, layer in attention_layers(model).items()}
        reasons = {name: _why_not_captured(layer, measured=measured) for name, layer in known.items()}
        unseen = [name for name, reason in reasons.items() if reason is not None]
        if unseen and (len(unseen) == len(known) or not chosen):
            others = ",".join(str(number + 1) for number in range(len(known) - len(unseen)))
            advice = f". Choose the other attention layers: --layers {others}, or in Python layers=[{others}]"
            name = unseen[0]
            raise ModelError(
                f"{name} is a {type(known[name]).__name__}, {reasons[name]}{advice if others else ''}"
            )
        self.modules: Any = {layer: name for name, layer in known.items() if reasons[name] is None}
        self.sites = AttentionSites(type(model).__name__, self.modules, repeated=True)
        self._rows: int | None = None

    @override
    @contextmanager
    def intercept(self, handler: Callable[[_LayerCall], Inferred]) -> Iterator[None]:
        def intercepted(
            layer: Any, own: Callable[..., Inferred], call: LayerCall, *, dropout: float, **options: Any
        ) -> Inferred:
            preference = call.log_preference
            if preference is not None:
                if preference.dtype != torch.bool:
                    preference = preference.to(compute_dtype(call.problem.evidence.dtype))
                preference = preference.reshape((1,) * (4 - preference.dim()) + tuple(preference.shape))
            return handler(
                _LayerCall(layer, call.problem, preference, dropout, call, preference, own, options)
            )

        inferring = [(layer, partial(intercepted, layer, layer.infer)) for layer in self.modules]
        captured = [(layer, True) for layer in self.modules]
        try:
            with attributes_set("infer", inferring), attributes_set("captured", captured):
                yield
        finally:
            self._rows = None

    @override
    def kind(self, call: _LayerCall) -> Kind:
        queries, preference = call.problem.evidence.shape[2], call.asked_preference
        if not call.asked.is_self_attention:
            return "cross"
        if preference is None or preference.shape[2] < 2:
            return "encoder_self"
        tokens = _own_keys(call.asked)
        later = torch.ones(queries, tokens, dtype=torch.bool, device=preference.device)
        seen = preference[..., :tokens].expand(*preference.shape[:2], queries, tokens)
        sees_later = may_attend(seen)[..., later.triu(1 + tokens - queries)].any()
        return "encoder_self" if bool(sees_later) else "decoder_self"

    @override
    def check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        check_names(self._model, inputs)
        self._rows = next((len(value) for value in inputs.values() if value.dim()), 1)

    @override
    def described(
        self, call: _LayerCall, site: AttentionSite, space: str, real: RealQueries
    ) -> AttentionCall:
        layer, asked, sequences = call.module, call.asked, len(call.problem.evidence)
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


def _why_not_captured(layer: AttendingLayer, *, measured: bool) -> str | None:
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
