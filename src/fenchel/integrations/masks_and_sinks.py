"""Masks, biases and sinks of models of transformers as log-preferences, checked against their own eager attention."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from fenchel.errors import CaptureError, ModelError
from fenchel.functional.arguments import compute_dtype
from fenchel.integrations.registry import eager_attention
from fenchel.integrations.sites import preference_numbers
from fenchel.nn.inference import Problem
from fenchel.tensors import MASK, check_tensor, may_attend

_ROWS = 256  # block size of checks of masks

# An additive mask at or below this stands for u_i = 0.
#
# Families write "masked" as ``finfo.min`` of some dtype, as -1e9 or as -1e4: finite numbers, all of which exp() takes
# to 0. Left finite, a row that is masked everywhere would become uniform over what it must not see. Swin's -100 is a
# weight.
HARD_MASK = -1e4


# Names under which families pass the logits of their attention sinks.
SINKS = ("s_aux", "sinks")

# Keyword arguments that leave softmax(scaling·⟨q, k⟩ + log u) as it is.
_HARMLESS = frozenset(
    {
        # position information that has already acted on queries and keys
        "position_ids",
        "cache_position",
        # what the mask already contains
        "sliding_window",
        "encoder_attention_mask",
        "cu_seq_lens_q",
        "cu_seq_lens_k",
        "max_length_q",
        "max_length_k",
        "seq_idx",
        # where keys and values came from
        "encoder_hidden_states",
        "past_key_values",
        "use_cache",
        # what is returned, and how
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "return_dict",
        "deterministic",
        # of the loss
        "ignore_index",
        "num_items_in_batch",
        "shift_labels",
    }
)

_KNOWN = _HARMLESS | {"softcap", "indices", *SINKS}


@dataclass(frozen=True, eq=False)
class FamilyCall:
    """A call of an attention function, as a model of transformers makes it.

    Attributes:
        site: Qualified name of the attention module, for messages.
        module: The attention module.
        problem: Its queries, keys, values and scaling, before a soft cap and sinks.
        mask: Bool (True = attend) or additive, broadcastable to (B, H, m, n); None if the family made none. Additive
            values at or below ``HARD_MASK`` mean u_i = 0.
        position_bias: Additive, broadcastable likewise, or None. Gradients flow to it.
        is_causal: The family's causal flag, only used without a mask; None if there is none.
        arguments: The other keyword arguments.
    """

    site: str
    module: nn.Module
    problem: Problem
    mask: Tensor | None
    position_bias: Tensor | None
    is_causal: bool | None
    arguments: Mapping[str, Any]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape (B, H, m, n) of its scores."""
        batch, heads, queries, _ = self.problem.evidence.shape
        return batch, heads, queries, self.problem.templates.shape[2]

    @property
    def name(self) -> str:
        """Site and class of its module, for messages."""
        return f"{self.site} ({type(self.module).__name__})"


def refuse_unsupported(call: FamilyCall) -> None:
    """Raise if a call has a keyword argument that may change the attention scores unseen.

    Raises:
        ModelError: Naming site, class and argument. An argument that is None or False is absent.
    """
    for name, value in call.arguments.items():
        if name in _KNOWN or value is None or value is False:
            continue
        raise ModelError(
            f"{call.name} passes {name!r} to its attention, an argument with an unknown effect on the scores, "
            "so its attention cannot be replaced faithfully. Call the model without it, give a configuration that "
            "switches it off, or report the family"
        )


def _reduced(tensor: Tensor, *, by_value: bool) -> Tensor:
    """``tensor`` (4-D) with size 1 along batch, head or query where it was expanded, or is constant by its values."""
    for dim in range(3):
        if tensor.shape[dim] == 1:
            continue
        first = tensor.narrow(dim, 0, 1)
        # By blocks, without another n by n array. A tensor that requires a gradient is not reduced by its values, or
        # gradients would reach one row of several that are equal by chance.
        if tensor.stride(dim) == 0 or (
            by_value
            and not tensor.requires_grad
            and all(bool((rows == first).all()) for rows in tensor.split(_ROWS, dim))
        ):
            tensor = first
    return tensor


@dataclass(frozen=True)
class LogPreference:
    """The log-preference of a call, also as the mask of a fused kernel.

    Attributes:
        mask_or_bias: Log weights broadcastable to (B, H, m, n), size 1 wherever constant, -inf where masked; a bool
            mask, True where a query may attend, if there is no bias; None is uniform.
        kernel_mask: The same for ``scaled_dot_product_attention`` (bool or the query's dtype) with empty rows
            opened up, since kernels disagree about those; None is uniform.
        empty_rows: Bool, broadcastable to (B, H, m, 1): rows with nothing to attend to; None if there are none.
        family_is_causal: The family's causal flag; None if there is none.
        only_causal: Whether it is the causal mask, without padding or bias, for which kernels need no tensor.
    """

    mask_or_bias: Tensor | None = None
    kernel_mask: Tensor | None = None
    empty_rows: Tensor | None = None
    family_is_causal: bool | None = None
    only_causal: bool = False

    @classmethod
    def of(cls, weights: Tensor | None, dtype: torch.dtype, family_is_causal: bool | None) -> LogPreference:
        """A log-preference without constant dimensions.

        Args:
            weights: From :func:`call_preference`.
            dtype: Of the queries.
            family_is_causal: The family's causal flag.
        """
        if weights is not None and weights.dtype != torch.bool:
            weights = _reduced(weights, by_value=True)  # a sum may be constant where its parts were not
        if weights is None or _is_uniform(weights):
            return cls(family_is_causal=family_is_causal)
        kernel_mask = weights if weights.dtype == torch.bool else weights.to(dtype)
        empty = ~may_attend(weights).any(-1, keepdim=True)
        if not bool(empty.any()):
            return cls(weights, kernel_mask, None, family_is_causal, _is_triangle(kernel_mask))
        opened = kernel_mask | empty if kernel_mask.dtype == torch.bool else kernel_mask.masked_fill(empty, 0)
        return cls(weights, opened, empty, family_is_causal)

    def is_causal(self, queries: int, keys: int) -> bool:
        """Whether no query sees a later key (needs at least two of each to be seen)."""
        weights = self.mask_or_bias
        if weights is None or queries != keys or queries < 2 or weights.shape[2] == 1:
            return False
        places = torch.arange(keys, device=weights.device)
        return not any(
            bool((may_attend(rows) & (places > own.unsqueeze(-1))).any())
            for rows, own in zip(weights.split(_ROWS, 2), places.split(_ROWS), strict=True)
        )

    def is_shared_by_queries(self) -> bool:
        """Whether all queries of a sequence have the same preference."""
        return self.mask_or_bias is None or self.mask_or_bias.shape[2] == 1


def hardened(additive: Tensor) -> Tensor:
    """Additive log weights with -inf where they stand for a mask, at or below :data:`HARD_MASK`."""
    return torch.where(additive <= HARD_MASK, -torch.inf, additive)


def _is_uniform(weights: Tensor) -> bool:
    """Whether all templates are equally likely for every query; never for weights that require a gradient."""
    if weights.dtype == torch.bool:
        return bool(weights.all())
    return not weights.requires_grad and bool((weights == weights[..., :1]).all() & weights.isfinite().all())


def _is_triangle(mask: Tensor) -> bool:
    """Whether a bool mask (1, 1, n, n) is exactly the causal one."""
    keys = mask.shape[-1]
    is_square = mask.dtype == torch.bool and mask.shape == (1, 1, keys, keys)
    return (
        is_square and LogPreference(mask).is_causal(keys, keys) and int(mask.sum()) == keys * (keys + 1) // 2
    )


def _identity(tensor: Tensor | None) -> Hashable:
    if tensor is None:
        return None
    version = None if tensor.is_inference() else tensor._version
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device, version


@dataclass
class LogPreferences:
    """The log-preferences of one forward pass, each computed once for all layers that share its tensors.

    The tensors are held until the pass ends, so that their addresses stay unique.
    """

    _known: dict[Hashable, tuple[LogPreference, Any]] = field(default_factory=dict)

    def __call__(self, call: FamilyCall) -> LogPreference:
        """The log-preference of one call."""
        query, held = call.problem.evidence, (call.mask, call.position_bias)
        identity = (*map(_identity, held), call.is_causal, call.shape, query.dtype, query.device)
        if identity not in self._known:
            mask, bias = (_widened(tensor, query.dtype) for tensor in held)
            result = call_preference(replace(call, mask=mask, position_bias=bias), by_value=True)
            self._known[identity] = LogPreference.of(result, query.dtype, call.is_causal), held
        return self._known[identity][0]

    def clear(self) -> None:
        """Forget them, after a pass."""
        self._known.clear()


def _widened(tensor: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """A bias or an additive mask in the dtype of log weights for queries of ``dtype``."""
    if tensor is None or not tensor.is_floating_point():
        return tensor
    return tensor.to(compute_dtype(dtype))


def call_preference(call: FamilyCall, *, by_value: bool = False) -> Tensor | None:
    """Mask and position bias of one call as log u.

    Args:
        call: The call.
        by_value: Whether dimensions are reduced where values are constant, not only where they were expanded.

    Returns:
        Broadcastable to (B, H, m, n): bool where only a mask was given, floating with -inf where masked otherwise;
        size 1 along reduced dimensions. None is uniform.

    Raises:
        CaptureError: If a tensor does not fit, or it is unknown whether the call is causal.

    Example:
        >>> query, mask = torch.ones(1, 2, 3, 4), torch.tensor([0.0, 0.5, -3e38]).expand(1, 1, 3, 3)
        >>> problem = Problem(query, query, query, 1.0, 0.5)
        >>> call_preference(FamilyCall("attn", nn.Module(), problem, mask, None, False, {}))
        tensor([[[[0.0000, 0.5000,   -inf]]]])
    """
    shape, mask, bias = call.shape, call.mask, call.position_bias
    for name, tensor in {"attention_mask": mask, "position_bias": bias}.items():
        if tensor is not None:
            form = "(batch, heads, queries, keys), or 1 for any of them"
            kind: dict[str, Any] = {"dtypes": MASK, "dims": 4, "broadcast": shape, "error": CaptureError}
            check_tensor(f"{name} ({call.site})", tensor, form, **kind)
    if mask is None and shape[2] > 1:  # a single query sees all keys
        if call.is_causal is None:
            raise CaptureError(
                f"{call.site} passes neither a mask nor is_causal, so whether a query may see later keys is not "
                "known. Give the model an attention_mask"
            )
        if call.is_causal:
            mask = torch.ones(1, 1, *shape[2:], dtype=torch.bool, device=call.problem.evidence.device).tril()
    mask, bias = (None if tensor is None else _reduced(tensor, by_value=by_value) for tensor in (mask, bias))
    if bias is None:
        return mask if mask is None or mask.dtype == torch.bool else hardened(mask)
    if mask is None:
        return hardened(bias)
    if mask.dtype == torch.bool:
        return torch.where(mask, hardened(bias), -torch.inf)
    return hardened(bias + mask)


def among_indices(attention_mask: Tensor | None, indices: Tensor | None, keys: int) -> Tensor | None:
    """A mask, and only the keys whose positions (B, m, k) a family selected for each query; None selects nothing."""
    if indices is None:
        return attention_mask
    chosen = indices.new_zeros((*indices.shape[:2], keys), dtype=torch.bool)
    chosen = chosen.scatter(-1, indices.long(), value=True).unsqueeze(1)
    if attention_mask is None or attention_mask.dtype == torch.bool:
        return chosen if attention_mask is None else chosen & attention_mask
    return attention_mask.masked_fill(~chosen, -torch.inf)


def sink_logits(call: FamilyCall) -> Tensor | None:
    """The logit of the attention sink of every head, (1 or B, H, 1 or m, 1); None where there is no sink.

    The keyword argument of the call holds a logit a head, (H,), or one a query, (B, H, m, 1).

    Raises:
        CaptureError: If the logits have another shape.
    """
    heads, by_query = call.shape[1], (*call.shape[:3], 1)
    for name in SINKS:
        logits = call.arguments.get(name)
        if logits is None:
            continue
        given = tuple(logits.shape) if isinstance(logits, Tensor) else None
        if given not in ((heads,), by_query):
            raise CaptureError(
                f"{call.site} passes {name} of shape {given}; expected one logit per head, ({heads},), or per query, "
                f"{by_query}"
            )
        return logits.reshape(1, -1, 1, 1) if logits.ndim == 1 else logits
    return None


def with_sink(problem: Problem, preference: Tensor | None, sink: Tensor) -> tuple[Problem, Tensor]:
    """An attention sink as one more template: its template and value are 0, and its log-preference is its logit.

    Args:
        problem: Of n templates.
        preference: As :func:`call_preference` gives it.
        sink: From :func:`sink_logits`.

    Returns:
        The problem of n + 1 templates, of which the sink is the last, and their log-preference.

    Example:
        >>> one = torch.ones(1, 1, 1, 1)
        >>> problem, u = with_sink(Problem(one, one, one, 1.0, 1.0), None, torch.tensor([[[[0.5]]]]))
        >>> problem.templates.flatten().tolist(), problem.values.flatten().tolist(), u.flatten().tolist()
        ([1.0, 0.0], [1.0, 0.0], [0.0, 0.5])
    """
    weights = preference_numbers(preference, problem.evidence, problem.templates.shape[2])
    sink = sink.to(weights.dtype)
    rows = torch.broadcast_shapes(weights.shape[:3], sink.shape[:3])
    joined = torch.cat((weights.expand(*rows, -1), sink.expand(*rows, 1)), -1)
    templates, values = (
        nn.functional.pad(part, (0, 0, 0, 1)) for part in (problem.templates, problem.values)
    )
    return replace(problem, templates=templates, values=values), joined


def with_softcap(problem: Problem, preference: Tensor | None, softcap: float) -> Tensor:
    """The log-preference (B, H, m, n) under which scores s are those of cap·tanh(s/cap). It depends on the query.

    Args:
        problem: The problem.
        preference: As :func:`call_preference` gives it.
        softcap: The cap.
    """
    query, key = problem.evidence, problem.templates
    weights = preference_numbers(preference, query, key.shape[2])
    keys = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query.to(weights.dtype) @ keys.to(weights.dtype).mT) * problem.scale
    return weights + softcap * (scores / softcap).tanh() - scores


def softmax_attention(problem: Problem, preference: LogPreference) -> Tensor:
    """The softmax attention of the model itself, (B, m, H, d_v), contiguous.

    Args:
        problem: Queries, and keys and values, whose number of heads divides that of the queries.
        preference: Added to the scores. A row that may attend to nothing is zero, as in fused kernels.
    """
    query, key, value = problem.evidence, problem.templates, problem.values
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    causal, scale = preference.only_causal, float(problem.scale)
    mask = None if causal else preference.kernel_mask
    output = scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, scale=scale)
    if preference.empty_rows is not None:
        output = output.masked_fill(preference.empty_rows, 0)
    return output.transpose(1, 2).contiguous()


_QUERIES = 16

# Allowed difference of two sums in units of the smallest number of a dtype.
_SMALLEST_STEPS = 4


def _one_sequence(tensor: Tensor | None, batch: int, queries: Tensor) -> Tensor | None:
    """Row ``batch`` and the given queries of a tensor that broadcasts to (B, H, m, n)."""
    if tensor is None:
        return None
    tensor = tensor[batch : batch + 1] if tensor.shape[0] > 1 else tensor
    return tensor[:, :, queries] if tensor.shape[2] > 1 else tensor


def _tolerance(query: Tensor, largest: float) -> float:
    """Allowed difference of outputs with values of up to ``largest``. Many families compute softmax in float32.

    Values near the smallest numbers of a half type may differ by some steps between these, too.
    """
    if query.dtype == torch.float32 and query.is_cuda and torch.backends.cuda.matmul.allow_tf32:
        return 2.0**-5 * largest
    dtypes = {query.dtype, torch.float32}
    if torch.is_autocast_enabled(query.device.type):
        dtypes.add(torch.get_autocast_dtype(query.device.type))
    kinds = [torch.finfo(dtype) for dtype in dtypes]
    smallest = max(kind.smallest_normal * kind.eps for kind in kinds)
    return max(max(kind.eps for kind in kinds) ** 0.5 * largest, _SMALLEST_STEPS * smallest)


def check_against_eager(call: FamilyCall, output: Tensor, preference: LogPreference) -> None:
    """Compare an output with the eager attention of the module's own family, on a few queries.

    Args:
        call: The call; its mask is passed to the family's attention.
        output: The computed output, (B, m, H, d_v).
        preference: Queries that see nothing are not compared.

    Raises:
        ModelError: If they differ by more than rounding explains.
    """
    module, problem = call.module, call.problem
    eager, query, value = eager_attention(module), problem.evidence, problem.values
    live = torch.ones(output.shape[:2], dtype=torch.bool, device=query.device)
    if preference.empty_rows is not None:
        live &= ~preference.empty_rows.any(1).squeeze(-1)
    batch = int(live.sum(-1).argmax())
    queries = live[batch].nonzero().flatten()
    if eager is None or not len(queries):
        return
    chosen = torch.linspace(0, len(queries) - 1, min(_QUERIES, len(queries)), device=query.device)
    queries = queries[chosen.long()]

    mask = _one_sequence(call.mask, batch, queries)
    if mask is not None and mask.dtype == torch.bool:
        blank = torch.zeros((), dtype=query.dtype, device=query.device)
        mask = torch.where(mask, blank, torch.finfo(query.dtype).min)
    given = {"position_bias": call.position_bias, **{name: call.arguments.get(name) for name in SINKS}}
    parts = {
        name: _one_sequence(tensor, batch, queries)
        for name, tensor in given.items()
        if tensor is not None and tensor.ndim == 4
    }
    one = slice(batch, batch + 1)
    expected, _ = eager(
        module,
        query[one, :, queries],
        problem.templates[one],
        value[one],
        mask,
        scaling=float(problem.scale),
        dropout=0.0,
        **{**call.arguments, **parts},
    )
    result = output[batch, queries]
    if not bool(result.isfinite().all() and expected.isfinite().all()):
        raise ModelError(
            f"{call.name}: outputs of the model's own attention contain NaN or infinity on this batch. Check its "
            "weights, and its dtype: float16 overflows where bfloat16 and float32 do not"
        )
    difference = float((expected[0] - result).abs().max())
    allowed = _tolerance(query, float(value[batch].abs().max()))
    if difference <= allowed:
        return
    if mask is None and preference.mask_or_bias is not None and call.position_bias is None:
        raise CaptureError(
            f"{call.name} is causal and passes no mask: eager attention of its family then sees every key, "
            "other implementations only earlier ones, so its mask is ambiguous. Give the model an attention_mask"
        )
    raise ModelError(
        f"{call.name}: attention of the form softmax(scaling·⟨q, k⟩ + log u)·v differs by {difference:.1e} (expected "
        f"at most {allowed:.1e}) from eager_attention_forward of its family, which changes the scores in an unknown "
        "way, so its attention cannot be replaced. Use a model of another family, or report this one"
    )
