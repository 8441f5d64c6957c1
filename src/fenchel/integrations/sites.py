"""The attention layers of a model, their calls, and the interface of models of every library to a capture."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fenchel.arguments import KINDS, Kind
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.nn.inference import AttendingLayer, Inferred, Problem
from fenchel.tensors import log_weights


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
        self.complete = False
        """Whether every module has attended in a forward."""

    def __iter__(self) -> Iterator[AttentionSite]:
        return iter(self._known.values())

    @property
    def called(self) -> bool:
        """Whether any site has attended in this forward."""
        return bool(self._calls)

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


def check_layers(layers: Collection[int | str], sites: Iterable[AttentionSite], model: str) -> None:
    """Check that everything in ``layers`` is the number of a layer of some kind, or the name of a module that attends.

    Args:
        layers: The numbers and names.
        sites: The attention layers of the model.
        model: Its name, for messages.

    Raises:
        InputError: Naming those that are not, and the existing ones.
    """
    missing = {*layers} - {site.layer for site in sites} - {site.name for site in sites}
    if missing:
        raise InputError(
            f"layers {sorted(missing, key=str)} do not exist in {model}, which has {existing(sites)}"
        )


def existing(sites: Iterable[AttentionSite]) -> str:
    """The numbers of layers of each kind, in words.

    Example:
        >>> existing([AttentionSite("a", "cross", 1, 4), AttentionSite("b", "cross", 2, 4)])
        'cross 1 to 2'
    """
    counts = Counter(site.kind for site in sites)
    return ", ".join(f"{kind} 1 to {counts[kind]}" for kind in KINDS if counts[kind])


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

    module: nn.Module
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
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
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
        InputError: If a restriction does not have the shape of the mask that it restricts.
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
        mask = inputs.get(key)
        real = None if mask is None or mask.ndim != 2 else mask != 0
        if counted is None:
            return real
        if counted.dtype != torch.bool or counted.ndim != 2:
            raise InputError(
                f"{name} has dtype {counted.dtype} and shape {tuple(counted.shape)}; expected bool (batch, "
                "queries)"
            )
        if real is None:
            return counted
        if real.shape != counted.shape:
            raise InputError(
                f"{name} has shape {tuple(counted.shape)}, but {key} has {tuple(real.shape)}; they must be "
                "the same"
            )
        return real & counted.to(real.device)

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


def check_all_attend(model: nn.Module) -> None:
    """Check that a model with attention layers of ``fenchel.nn`` has no others, which would be missed.

    Raises:
        ModelError: Naming the first.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and not isinstance(module, AttendingLayer):
            raise ModelError(
                f"{name} of {type(model).__name__} is a torch.nn.MultiheadAttention, which cannot be captured, so its "
                "heads would be missing. Replace it by fenchel.nn.MultiheadAttention.from_torch(layer), which "
                "computes the same"
            )


def check_names(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Check that the forward of a model takes inputs of these names.

    Raises:
        InputError: Naming the first unknown name, and the known ones.
    """
    parameters = inspect.signature(model.forward).parameters
    unknown = next((name for name in inputs if name not in parameters), None)
    if unknown is not None:
        takes = ", ".join(name for name in parameters if name not in ("args", "kwargs"))
        raise InputError(f"the forward of {type(model).__name__} takes no {unknown!r}; it takes {takes}")


def takes_any_name(model: nn.Module) -> bool:
    """Whether the forward of a model takes arbitrary keyword arguments."""
    return any(one.kind is one.VAR_KEYWORD for one in inspect.signature(model.forward).parameters.values())
