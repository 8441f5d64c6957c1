"""Arguments of all attention ops, checked once and converted to one form; dtypes, softmax and dropout of ops."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fenchel.closeness import KL, AbstractCloseness, OptimalTransport
from fenchel.closeness.tsallis import closeness_of
from fenchel.errors import ProblemError
from fenchel.estimators import check_curved
from fenchel.problem import tensors_of
from fenchel.tensors import (
    HALF,
    MASK,
    check_device,
    check_entries,
    check_flags,
    check_not_mapped,
    check_tensor,
    checked_argument,
    is_transformed,
    is_under_autocast,
    log_weights,
    positive_tensor,
    values_are_known,
    values_can_be_read,
    without_causal_bias,
)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 for float64, float32 for float32 and the half types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def dropped(weights: Tensor, dropout_p: float) -> Tensor:
    """Weights after dropout."""
    # In a graph the comparison may be symbolic, which torch does not accept as ``train``.
    return torch.dropout(weights, dropout_p, train=True) if dropout_p > 0 else weights


def softmax_under(logits: Tensor, preference: Tensor | None) -> Tensor:
    """Weights of logits (..., m, n), which are overwritten, under a preference that broadcasts to them."""
    if preference is not None and preference.dtype == torch.bool:
        preference = log_weights(preference, logits.dtype)
    if torch.compiler.is_compiling() or is_transformed():
        return (logits if preference is None else logits + preference).softmax(-1)
    # In place: at 2,048 tokens page faults of new arrays take a quarter of the time.
    if preference is not None:
        logits = logits.add_(preference) if preference.dtype == logits.dtype else logits + preference
    return logits.softmax(-1) if torch.is_grad_enabled() else torch.softmax(logits, -1, out=logits)


def mask_dtype(mask: Tensor, dtype: torch.dtype) -> torch.dtype:
    """The dtype that torch's kernels require of a floating-point mask with queries of ``dtype``.

    On the CPU they add float32 to scores of half types, which keeps the digits of the mask; elsewhere the dtypes must
    match.
    """
    on_cpu = mask.device.type == "cpu"
    return torch.float32 if dtype in HALF and on_cpu and mask.dtype != dtype else dtype


def under_autocast(tensor: Tensor) -> Tensor:
    """The tensor as autocast casts it for torch's own attention."""
    if tensor.dtype == torch.float64 or not is_under_autocast(tensor):
        return tensor
    return tensor.to(torch.get_autocast_dtype(tensor.device.type))


def without_autocast(tensor: Tensor) -> AbstractContextManager[Any]:
    """A context without autocast, in which float32 stays float32."""
    return torch.autocast(tensor.device.type, enabled=False) if is_under_autocast(tensor) else nullcontext()


# Largest relative error of rounding a factor to the precision of fast float32 products.
_UNITS = {"tf32": 2.0**-11, "bf16": 2.0**-8}

# The same for the arguments of ``torch.set_float32_matmul_precision``.
_UNITS_BY_NAME = {"highest": 0.0, "high": _UNITS["tf32"], "medium": _UNITS["bf16"]}


def unit_of_products(dtype: torch.dtype, device: str) -> float:
    """Largest relative error of a factor in matrix products, under torch's current settings.

    Args:
        dtype: Of the factors.
        device: Its type.
    """
    unit = torch.finfo(dtype).eps / 2
    if dtype != torch.float32:
        return unit
    backends: Any = torch.backends
    if not hasattr(backends, "fp32_precision"):  # before torch 2.9
        return max(unit, _UNITS_BY_NAME[torch.get_float32_matmul_precision()])
    backend = backends.mkldnn.matmul if device == "cpu" else backends.cuda.matmul
    return max(unit, *(_UNITS.get(each.fp32_precision, 0.0) for each in (backend, backends)))


# The same as torch.compiler.assume_constant_result, which would load the compiler.
unit_of_products._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


# Distance from 0 up to which the largest log weight of a row costs no digits of the scores it is added to.
#
# Kernels add in float32, in which scores of half types have spare digits; the smallest value is for log weights first
# rounded from another dtype to a half type.
HARMLESS_LEVEL, HARMLESS_LEVEL_OF_HALF, HARMLESS_LEVEL_IN_HALF = 16.0, 256.0, 1.0


@dataclass(frozen=True, eq=False)
class AttentionArguments:
    """Checked arguments of a call.

    Attributes:
        query: Evidence z, (B, H, m, d).
        key: (B, H_kv, n, d); templates are scale·key.
        value: (B, H_kv, n, d_v).
        log_preference: log u up to a constant per row, bool or floating, (B or 1, H or 1, m or 1, n), with at least one
            key to attend to in every row; None is uniform.
        empty_rows: Bool, (B or 1, H or 1, m or 1, 1): rows with nothing to attend to; None if there are known to be
            none.
        alpha: α, a number, or a tensor (B or 1, H or 1, m or 1, 1).
        scale: A number; a scale given as a tensor has been multiplied into the key.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    log_preference: Tensor | None
    empty_rows: Tensor | None
    alpha: float | Tensor
    scale: float

    @property
    def log_preference_is_shared(self) -> bool:
        """Whether all queries of a head have the same preference."""
        return self.log_preference is None or self.log_preference.shape[2] == 1

    @property
    def problem_is_shared(self) -> bool:
        """Whether all queries of a head have the same preference and α."""
        alpha_is_shared = not isinstance(self.alpha, Tensor) or self.alpha.shape[2] == 1
        return self.log_preference_is_shared and alpha_is_shared

    def check_not_mapped(self, what: str, *others: Tensor) -> None:
        """Raise under ``torch.vmap`` over the problem of ``what``: its tensors, and others, have no known values."""
        alpha = self.alpha if isinstance(self.alpha, Tensor) else None
        check_not_mapped(what, self.query, self.key, self.log_preference, alpha, *others)

    @property
    def has_no_evidence(self) -> bool:
        """Whether the number of sequences, heads, queries, keys or dimensions is 0."""
        return self.query.numel() == 0 or self.key.shape[2] == 0

    def to(self, dtype: torch.dtype) -> AttentionArguments:
        """The arguments in a dtype, except the preference."""
        alpha = self.alpha.to(dtype) if isinstance(self.alpha, Tensor) else self.alpha
        query, key, value = (x.to(dtype) for x in (self.query, self.key, self.value))
        return replace(self, query=query, key=key, value=value, alpha=alpha)

    def problem_in(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
        """Evidence, templates, log-preference and α as tensors, in a dtype except for the preference."""
        query, alpha = self.query.to(dtype), self.alpha
        if not isinstance(alpha, Tensor):
            alpha = query.new_full((1, 1, 1, 1), alpha)
        return query, self.key.to(dtype) * self.scale, self.log_preference, alpha.to(dtype)

    def of_query_heads(self, tensor: Tensor) -> Tensor:
        """Heads of the keys, (B, H_kv, n, ...), repeated for every head of the query."""
        sharing = self.query.shape[1] // max(1, tensor.shape[1])
        return tensor if sharing == 1 else tensor.repeat_interleave(sharing, 1)

    def without_empty_rows(self, result: Tensor) -> Tensor:
        """The result (B, H, m, ...) with zeros, and zero gradients, in rows that have nothing to attend to."""
        if self.empty_rows is None:
            return result
        return result.masked_fill(self.empty_rows if result.dim() == 4 else self.empty_rows.squeeze(-1), 0)


def checked(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    alpha: float | Tensor = 1.0,
    scale: float | Tensor | None = None,
    log_preference: Tensor | None = None,
    dropout_p: float = 0.0,
    enable_gqa: bool = False,
    exact: bool = False,
    names: tuple[str, str, str] = ("query", "key", "value"),
    needs_keys: bool = False,
) -> AttentionArguments:
    """Check the arguments of an attention call.

    The last three are internal: whether the estimator is exact, the names of the tensors in messages, and whether a
    call without keys raises.

    Values of α and of preferences are checked on the CPU, except under ``torch.compile``; those of query and key only
    for the exact estimator, on every device. While torch's anomaly detection is on, those of every argument are
    checked, on every device.

    Raises:
        ProblemError: If an argument is invalid; the message has its value and the expected one.
    """
    checked_argument("dropout", dropout_p, name="dropout_p")
    check_flags(enable_gqa=enable_gqa)
    _check_tensors(names, (query, key, value), enable_gqa, needs_keys)
    lead = tuple(query.shape[:3])
    factor, key = _scale(scale, query, key)
    cast_query = under_autocast(query)
    opened, empty = _open(_preference(log_preference, query, key), cast_query.dtype)
    arguments = AttentionArguments(
        query=cast_query,
        key=under_autocast(key),
        value=under_autocast(value),
        log_preference=opened,
        empty_rows=empty,
        alpha=_alpha(alpha, lead, query),
        scale=factor,
    )
    check_finite(always=exact, query=query, key=key)
    check_finite(value=value)
    return arguments


def _check_tensors(
    names: tuple[str, str, str], tensors: tuple[Tensor, Tensor, Tensor], enable_gqa: bool, needs_keys: bool
) -> None:
    (of_query, of_key, of_value), (query, key, value) = names, tensors
    for name, tensor in zip(names, tensors, strict=True):
        check_tensor(name, tensor, "(batch, heads, tokens, dim)", dims=4, like=query)
    heads, key_heads = query.shape[1], key.shape[1]
    # Messages are formatted only on errors, since sizes may be symbolic while a graph is traced.
    if not query.shape[0] == key.shape[0] == value.shape[0]:
        wrong = f"{of_query}, {of_key} and {of_value} differ in batch size, the first dimension"
    elif key.shape[1:3] != value.shape[1:3]:
        wrong = f"{of_key} and {of_value} differ in heads or tokens"
    elif query.shape[3] != key.shape[3]:
        wrong = f"{of_query} and {of_key} differ in their last dimension"
    elif heads != key_heads and (key_heads == 0 or heads % key_heads):
        wrong = f"{of_query} has {heads} heads, not a multiple of the {key_heads} heads of {of_key}"
    elif heads != key_heads and not enable_gqa:
        wrong = (
            f"{of_query} has {heads} heads and {of_key} has {key_heads}; pass enable_gqa=True to share each head of "
            f"the key among {heads // key_heads} heads of the query"
        )
    elif needs_keys and key.shape[2] == 0:
        wrong = f"there is nothing to attend to (no tokens in {of_key})"
    else:
        return
    raise ProblemError(f"{wrong}: {shapes_of(dict(zip(names, tensors, strict=True)))}")


def check_finite(*, always: bool = False, **tensors: Tensor | None) -> None:
    """Raise on NaN and infinity while torch's anomaly detection is on.

    Args:
        always: Whether to raise in any case, for estimators that read values on every device.
        **tensors: By argument name.

    Raises:
        ProblemError: If so; the message names the first such tensor.
    """
    if not always and (torch.compiler.is_compiling() or not torch.is_anomaly_enabled()):
        return
    for name, tensor in tensors.items():
        if tensor is not None and values_can_be_read(tensor) and not bool(torch.isfinite(tensor).all()):
            raise ProblemError(
                f"{name} contains NaN or infinity; every entry must be finite, including masked ones"
            )


def refuse_overflow(output: Tensor, arguments: tuple[Tensor, ...], what: str, remedy: str) -> None:
    """Raise if the output of finite arguments is not finite; NaN in the arguments propagates.

    Args:
        output: The computed tensor.
        arguments: The tensors it was computed from.
        what: Subject of the message.
        remedy: Advice besides float64, after "make".

    Raises:
        ProblemError: If so, with a message composed of ``what`` and ``remedy``.
    """
    if not values_are_known(output) or bool(torch.isfinite(output).all()):
        return
    if all(bool(torch.isfinite(x).all()) for x in arguments):
        name = str(output.dtype).removeprefix("torch.")
        raise ProblemError(
            f"{what} that {name} cannot represent: give the tensors in float64, or make {remedy}"
        )


def shapes_of(tensors: dict[str, Tensor]) -> str:
    """Names and shapes, for messages."""
    return ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())


def checked_scale(scale: Any, like: Tensor) -> float | Tensor:
    """A number, or a tensor without dimensions on the device of another tensor.

    Raises:
        ProblemError: If it is neither.
    """
    if not isinstance(scale, Tensor):
        return checked_argument("scale", scale)
    check_tensor("scale", scale, "of one element, or a number")
    if scale.numel() != 1:
        raise ProblemError(f"scale has shape {tuple(scale.shape)}; expected a number or one tensor element")
    if scale.is_meta:
        check_device("scale", scale, like.device)
    return scale.to(like.device).reshape(())


def _scale(scale: float | Tensor | None, query: Tensor, key: Tensor) -> tuple[float, Tensor]:
    if scale is None:
        # With a dimension of 0 every score is 0, for any scale.
        return max(query.shape[-1], 1) ** -0.5, key
    scale = checked_scale(scale, query)
    if isinstance(scale, Tensor):
        # The gradient of the scale is a sum over all keys, which would lose most of its digits in half precision.
        wide = compute_dtype(key.dtype)
        return 1.0, (key.to(wide) * scale.to(wide)).to(key.dtype)
    return scale, key


def _alpha(alpha: float | Tensor, lead: tuple[int, ...], query: Tensor) -> float | Tensor:
    if not isinstance(alpha, Tensor):
        return checked_argument("alpha", alpha)
    return positive_column("alpha", alpha, "(batch, heads, queries)", lead, query)


def positive_column(name: str, value: Tensor, form: str, lead: tuple[int, ...], query: Tensor) -> Tensor:
    """A tensor of positive numbers that broadcasts to the three sizes ``lead``, named ``form``, with a fourth of 1."""
    form = f"that broadcasts to {form}, such as (heads, 1) for one per head"
    value = positive_tensor(name, value, query.device, compute_dtype(query.dtype), form, lead)
    return value[(None,) * (3 - value.dim())].unsqueeze(-1)


def _preference(log_preference: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    if log_preference is None:
        return None
    full = (*query.shape[:3], key.shape[2])
    result = without_causal_bias("log_preference", log_preference, full[2], full[3], query.device)
    form = "that broadcasts to (batch, heads, queries, keys), of log weights (-inf is masked) or bool (True = attend)"
    check_tensor("log_preference", result, form, dtypes=MASK, broadcast=full, device=query.device)
    if not result.dim() or result.shape[-1] != full[-1]:
        result = result.expand(*result.shape[:-1], full[-1])
    return result[(None,) * (4 - result.dim())]


def _with_any(mask: Tensor) -> Tensor:
    """Whether each row has a True, (..., 1)."""
    if not values_are_known(mask):
        return mask.any(-1, keepdim=True)
    # Twenty times faster than any, which torch does not vectorise along rows.
    return mask.view(torch.uint8).amax(-1, keepdim=True).bool()


def _open(log_preference: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The preference with empty rows, on which kernels disagree, replaced by uniform ones; and a mask of these rows.

    The largest entry is subtracted from rows far from 0, which would otherwise cost digits of the scores they are added
    to. With queries of a half type this is done in float32, since the difference may have more digits; if the result is
    rounded to the half type, rows near 0 are unchanged.
    """
    if log_preference is None or log_preference.shape[-1] == 0:
        return log_preference, None
    if log_preference.dtype == torch.bool:
        empty = ~_with_any(log_preference)
        if not values_are_known(empty) or bool(empty.any()):
            return log_preference | empty, empty
        return log_preference, None
    if log_preference.stride(-1) > 1:  # kernels would copy it, and reading its rows is slow
        log_preference = log_preference.contiguous()
    largest = log_preference.detach().amax(-1, keepdim=True)
    empty = largest == -torch.inf
    level = largest.masked_fill(empty, 0)
    far = level.abs() > _harmless_level(log_preference, dtype)
    known, name = values_are_known(largest), "log_preference (in a layer, its preference and attn_mask)"
    check_entries(name, largest, lambda x: x < torch.inf, "finite log weights, or -inf where masked")
    if not known or bool(far.any()):
        if dtype in HALF:
            log_preference = log_preference.to(compute_dtype(log_preference.dtype))
            if mask_dtype(log_preference, dtype) == dtype:
                level = level.masked_fill(~far, 0)
        log_preference = log_preference - level
    if known and not bool(empty.any()):
        return log_preference, None
    return torch.where(empty, log_preference.new_zeros(()), log_preference), empty


def normalised_log_weights(preference: Tensor | None, templates: Tensor) -> Tensor:
    """Log u of templates (B, H, n, d), (B or 1, H or 1, m or 1, n)."""
    if preference is None:
        return templates.new_zeros(1, 1, 1, templates.shape[-2]).log_softmax(-1)
    return log_weights(preference, templates.dtype).log_softmax(-1)


def largest_level(dtype: torch.dtype) -> float:
    """Largest distance from 0 of the largest log weight of a row in checked arguments of ``dtype``."""
    return HARMLESS_LEVEL_OF_HALF if dtype in HALF else HARMLESS_LEVEL


def _harmless_level(log_preference: Tensor, dtype: torch.dtype) -> float:
    """Distance from 0 up to which rows of a preference with scores of ``dtype`` are unchanged."""
    if dtype not in HALF:
        return HARMLESS_LEVEL
    rounded = mask_dtype(log_preference, dtype) in HALF and log_preference.dtype != dtype
    return HARMLESS_LEVEL_IN_HALF if rounded else HARMLESS_LEVEL_OF_HALF


def broadcast_leading(
    query: Any, key: Any, value: Any, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, bool, int]:
    """Bring tensors (..., tokens, dim) of two to four dimensions to four; batch and heads broadcast.

    Tensors that have that form, and those that :func:`checked` rejects, are returned unchanged.

    Args:
        query: (..., m, d).
        key: (..., n, d).
        value: (..., n, d_v).
        enable_gqa: Whether heads are grouped rather than broadcast.

    Returns:
        Query (B, H, m, d), key (B, H_kv, n, d), value (B, H_kv, n, d_v), whether heads of the query share heads of the
        key (true also if one head of the key was broadcast), and the number of leading dimensions of size 1 that were
        added.

    Raises:
        ProblemError: If leading dimensions of fewer than four do not broadcast to one shape.
    """
    as_given, tensors = (query, key, value, enable_gqa, 0), (query, key, value)
    if not isinstance(enable_gqa, bool) or not all(map(_is_usable, tensors)):
        return as_given
    dims, kept = [tensor.dim() for tensor in tensors], 1 if enable_gqa else 2
    fewer = min(dims) < 4
    agree = not fewer and query.shape[:kept] == key.shape[:kept] == value.shape[:kept]
    if max(dims) > 4 or agree:
        return as_given
    wide = [x[(None,) * (4 - x.dim())] for x in tensors]
    try:
        lead = torch.broadcast_shapes(*(x.shape[:kept] for x in wide))
    except RuntimeError:
        if not fewer:
            return as_given
        shapes = shapes_of(dict(zip(("query", "key", "value"), tensors, strict=True)))
        raise ProblemError(
            f"leading dimensions do not broadcast to one shape: {shapes}; expected (batch, heads, tokens, dim), or "
            "fewer dimensions that broadcast to it, as in torch.nn.functional.scaled_dot_product_attention"
        ) from None
    # One head of the key for all heads of the query needs no copies: they are grouped.
    of_keys = lead
    if not enable_gqa and wide[1].shape[1] == wide[2].shape[1] == 1:
        # Set rather than compared, since a comparison is symbolic in a graph with dynamic sizes.
        of_keys, enable_gqa = lead[:1], True
    z, k, v = (
        x.expand(*sizes, *x.shape[len(sizes) :])
        for x, sizes in zip(wide, (lead, of_keys, of_keys), strict=True)
    )
    return z, k, v, enable_gqa, 4 - max(dims)


def _is_usable(tensor: Any) -> bool:
    return (
        isinstance(tensor, Tensor)
        and not tensor.is_nested
        and tensor.layout == torch.strided
        and tensor.dim() >= 2
    )


def check_kind(closeness: AbstractCloseness | None, estimator: str) -> None:
    """Raise unless the closeness can be used for attention with this estimator.

    Raises:
        ProblemError: If not; the message names the closeness.
    """
    if closeness is None:
        return
    if isinstance(closeness, OptimalTransport):
        raise ProblemError(
            "closeness is an OptimalTransport, which also gives weight to templates other than the keys; use "
            "fenchel.functional.transport_attention or fenchel.nn.TransportAttention"
        )
    check_curved(closeness, estimator)


def checked_closeness(
    closeness: AbstractCloseness | str | None, estimator: str, call: AttentionArguments
) -> AbstractCloseness | None:
    """The closeness in the dtype of the computation, or None for softmax attention.

    Args:
        closeness: The argument of the call.
        estimator: Name of the estimator.
        call: Checked arguments of the call.

    Raises:
        ProblemError: If it cannot be used with this estimator, or its numbers do not match the heads or queries.
    """
    result = closeness_of(closeness)
    check_kind(result, estimator)
    if result is None or isinstance(result, KL):
        return None
    query = call.query
    lead, name = tuple(query.shape[:3]), type(result).__name__
    if estimator != "first_order":
        numbers = (tensor for _, tensor in tensors_of(result))
        call.check_not_mapped(f"{estimator} attention under {name}", *numbers)
    form = "that broadcasts to (batch, heads, queries), such as (heads, 1) for one per head"
    for argument in result.query_shapes():
        number = getattr(result, argument)
        check_tensor(f"{argument} of {name}", number, form, broadcast=lead, device=query.device)
    return result.to(compute_dtype(query.dtype))
