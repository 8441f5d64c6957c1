"""The places where a model attends, and what one of them attends with."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fenchel.arguments import ESTIMATORS
from fenchel.auditing.heads import KINDS, Kind
from fenchel.errors import CaptureError, InputError, ModelError
from fenchel.integrations.transformers.attention_modules import attention_modules
from fenchel.integrations.transformers.log_preference import LogPreference
from fenchel.integrations.transformers.tracing import Visit
from fenchel.nn.inference import AttendingLayer
from fenchel.preference.discrete import log_weights

__all__ = [
    "AttentionCall",
    "AttentionSite",
    "AttentionSites",
    "check_all_attend",
    "check_capture",
    "check_evaluating",
    "check_layers",
    "check_names",
    "estimator_of",
    "own_estimators",
]


@dataclass(frozen=True)
class AttentionSite:
    """One place where a model attends.

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
    """The sites of one model, found out during its first forward and checked in every one.

    A module is called once a forward. Only where the model has fewer attention modules than its configuration
    has layers (ALBERT) may one be called again, and then every call is a layer of its own.

    Args:
        model: A transformers model.
        modules: Its attention modules, with their qualified names.

    Raises:
        ModelError: If it is an encoder-decoder model that does not say which of its modules are the decoder.
    """

    def __init__(self, model: Any, modules: Mapping[nn.Module, str]) -> None:
        self._model_class = type(model).__name__
        self._modules = modules
        self._num_layers = getattr(model.config, "num_hidden_layers", None)
        self._shared = isinstance(self._num_layers, int) and len(modules) < self._num_layers
        takes_decoder_inputs = "decoder_input_ids" in inspect.signature(model.forward).parameters
        self.has_decoder: bool = (
            bool(getattr(model.config, "is_encoder_decoder", False)) and takes_decoder_inputs
        )
        self._decoder = self._modules_of_decoder(model) if self.has_decoder else frozenset()
        self._known: dict[tuple[nn.Module, int], AttentionSite] = {}
        self._calls: Counter[nn.Module] = Counter()
        self._complete = False

    def __iter__(self) -> Iterator[AttentionSite]:
        return iter(self._known.values())

    def _modules_of_decoder(self, model: Any) -> frozenset[nn.Module]:
        decoder = model
        while (inner := decoder.get_decoder()) is not decoder and inner is not None:
            decoder = inner  # a wrapper's decoder may itself hold an encoder and a decoder
        if decoder is model:
            raise ModelError(f"{self._model_class} does not say which of its modules are the decoder")
        return frozenset(decoder.modules())

    @property
    def called(self) -> bool:
        """Whether any site has attended in this forward."""
        return bool(self._calls)

    def begin(self) -> None:
        """A forward starts."""
        self._calls.clear()

    def visit(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        preference: LogPreference,
        is_causal: bool | None,
        seen: Visit | None,
    ) -> AttentionSite:
        """The site of the attention call that ``module`` is making.

        Args:
            module: The attention module.
            query: (B, H, m, d).
            key: (B, H_kv, n, d).
            value: (B, H_kv, n, d_v).
            preference: Its log-preference.
            is_causal: What the family says of itself.
            seen: What the module was called with; needed until the first forward is over.

        Returns:
            The site, the same in every forward.

        Raises:
            CaptureError: If the call is not one of those of the first forward, or a second one without known
                reason.
        """
        name = self._modules[module]
        occurrence = self._calls[module]
        self._calls[module] += 1
        known = self._known.get((module, occurrence))
        if known is not None:
            if known.num_heads != query.shape[1]:
                raise CaptureError(
                    f"{name} has {query.shape[1]} heads in this forward, and had {known.num_heads} before"
                )
            return known
        if self._complete or (occurrence and not self._shared):
            raise CaptureError(
                f"{name} ({type(module).__name__}) attended {occurrence + 1} times in one forward, which is "
                "not understood: "
                f"{'the first forward had fewer calls' if self._complete else 'expected one call'}. A module "
                "that attends piece by piece cannot be audited; give shorter or fewer inputs a batch"
            )
        crosses = query.shape[2] != key.shape[2] or (seen is not None and seen.reads_two_sources(value))
        kind: Kind = "cross" if crosses else self._kind(module, query.shape[2], preference, is_causal)
        layer = 1 + sum(site.kind == kind for site in self._known.values())
        site = AttentionSite(name, kind, layer, query.shape[1])
        self._known[module, occurrence] = site
        return site

    def _kind(
        self, module: nn.Module, tokens: int, preference: LogPreference, is_causal: bool | None
    ) -> Literal["encoder_self", "decoder_self"]:
        if self.has_decoder:
            return "decoder_self" if module in self._decoder else "encoder_self"
        if preference.is_causal(tokens, tokens):
            return "decoder_self"
        # One token tells nothing, and a decoder with a two-way prefix is not causal throughout: believe the
        # family. A mask that all queries share shows that a causal family is used as an encoder.
        undecided = tokens == 1 or not preference.is_shared_by_queries()
        return "decoder_self" if is_causal and undecided else "encoder_self"

    def of_decoder(self, site: AttentionSite) -> bool:
        """Whether the queries of ``site`` are those of the decoder of an encoder-decoder model."""
        return self.has_decoder and site.kind != "encoder_self"

    def finish(self) -> None:
        """A forward has ended: every site must have attended.

        Raises:
            CaptureError: Naming a site that did not, or if shared layers do not add up.
        """
        expected = self._known.keys() | {(module, 0) for module in self._modules}
        missed = {module for module, occurrence in expected if self._calls[module] <= occurrence}
        if missed:
            names = [name for module, name in self._modules.items() if module in missed]
            others = f" (nor did {len(names) - 1} others)" if len(names) > 1 else ""
            raise CaptureError(
                f"{names[0]} did not attend in this forward{others}; every attention module of "
                f"{self._model_class} has to, or heads would be missing. Give the model every input that it "
                "has modules for, or give the submodule that the inputs go through"
            )
        if len(self._known) > len(self._modules) and len(self._known) != self._num_layers:
            raise CaptureError(
                f"{self._model_class} attended {len(self._known)} times with {len(self._modules)} attention "
                f"modules, but its configuration says {self._num_layers} layers, so which call is which "
                "layer is not known"
            )
        self._complete = True

    def require_layers(self, layers: frozenset[int]) -> None:
        """Check that every number in ``layers`` is a layer of some kind.

        Raises:
            InputError: Naming those that are not, and what there is.
        """
        check_layers(layers, tuple(self), self._model_class)


def check_layers(layers: frozenset[int], sites: Sequence[AttentionSite], model: str) -> None:
    """Check that every number in ``layers`` is a layer of some kind.

    Args:
        layers: The numbers.
        sites: Where the model attends.
        model: What to call it.

    Raises:
        InputError: Naming those that are not, and what there is.
    """
    missing = sorted(layers - {site.layer for site in sites})
    if missing:
        counts = Counter(site.kind for site in sites)
        exist = ", ".join(f"{kind} 1 to {counts[kind]}" for kind in KINDS if counts[kind])
        raise InputError(f"layers {missing} do not exist in {model}, which has {exist}")


@dataclass(frozen=True)
class AttentionCall:
    """What one site attends with: its weights are softmax(scaling·⟨query, key⟩ + log_preference).

    Attributes:
        site: Where.
        query: (B, H, m, d_h), as it reaches the attention function.
        key: (B, H_kv, n, d_h), likewise; a head shared by a group of query heads is not repeated.
        scaling: What the model multiplies scores with.
        preference: The log preference, broadcastable to (B, H, m, n), float32 (float64 for float64 models), -inf where
            masked; bool, True where a query may attend, where it is nothing but a mask, which as numbers would be
            the largest array of a long context. Size 1 along batch, head and query where it is constant there. None
            is uniform.
        counted: (B, m) bool, the queries that are real. One that may attend to nothing is not.
        inputs: (B, n, width), x_i, what the key map takes; None for space="key".
        key_weight: (H_kv, d_h, width), the key map; None for space="key".
        key_bias: (H_kv, d_h), its bias; None if it has none, and for space="key".
        value: (B, H_kv, n, d_v), what the weights act on; None where it is not known.
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
        """The preference as numbers, made anew where it is kept as a mask."""
        if self.preference is None:
            return None
        return log_weights(
            self.preference, torch.float64 if self.query.dtype == torch.float64 else torch.float32
        )


def check_all_attend(model: nn.Module) -> None:
    """Check that a model with attention layers of ``fenchel.nn`` has none beside them that would be missed.

    Raises:
        ModelError: Naming the first.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention) and not isinstance(module, AttendingLayer):
            raise ModelError(
                f"{name} of {type(model).__name__} is a torch.nn.MultiheadAttention, which is not seen, so its heads "
                "would be missing. Put fenchel.nn.MultiheadAttention.from_torch(layer) in its place: it computes the "
                "same"
            )


def check_capture(space: str, layers: Collection[int] | None) -> None:
    """Check what a capture is built with.

    Raises:
        InputError: If ``space`` or ``layers`` is none.
    """
    if space not in ("input", "key"):
        raise InputError(f"space is {space!r}; expected 'input' or 'key'")
    if layers is not None and (not layers or any(not isinstance(n, int) or n < 1 for n in layers)):
        raise InputError(f"layers is {layers!r}; expected whole numbers from 1, or None for all layers")


def check_evaluating(model: nn.Module) -> None:
    """Check that nothing in a model is in training mode.

    Raises:
        ModelError: Naming the first module that is.
    """
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise ModelError(
            f"{type(model).__name__} is in training mode{f' in {training}' if training else ''}, where dropout makes "
            "attention random. Call model.eval() first"
        )


def check_names(model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
    """Check that the forward of a model takes inputs of these names.

    Raises:
        InputError: Naming the first that it does not take, and those that it does.
    """
    parameters = inspect.signature(model.forward).parameters
    unknown = next((name for name in inputs if name not in parameters), None)
    if unknown is not None:
        takes = ", ".join(name for name in parameters if name not in ("args", "kwargs"))
        raise InputError(f"the forward of {type(model).__name__} takes no {unknown!r}; it takes {takes}")


_NAMES = {f"fenchel_{estimator}": estimator for estimator in ESTIMATORS}


def estimator_of(module: nn.Module) -> str:
    """The estimator of an attention module, by the name that its configuration has.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 8}
        >>> model = BertModel(BertConfig(**sizes, num_hidden_layers=1, num_attention_heads=2))
        >>> list(own_estimators(model).values())
        ['first_order']
    """
    name: Any = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return _NAMES.get(name, "first_order")


def own_estimators(model: nn.Module) -> dict[str, str]:
    """The estimator of every attention module of a model, by qualified name."""
    return {name: estimator_of(module) for module, name in attention_modules(model).items()}
