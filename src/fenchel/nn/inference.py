"""Base classes of layers: the inference of the heads by the functional form, its capture and temporary replacement."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fenchel import functional
from fenchel.closeness import AbstractCloseness
from fenchel.errors import ModelError
from fenchel.estimators import ESTIMATORS, Estimator, EstimatorName, Exact
from fenchel.functional.arguments import dropped
from fenchel.functional.certificate import AttentionCertificate
from fenchel.functional.exact import DEFAULT_STEPS, estimator_object
from fenchel.nn.arguments import check_positive
from fenchel.nn.calls import AttentionInputs
from fenchel.nn.preference.abstract import AbstractPreference
from fenchel.nn.preference.windows import KeyPadding
from fenchel.tensors import checked_argument


@dataclass(frozen=True, eq=False)
class Problem:
    """The inference problem of the heads of an attention layer, without the preference.

    Attributes:
        evidence: z, (B, H, m, d).
        templates: Templates before scaling, (B, H, n, d).
        values: (B, H, n, d).
        alpha: α, a number or (H, 1).
        scale: Scale of the templates, a number or a scalar tensor.
        closeness: D; None is KL.
        variant: Set if templates differ by query or are means of Gaussians; None if all queries share points.
        reads_templates: Whether the output is the mean of those Gaussians rather than of the values.
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
        """Whether this is softmax attention to points that all queries share."""
        return self.variant is None and (self.closeness is None or self.closeness.is_softmax)

    def infer(self, value: Tensor | None, **options: Any) -> functional.Inference:
        """The inference; ``value`` and further options are those of :func:`fenchel.functional.infer`."""
        given = {name: getattr(self, name) for name in ("alpha", "scale", "closeness", "variant")}
        return functional.infer(self.evidence, self.templates, value, **given, **options)


class Inferred(NamedTuple):
    """The result of an inference; all but the output are None if not needed.

    Attributes:
        output: (B, H, m, d).
        weights: (B, H, m, n).
        certificate: Its bounds.
        gap: With gradient, (B, H, m).
    """

    output: Tensor
    weights: Tensor | None = None
    certificate: AttentionCertificate | None = None
    gap: Tensor | None = None


def averaged(values: Tensor, weights: Tensor) -> Tensor:
    """Means of values (B, H_v, n, d_v), which groups of heads may share, under weights (B, H, m, n)."""
    if values.shape[1] < weights.shape[1]:
        values = values.repeat_interleave(weights.shape[1] // values.shape[1], 1)
    return weights.to(values.dtype) @ values


def has_kernel(problem: Problem, preference: AbstractPreference | None, inputs: AttentionInputs) -> bool:
    """Whether torch's fused kernel supports this preference and these templates, on a GPU only, where it is faster."""
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
    """The linear map that projects the keys of a call.

    Attributes:
        inputs: Its inputs, (B, n, width).
        weight: One map for each head, (H, d, width).
        bias: (H, d), or None.
    """

    inputs: Tensor
    weight: Tensor
    bias: Tensor | None


class LayerCall(NamedTuple):
    """The problem of a layer's heads in one call.

    Attributes:
        problem: Evidence, templates, values, α and scale.
        log_preference: log u, or bool with True = attend, broadcastable to (B, H, m, n); None is uniform.
        projection: In a capture, the linear map from the input to the templates; None if there is none.
        key_padding: In a capture, True where a key is padding, bool (B, n without added templates), or None.
        is_self_attention: In a capture, whether queries and keys come from the same sequence.
        added: Number of templates that follow those of the keys.
    """

    problem: Problem
    log_preference: Tensor | None
    projection: KeyProjection | None = None
    key_padding: Tensor | None = None
    is_self_attention: bool = False
    added: int = 0


@dataclass
class OtherInference:
    """A temporary inference of a layer; see :func:`fenchel.nn.use_estimator`.

    Attributes:
        name: Qualified name of the layer.
        estimator: The estimator; its options default to the layer's, and None is the layer's estimator.
        alpha: α; None is the layer's.
        heads: Numbers of the heads, from 1; None is all.
        called: Whether the layer has been called.
        times: Factor of the layer's α where ``alpha`` is None.
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

    def reliability(self, alpha: float | Tensor) -> float | Tensor:
        """α for a layer with the given one."""
        if self.alpha is not None:
            return self.alpha
        return alpha if self.times == 1.0 else alpha * self.times


def number_of_heads(name: str) -> Any:
    """A property: a positive number; or a tensor (num_heads,) with gradient, if it is learned for every head.

    A learned number is the exponential of the parameter ``log_NAME``. Either can be assigned a number.
    """

    def read(layer: Any) -> float | Tensor:
        logarithms = getattr(layer, f"log_{name}")
        return getattr(layer, f"_{name}") if logarithms is None else logarithms.exp()

    def assign(layer: Any, number: float) -> None:
        check_positive(type(layer).__name__, **{name: number})
        setattr(layer, f"_{name}", float(number))
        logarithms = getattr(layer, f"log_{name}")
        if logarithms is not None:
            logarithms.data.fill_(math.log(number))

    return property(read, assign)


def keep_number(layer: Any, name: str, number: float, *, learned: bool) -> None:
    """Set a number that is a :func:`number_of_heads`, and register its parameter if it is learned."""
    logarithms = layer.out_proj.weight.new_empty(layer.num_heads)
    layer.register_parameter(f"log_{name}", nn.Parameter(logarithms) if learned else None)
    setattr(layer, name, number)


def shown_number(layer: Any, name: str, form: str = "") -> str:
    """A :func:`number_of_heads` as text for the representation of a layer."""
    return "learned" if getattr(layer, f"log_{name}") is not None else format(getattr(layer, name), form)


class AttendingLayer:
    """Base class of layers that can be captured and switched. It precedes ``torch.nn.Module`` among their bases.

    A layer has an ``estimator`` and ``num_heads``, and computes its output by :meth:`infer`.
    """

    # Whether heads cannot be captured or switched one by one.
    heads_infer_together: ClassVar[bool] = False
    num_heads: int
    _tol: float | None = None
    _max_steps: int = DEFAULT_STEPS
    _estimator: str = "first_order"
    # Whether calls record the source of their templates; only inside a capture.
    captured: bool = False
    # A temporary inference, only inside ``use_estimator``.
    other: OtherInference | None = None

    @property
    def estimator(self) -> str:
        """Name of the estimator. Assign a name, or an object, which also sets ``tol`` and ``max_steps``."""
        return self._estimator

    @estimator.setter
    def estimator(self, estimator: EstimatorName | Estimator) -> None:
        if isinstance(estimator, Estimator):
            self._infer_by(estimator)
        else:
            self._infer_by(estimator, self.tol, self.max_steps)

    @property
    def tol(self) -> float | None:
        """Tolerance of the exact estimator; None is the default of ops."""
        return self._tol

    @tol.setter
    def tol(self, tol: float | None) -> None:
        self._tol = None if tol is None else checked_argument("tol", tol)

    @property
    def max_steps(self) -> int:
        """Maximum number of steps of the exact estimator."""
        return self._max_steps

    @max_steps.setter
    def max_steps(self, max_steps: int) -> None:
        self._max_steps = checked_argument("max_steps", max_steps)

    def _infer_by(
        self, estimator: EstimatorName | Estimator, tol: float | None = None, max_steps: int = DEFAULT_STEPS
    ) -> None:
        checked_argument("max_steps", max_steps)
        solver = estimator_object(estimator, tol, max_steps)
        options = solver.options if isinstance(estimator, Estimator) else {"tol": tol, "max_steps": max_steps}
        self._estimator = solver.name
        self.tol, self.max_steps = options.get("tol"), options.get("max_steps", DEFAULT_STEPS)

    @property
    def solver(self) -> Estimator:
        """The layer's estimator with its options."""
        if self._estimator == "exact":
            return Exact(tol=self.tol, max_steps=self.max_steps)
        return ESTIMATORS[self._estimator]()

    def _for_now(self, alpha: float | Tensor) -> tuple[float | Tensor, Estimator]:
        """The current α and estimator, outside or inside ``use_estimator``."""
        if self.other is None:
            return alpha, self.solver
        self.other.called = True
        return self.other.reliability(alpha), self.other.solver(self)

    @property
    def effective_estimator(self) -> str:
        """Name of the current estimator; if heads differ, that of the heads that are not first order."""
        other = self.other
        if other is None or other.estimator is None:
            return self.estimator
        name, some = other.estimator.name, len(set(other.heads or range(self.num_heads))) < self.num_heads
        return self.estimator if name == "first_order" and some else name

    def infer(
        self,
        call: LayerCall,
        *,
        dropout: float,
        need_weights: bool,
        need_certificate: bool,
        need_gap: bool = False,
    ) -> Inferred:
        """The inference of the heads, by the current estimators.

        Args:
            call: Their problem.
            dropout: Probability of dropping a weight, 0 in inference.
            need_weights: Whether to return the weights, after dropout.
            need_certificate: Whether to return the certificate of the weights before dropout.
            need_gap: Whether to return its gap with gradient.
        """

        def of_part(index: Tensor | None, switched: bool) -> Inferred:
            problem, log_u = of_heads(call.problem, call.log_preference, index)
            alpha, solver = self._for_now(problem.alpha) if switched else (problem.alpha, self.solver)
            problem = problem if alpha is problem.alpha else replace(problem, alpha=alpha)
            read = None if problem.reads_templates else problem.values
            # The returned weights and the output share one dropout mask.
            by_weights = need_weights and read is not None
            given = {"log_preference": log_u, "estimator": solver, "dropout_p": dropout}
            result = problem.infer(None if by_weights else read, **given)
            # The certificate first: it may compute the output in the same pass.
            certificate = result.certificate if need_certificate else None
            gap = result.gap if need_gap else None
            weights = result.weights if need_weights else None
            if weights is None or not by_weights:
                return Inferred(result.output, weights, certificate, gap)
            weights = dropped(weights, dropout)
            return Inferred(averaged(problem.values, weights), weights, certificate, gap)

        return by_heads(call.problem.evidence, None if self.other is None else self.other.heads, of_part)

    def _reset_parameters(self) -> None:
        base: Any = super()
        self._qkv_same_embed_dim = getattr(self, "in_proj_weight", None) is not None
        base._reset_parameters()
        # With False torch's transformer layers disable their fused path, and call forward.
        self._qkv_same_embed_dim = False

    def reset_parameters(self) -> None:
        """Reset all parameters, α, radius and γ that heads learn to their initial values."""
        self._reset_parameters()
        for name in ("alpha", "radius", "gamma"):
            if getattr(self, f"log_{name}", None) is not None:
                setattr(self, name, getattr(self, f"_{name}"))

    def __getstate__(self) -> dict[str, Any]:
        # Copies and files have no temporary state.
        return {name: value for name, value in self.__dict__.items() if name not in ("captured", "other")}


def attention_layers(model: nn.Module) -> dict[str, AttendingLayer]:
    """The attention layers of a model that can be captured and switched, by qualified name, in the model's order.

    Example:
        >>> from fenchel.nn import MultiheadAttention
        >>> block = nn.TransformerEncoderLayer(16, 4)
        >>> block.self_attn = MultiheadAttention(16, 4)
        >>> list(attention_layers(nn.TransformerEncoder(block, 2, enable_nested_tensor=False)))
        ['layers.0.self_attn', 'layers.1.self_attn']
    """
    return {name: module for name, module in model.named_modules() if isinstance(module, AttendingLayer)}


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


def lies_in(part: Tensor, whole: Tensor) -> bool:
    """Whether a tensor is the other one, or starts inside its memory, as a slice does.

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


def of_heads(
    problem: Problem, log_preference: Tensor | None, index: Tensor | None
) -> tuple[Problem, Tensor | None]:
    """The problem and log-preference of the heads with these indices (None for all), which may share tensors."""
    if index is None:
        return problem, log_preference
    heads = problem.evidence.shape[1]

    def selected(tensor: Tensor) -> Tensor:
        count = tensor.shape[1]
        if count == 1:
            return tensor
        return tensor.index_select(1, index if count >= heads else index // (heads // count))

    alpha, closeness, variant = problem.alpha, problem.closeness, problem.variant
    if isinstance(alpha, Tensor) and alpha.dim() > 1 and alpha.shape[-2] > 1:
        alpha = alpha.index_select(-2, index.to(alpha.device))
    if log_preference is not None and log_preference.dim() > 2 and log_preference.shape[-3] > 1:
        log_preference = log_preference.index_select(-3, index)
    parts = {} if variant is None else vars(variant)
    tensors = {name: selected(x) for name, x in parts.items() if isinstance(x, Tensor) and x.dim() == 4}
    chosen = replace(
        problem,
        evidence=selected(problem.evidence),
        templates=selected(problem.templates),
        values=selected(problem.values),
        alpha=alpha,
        closeness=closeness and closeness.heads(index),
        variant=variant and replace(variant, **tensors),
    )
    return chosen, log_preference


def by_heads(
    evidence: Tensor, heads: Collection[int] | None, infer: Callable[[Tensor | None, bool], Inferred]
) -> Inferred:
    """Infer some heads in one way and the others in another.

    Args:
        evidence: (B, H, m, d).
        heads: Numbers of some heads, from 1; None is all.
        infer: A function of the indices of heads (None for all) and whether they are of these; gives their inference.
    """
    every = range(evidence.shape[1])
    chosen = [head for head in every if heads is None or head + 1 in heads]
    if len(chosen) == len(every):
        return infer(None, True)
    rest = [head for head in every if head not in chosen]
    indices = [torch.tensor(part, dtype=torch.int64, device=evidence.device) for part in (chosen, rest)]
    return joined(infer(indices[0], True), infer(indices[1], False), torch.cat(indices).argsort())


def joined(one: Inferred, other: Inferred, order: Tensor) -> Inferred:
    """Two inferences concatenated along the heads, then reordered by ``order``."""

    def concatenated(first: Any, second: Any) -> Any:
        if first is None or second is None:
            return None
        if isinstance(first, AttentionCertificate):
            return AttentionCertificate(*map(concatenated, first, second))
        return torch.cat((first, second), 1).index_select(1, order)

    return Inferred(*map(concatenated, one, other))


def _input_maps(layer: Any) -> tuple[tuple[Tensor, ...], tuple[Tensor | None, ...]]:
    """Weights and biases of the maps of query, key and value of a ``torch.nn.MultiheadAttention``."""
    weights = (
        (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight)
        if layer.in_proj_weight is None
        else layer.in_proj_weight.chunk(3)
    )
    return weights, (None,) * 3 if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)


def projected(layer: Any, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value, each through its map of a ``torch.nn.MultiheadAttention``.

    In one product if they are the same tensor.
    """
    if layer.in_proj_weight is not None and query is key and key is value:
        return nn.functional.linear(query, layer.in_proj_weight, layer.in_proj_bias).chunk(3, -1)  # pyright: ignore[reportReturnType]
    return tuple(map(nn.functional.linear, (query, key, value), *_input_maps(layer)))  # pyright: ignore[reportReturnType]


def seen(layer: nn.MultiheadAttention, call: LayerCall, keys: Tensor, inputs: AttentionInputs) -> LayerCall:
    """A call with the attributes that a capture needs.

    Args:
        layer: The layer.
        call: The problem of its heads.
        keys: The projected keys, (B, H, n, d).
        inputs: The inputs of the layer.
    """
    query, key = inputs.query_inputs, inputs.key_inputs
    if query is None or key is None:
        return call
    (_, weight, _), (_, bias, _) = _input_maps(layer)
    heads = (layer.num_heads, layer.head_dim)
    projection = KeyProjection(key, weight.unflatten(0, heads), None if bias is None else bias.view(heads))
    return call._replace(
        projection=projection if call.problem.templates is keys else None,
        key_padding=inputs.key_padding,
        is_self_attention=bool(inputs.query_offset) or lies_in(query, key),
    )
