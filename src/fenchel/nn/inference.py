"""What every layer asks of its heads and hands to the functional form, and who looks on or changes it for a while."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.closeness import AbstractCloseness
from fenchel.errors import NotKeptError
from fenchel.estimators import ESTIMATORS, Estimator, EstimatorName, Exact
from fenchel.functional.arguments import is_softmax
from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.exact import DEFAULT_STEPS
from fenchel.functional.inference import estimator_object
from fenchel.nn.arguments import AttentionInputs
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.windows import KeyPadding
from fenchel.tensors import checked_argument


@dataclass(frozen=True, eq=False)
class Problem:
    """What an attention layer asks of its heads, but for the preference.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: Before their scale, (B, H, n, d).
        values: (B, H, n, d).
        alpha: α, a number or (H, 1).
        scale: Of the templates, a number or a scalar tensor.
        closeness: D; None is Kullback and Leibler's.
        variant: Where templates differ by query, or are means of Gaussians; None where all queries share points.
        reads_templates: Whether those Gaussians themselves are what is read, in the place of values.
    """

    evidence: Tensor
    templates: Tensor
    values: Tensor
    alpha: float | Tensor
    scale: float | Tensor
    closeness: AbstractCloseness | None = None
    variant: functional.Relative | functional.Mixture | None = None
    reads_templates: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is softmax attention to points that all queries share."""
        return self.variant is None and is_softmax(self.closeness)


class Inferred(NamedTuple):
    """What came of it.

    Attributes:
        output: (B, H, m, d).
        weights: (B, H, m, n); None if not asked for.
        certificate: None if not asked for.
        gap: With gradient, (B, H, m); None if not asked for.
    """

    output: Tensor
    weights: Tensor | None = None
    certificate: AttentionCertificate | None = None
    gap: Tensor | None = None


def infer(
    problem: Problem,
    log_preference: Tensor | None,
    *,
    estimator: EstimatorName | Estimator,
    dropout: float,
    need_weights: bool,
    need_certificate: bool,
    need_gap: bool = False,
) -> Inferred:
    """Attend, with the preference as a tensor.

    Args:
        problem: Evidence, templates and values.
        log_preference: log u, as :func:`fenchel.functional.attention` takes it.
        estimator: Likewise, with its options.
        dropout: Probability of dropping a weight, now.
        need_weights: Whether to return them, after dropout.
        need_certificate: Whether to return it. It is that of the weights before dropout.
        need_gap: Whether to return it; likewise.
    """
    read = None if problem.reads_templates else problem.values
    # Weights that are returned are dropped once, for the output too.
    by_weights = need_weights and read is not None
    result = functional.infer(
        problem.evidence,
        problem.templates,
        None if by_weights else read,
        log_preference=log_preference,
        alpha=problem.alpha,
        scale=problem.scale,
        closeness=problem.closeness,
        variant=problem.variant,
        estimator=estimator,
        dropout_p=dropout,
    )
    # The certificate first: it may have the output of the same pass.
    certificate = result.certificate if need_certificate else None
    gap = result.gap if need_gap else None
    weights = result.weights if need_weights else None
    if weights is None or not by_weights:
        return Inferred(result.output, weights, certificate, gap)
    weights = torch.dropout(weights, dropout, train=True) if dropout > 0 else weights
    return Inferred(weights @ problem.values, weights, certificate, gap)


def has_kernel(problem: Problem, preference: AbstractPreference | None, inputs: AttentionInputs) -> bool:
    """Whether torch can fuse this preference into attention to these templates: on a GPU, where it pays."""
    if preference is None or not preference.lowers or inputs.device.type != "cuda":
        return False
    from fenchel.functional.flex import SMALLEST_DIM

    smallest = min(problem.templates.shape[-1], problem.values.shape[-1])
    return smallest >= SMALLEST_DIM and inputs.dtype != torch.float64


def infer_fused(problem: Problem, preference: AbstractPreference, inputs: AttentionInputs) -> Inferred:
    """Attend at first order in one kernel, with the preference and the padding as functions of indices."""
    from fenchel.functional.flex import flex_attention

    if inputs.key_padding is not None:
        preference = preference * KeyPadding()
    output = flex_attention(
        problem.evidence,
        problem.templates,
        problem.values,
        score_mod=preference.score_mod(inputs),
        mask_mod=preference.mask_mod(inputs),
        scale=problem.scale,
        alpha=problem.alpha,
        enable_gqa=False,
    )
    return Inferred(output)


class KeyProjection(NamedTuple):
    """The linear map that made the keys of a call.

    Attributes:
        inputs: What it took, (B, n, width).
        weight: One map a head, (H, d, width).
        bias: (H, d), or None.
    """

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None


class LayerCall(NamedTuple):
    """What a layer asks of its heads in one call.

    Attributes:
        problem: Evidence, templates, values, α and scale.
        log_preference: log u, or bool with True = attend, broadcastable to (B, H, m, n); None is uniform.
        projection: In a capture, where the templates come from; None where they are no linear map of the input.
        key_padding: In a capture, True where a key is padding, bool (B, n before what is added), or None.
        asks_itself: In a capture, whether the queries are of the sequence that the keys are of.
        added: How many templates follow those of the keys.
        query_padding: In a capture, True where a query is padding, bool (B, m), or None.
    """

    problem: Problem
    log_preference: Tensor | None
    projection: KeyProjection | None = None
    key_padding: Tensor | None = None
    asks_itself: bool = False
    added: int = 0
    query_padding: Tensor | None = None


@dataclass
class OtherInference:
    """How heads of a layer infer for a while; see :func:`fenchel.nn.use_estimator`.

    Attributes:
        name: Qualified name of the layer.
        estimator: With its options, of which those that are None are the layer's own; None is all the layer's own.
        alpha: α; None is the layer's own.
        heads: Numbers of the heads that do so, from 1; None is all.
        called: Whether the layer has attended.
        times: What the layer's own α is multiplied by where ``alpha`` is None.
    """

    name: str
    estimator: Estimator | None = None
    alpha: float | None = None
    heads: tuple[int, ...] | None = None
    called: bool = False
    times: float = 1.0

    def solver(self, layer: AttendingLayer) -> Estimator:
        """The estimator for a layer."""
        if isinstance(self.estimator, Exact):
            return replace(Exact(tol=layer.tol, max_steps=layer.max_steps), **self.estimator.options)
        return layer.solver if self.estimator is None else self.estimator

    def reliability(self, own: float | Tensor) -> float | Tensor:
        """α for the heads that infer so."""
        if self.alpha is not None:
            return self.alpha
        return own if self.times == 1.0 else own * self.times


class AttendingLayer:
    """The part of a layer that can be captured and switched. It comes before ``torch.nn.Module`` among its bases.

    A layer says its ``estimator`` and how many heads it has, ``num_heads``, and hands its calls to :meth:`answer`.

    Attributes:
        tol: Tolerance of the exact estimator; None is the default of ops.
        max_steps: Steps of the exact estimator at most.
    """

    num_heads: int
    tol: float | None = None
    max_steps: int = DEFAULT_STEPS
    _estimator: str = "first_order"
    captured: bool = False
    """Whether calls say where their templates come from; only inside of a capture."""
    other: OtherInference | None = None
    """Another inference, only inside of ``use_estimator``."""

    @property
    def estimator(self) -> str:
        """What the layer infers by. A name can be assigned, or an object, which brings ``tol`` and ``max_steps``."""
        return self._estimator

    @estimator.setter
    def estimator(self, estimator: EstimatorName | Estimator) -> None:
        if isinstance(estimator, Estimator):
            self._infer_by(estimator)
        else:
            self._infer_by(estimator, self.tol, self.max_steps)

    def _infer_by(
        self, estimator: EstimatorName | Estimator, tol: float | None = None, max_steps: int = DEFAULT_STEPS
    ) -> None:
        checked_argument("max_steps", max_steps)
        result = estimator_object(estimator, tol, max_steps)
        own = result.options if isinstance(estimator, Estimator) else {"tol": tol, "max_steps": max_steps}
        self._estimator = result.name
        self.tol, self.max_steps = own.get("tol"), own.get("max_steps", DEFAULT_STEPS)

    @property
    def solver(self) -> Estimator:
        """The layer's own estimator with its options."""
        if self._estimator == "exact":
            return Exact(tol=self.tol, max_steps=self.max_steps)
        return ESTIMATORS[self._estimator]()

    def _for_now(self, alpha: float | Tensor) -> tuple[float | Tensor, Estimator]:
        """α and the estimator of all heads together, as they are now."""
        if self.other is None:
            return alpha, self.solver
        self.other.called = True
        return self.other.reliability(alpha), self.other.solver(self)

    @property
    def effective_estimator(self) -> str:
        """What the layer infers by now; where its heads differ, what those do that are not first order."""
        other = self.other
        if other is None or other.estimator is None:
            return self.estimator
        name = other.estimator.name
        return self.estimator if self._in_part and name == "first_order" else name

    @property
    def _in_part(self) -> bool:
        """Whether some heads are switched and some are not."""
        other = self.other
        return other is not None and other.heads is not None and len(set(other.heads)) < self.num_heads

    def answer(self, call: LayerCall, **options: Any) -> Inferred:
        """What the heads infer, by the layer's own estimator or, for a while, another.

        Args:
            call: What is asked.
            **options: As :func:`fenchel.nn.inference.infer` takes them, but for the estimator.
        """
        problem, log_preference = call.problem, call.log_preference
        if self.other is None:
            return infer(problem, log_preference, estimator=self.solver, **options)
        if not self._in_part:
            alpha, solver = self._for_now(problem.alpha)
            return infer(replace(problem, alpha=alpha), log_preference, estimator=solver, **options)
        chosen, rest = self._parted(problem.evidence.device)
        part, kept = _of_heads(problem, chosen), _of_heads(problem, rest)
        alpha, solver = self._for_now(part.alpha)
        part, u = replace(part, alpha=alpha), preference_of_heads(log_preference, chosen)
        u_kept = preference_of_heads(log_preference, rest)
        return joined(
            infer(part, u, estimator=solver, **options),
            infer(kept, u_kept, estimator=self.solver, **options),
            torch.cat((chosen, rest)).argsort(),
        )

    def _parted(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The heads that are switched and those that are not, from 0."""
        heads = set((self.other and self.other.heads) or ())
        both = (
            [head for head in range(self.num_heads) if (head + 1 in heads) is wanted]
            for wanted in (True, False)
        )
        chosen, rest = (torch.tensor(some, dtype=torch.int64, device=device) for some in both)
        return chosen, rest

    def _reset_parameters(self) -> None:
        own: Any = super()
        self._qkv_same_embed_dim = getattr(self, "in_proj_weight", None) is not None
        own._reset_parameters()
        # False from here on: torch's transformer layers take that for "cannot be fused", and call forward.
        self._qkv_same_embed_dim = False

    def reset_parameters(self) -> None:
        """Draw the weights anew, and put what heads learn of their own back to where it started."""
        self._reset_parameters()
        for name in ("alpha", "radius", "gamma"):
            if getattr(self, f"log_{name}", None) is not None:
                setattr(self, name, getattr(self, f"_{name}"))

    def __getstate__(self) -> dict[str, Any]:
        # What lasts for a while is not the layer's: copies and files are without.
        inherited = getattr(super(), "__getstate__", None)
        state = self.__dict__ if inherited is None else inherited()
        return {name: value for name, value in state.items() if name not in ("captured", "other")}


def attention_layers(model: nn.Module) -> dict[str, AttendingLayer]:
    """The layers of a model that attend and can be watched and switched, by qualified name, in its own order.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> block = nn.TransformerEncoderLayer(16, 4)
        >>> block.self_attn = MultiheadAttention(16, 4)
        >>> list(attention_layers(nn.TransformerEncoder(block, 2, enable_nested_tensor=False)))
        ['layers.0.self_attn', 'layers.1.self_attn']
    """
    return {name: module for name, module in model.named_modules() if isinstance(module, AttendingLayer)}


def lies_in(part: Tensor, whole: Tensor) -> bool:
    """Whether a tensor is another one, or begins inside of its memory, as a slice of it does.

    Example:
        >>> tokens = torch.ones(2, 3, 4)
        >>> lies_in(tokens[:, :1], tokens), lies_in(tokens.clone(), tokens)
        (True, False)
    """
    if part is whole:
        return True
    if part.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
        return False
    spread = sum((size - 1) * step for size, step in zip(whole.shape, whole.stride(), strict=True))
    return whole.storage_offset() <= part.storage_offset() <= whole.storage_offset() + spread


def _of_heads(problem: Problem, index: Tensor) -> Problem:
    def taken(tensor: Tensor) -> Tensor:
        return tensor if tensor.shape[1] == 1 else tensor.index_select(1, index)

    alpha, closeness, variant = problem.alpha, problem.closeness, problem.variant
    if isinstance(alpha, Tensor) and alpha.dim() == 2 and alpha.shape[0] > 1:
        alpha = alpha.index_select(0, index)
    parts = {} if variant is None else vars(variant)
    own = {name: taken(x) for name, x in parts.items() if isinstance(x, Tensor) and x.dim() == 4}
    return replace(
        problem,
        evidence=taken(problem.evidence),
        templates=taken(problem.templates),
        values=taken(problem.values),
        alpha=alpha,
        closeness=closeness and closeness.heads(index),
        variant=variant and replace(variant, **own),
    )


def preference_of_heads(log_preference: Tensor | None, index: Tensor) -> Tensor | None:
    """The log-preference of the heads of an index, where heads have their own."""
    if log_preference is None or log_preference.dim() < 3 or log_preference.shape[-3] == 1:
        return log_preference
    return log_preference.index_select(-3, index)


def joined(one: Inferred, other: Inferred, order: Tensor) -> Inferred:
    """Two answers side by side along the heads, then in ``order``."""

    def side_by_side(first: Any, second: Any) -> Any:
        if first is None or second is None:
            return None
        if isinstance(first, AttentionCertificate):
            return AttentionCertificate(*map(side_by_side, first, second))
        return torch.cat((first, second), 1).index_select(1, order)

    return Inferred(*map(side_by_side, one, other))


def projected(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each through its map, which are those of ``torch.nn.MultiheadAttention``.

    In one product where they are the same tensor.
    """
    if layer.in_proj_weight is None:
        weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
    elif query is key and key is value:
        return nn.functional.linear(query, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)  # pyright: ignore[reportReturnType]
    else:
        weights = layer.in_proj_weight.chunk(3)
    biases = (None, None, None) if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return tuple(map(nn.functional.linear, (query, key, value), weights, biases))  # pyright: ignore[reportReturnType]


def _key_projection(layer: nn.MultiheadAttention, inputs: Tensor) -> KeyProjection:
    """The map of the keys by heads, with what it takes, (B, n, width)."""
    packed, biases = layer.in_proj_weight, layer.in_proj_bias
    weight = layer.k_proj_weight if packed is None else packed.chunk(3)[1]
    heads = (layer.num_heads, layer.head_dim)
    bias = None if biases is None else biases.chunk(3)[1].view(heads)
    return KeyProjection(inputs, weight.unflatten(0, heads), bias)


def seen(layer: nn.MultiheadAttention, call: LayerCall, keys: Tensor, inputs: AttentionInputs) -> LayerCall:
    """A call with what a capture wants to know beside it.

    Args:
        layer: The layer.
        call: What it asks.
        keys: What its key map gave, (B, H, n, d).
        inputs: What it was called with.
    """
    query, key = inputs.query_inputs, inputs.key_inputs
    if query is None or key is None:
        return call
    return call._replace(
        projection=_key_projection(layer, key) if call.problem.templates is keys else None,
        key_padding=inputs.key_padding,
        asks_itself=bool(inputs.query_offset) or lies_in(query, key),
    )


def of_last_call(what: str) -> Any:
    """A property: what a layer that is called with ``keep_WHAT`` set keeps of that call."""

    def read(layer: Any) -> Any:
        kept = getattr(layer, f"_last_{what}")
        if kept is None:
            raise NotKeptError(
                f"there is no {what.replace('_', ' ')} of a last call; set keep_{what} = True on the layer, then call "
                "it"
            )
        return kept

    return property(read)


_PROPERTIES = ("last_certificate", "last_gap", "last_norm_penalty")
_STORED = tuple(f"_{name}" for name in _PROPERTIES)


class LastCall:
    """The part of a layer that remembers. It comes before ``torch.nn.Module`` among the bases of a layer."""

    _last_certificate: AttentionCertificate | None = None
    _last_gap: Tensor | None = None
    _last_norm_penalty: Tensor | None = None

    last_certificate: AttentionCertificate = of_last_call("certificate")
    """How far at most the last call was from exact: three tensors (N, H, L), or (H, L) unbatched, without gradient.

    They are a record: in a loss they change nothing. :attr:`last_gap` is for losses.
    """
    last_gap: Tensor = of_last_call("gap")
    """The certificate's gap of the last call, (N, H, L), or (H, L) unbatched, with gradient.

    It holds on to the graph of that call until the next one.
    """
    last_norm_penalty: Tensor = of_last_call("norm_penalty")
    r"""Mean of :math:`\frac\alpha2\operatorname{tr}\operatorname{Cov}_u(t)` over the last call, with gradient.

    It holds on to the graph of that call until the next one.
    """

    def forget_last_call(self) -> None:
        """Let go of what was kept, and of the graphs that it holds on to."""
        for name in _STORED:
            # A layer that keeps nothing does not change when it is called, which is what can be exported.
            if getattr(self, name) is not None:
                setattr(self, name, None)

    def __getattr__(self, name: str) -> Any:
        # Python comes here when a property raises an AttributeError, which torch's own would replace by another.
        if name in _PROPERTIES:
            return getattr(type(self), name).fget(self)
        return super().__getattr__(name)  # pyright: ignore[reportAttributeAccessIssue]

    def __getstate__(self) -> dict[str, Any]:
        # What a call leaves behind is not the layer's, and a tensor with a graph cannot be copied.
        return {name: value for name, value in self.__dict__.items() if name not in _STORED}
