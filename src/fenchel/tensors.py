"""Checks of tensors, mostly without reading elements; norms, sums and centres.

Checks run in every call of attention, also while it is compiled, exported or transformed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._subclasses.fake_tensor import FakeTensor

from fenchel.arguments import ARGUMENTS, FLAG, shown
from fenchel.errors import FenchelError, ProblemError

# Floating-point dtypes that are accepted.
FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

HALF = (torch.float16, torch.bfloat16)

# Dtypes of computations.
PRECISE = (torch.float32, torch.float64)

BOOL = (torch.bool,)
# Dtypes of log weights and masks.
MASK = (*FLOATING, torch.bool)

WHOLE = (torch.int64,)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_REQUIRED = {
    name: replace(rule, optional=False) for name, rule in ARGUMENTS.items()
}  # None is handled by callers


# Required size of a dimension: a number, any (None), or one of several.
Size = int | None | tuple[int, ...]


def has_shape(tensor: Tensor, sizes: Sequence[Size | EllipsisType]) -> bool:
    """Whether a tensor has the given sizes; an ellipsis at their start stands for any number of dimensions.

    Example:
        >>> has_shape(torch.ones(2, 3), (None, (1, 3))), has_shape(torch.ones(2, 3), (..., 2))
        (True, False)
    """
    shape = tuple(tensor.shape)
    if sizes and sizes[0] is ...:
        sizes = sizes[1:]
        shape = shape[max(0, len(shape) - len(sizes)) :]
    if len(shape) != len(sizes):
        return False
    for size, expected in zip(shape, sizes, strict=True):
        if expected is not None and size not in (expected if isinstance(expected, tuple) else (expected,)):
            return False
    return True


def _in_words(sizes: Sequence[Size | EllipsisType]) -> str:
    each = ["..." if size is ... else "any" if size is None else str(size) for size in sizes]
    each = [one.strip("()").replace(", ", " or ") for one in each]
    return f"({', '.join(each)}{',' * (len(each) == 1)})"


def is_plural(name: str) -> bool:
    """Whether an argument is several things: ``values of Layer`` are, ``order of Tsallis`` is not."""
    return name.partition(" of ")[0].endswith("s")


def check_tensor(
    name: str,
    tensor: Any,
    form: str,
    *,
    dtypes: Collection[torch.dtype] = FLOATING,
    dims: int | None = None,
    sizes: Sequence[Size | EllipsisType] | None = None,
    broadcast: Sequence[int] | None = None,
    device: torch.device | None = None,
    like: Tensor | None = None,
    other: str = "query",
    error: type[FenchelError] = ProblemError,
) -> None:
    """Raise unless a tensor is dense, of one of several dtypes, and of the given shape, device and dtype.

    Args:
        name: Name of the argument; a plural ends in "s".
        tensor: Its value.
        form: The expected shape in words, such as "(batch, heads, tokens, dim)", and other requirements.
        dtypes: Accepted dtypes.
        dims: Number of dimensions, if it is fixed.
        sizes: Expected sizes, as for :func:`has_shape`; messages show them after the shape in words.
        broadcast: Shape to which its own can be expanded; messages show it likewise.
        device: Expected device.
        like: A tensor with the expected device and dtype; under autocast the dtype may differ.
        other: Name of the argument with that device or dtype.
        error: Type of the error.

    Raises:
        FenchelError: Of the type ``error``, with the argument's name, its value and the expected one.

    Example:
        >>> check_tensor("query", [1.0], "(batch, heads, tokens, dim)")
        Traceback (most recent call last):
        fenchel.errors.ProblemError: query is [1.0]; expected a tensor (batch, heads, tokens, dim)
        >>> check_tensor("mask", torch.ones(3, 2), "(N or 1, A), 0 or 1", sizes=((1, 4), 2))
        Traceback (most recent call last):
        fenchel.errors.ProblemError: mask has shape (3, 2); expected (N or 1, A) = (1 or 4, 2), 0 or 1
    """
    are, have = ("are", "have") if is_plural(name) else ("is", "has")
    if not isinstance(tensor, Tensor):
        raise error(f"{name} {are} {shown(tensor)}; expected a tensor {form}")
    if type(tensor) is not Tensor and is_causal_bias(tensor):
        raise error(
            f"{name} {are} a CausalBias of torch.nn.attention.bias, which stands for a mask of (queries, keys); "
            f"expected a dense tensor {form}"
        )
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else f"of layout {tensor.layout}"
        raise error(f"{name} {are} a tensor that is {kind}; expected a dense tensor {form}")
    if tensor.dtype not in dtypes:
        raise error(
            f"{name} {have} dtype {tensor.dtype}; expected {_listed(dtypes)}, in a tensor {form}: convert it with .to"
        )
    if dims is not None and tensor.dim() != dims:
        raise error(f"{name} {have} shape {tuple(tensor.shape)}; expected {dims} dimensions {form}")
    letters, end, rest = form.partition(")")
    if sizes is not None and not has_shape(tensor, sizes):
        expected = f"{letters}{end} = {_in_words(sizes)}{rest}"
        raise error(f"{name} {have} shape {tuple(tensor.shape)}; expected {expected}")
    if broadcast is not None and not broadcasts_to(tensor.shape, tuple(broadcast)):
        expected = f"one {letters}{end} = {tuple(broadcast)}{rest}"
        raise error(f"{name} {have} shape {tuple(tensor.shape)}; expected {expected}")
    if like is not None:
        device = like.device
    if device is not None:
        check_device(name, tensor, device, other, error=error)
    if like is not None and not is_under_autocast(tensor):
        check_dtype(name, tensor, like.dtype, other)


def broadcasts_to(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """Whether a shape can be expanded to another."""
    more = len(target) - len(shape)
    return more >= 0 and all([size in (1, full) for size, full in zip(shape, target[more:], strict=True)])  # noqa: C419


def check_device(
    name: str,
    tensor: Tensor,
    device: torch.device,
    other: str = "query",
    *,
    error: type[FenchelError] = ProblemError,
) -> None:
    """Raise unless a tensor is on the device of another.

    Raises:
        FenchelError: Of the type ``error``, with both devices.
    """
    if tensor.device != device:
        are = "are" if is_plural(name) else "is"
        raise error(f"{name} {are} on {tensor.device}, {other} on {device}; move one of them")


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype, other: str = "query") -> None:
    """Raise unless a tensor has the dtype of another.

    Raises:
        ProblemError: If not; the message has both dtypes.
    """
    if tensor.dtype != dtype:
        raise ProblemError(f"{name} {has(name)} dtype {tensor.dtype}, {other} {dtype}; convert one of them")


def check_floating(name: str, dtype: Any, accepted: Collection[torch.dtype] = FLOATING) -> None:
    """Raise a ``ProblemError`` unless a dtype is one of several."""
    if dtype not in accepted:
        got = dtype if isinstance(dtype, torch.dtype) else shown(dtype)
        raise ProblemError(f"{name} is {got}; expected {_listed(accepted)}")


def has(name: str) -> str:
    """The verb after the name of an argument."""
    return "have" if is_plural(name) else "has"


def check_type(
    name: str,
    value: Any,
    kind: Any,
    expected: str,
    *,
    error: type[FenchelError] = ProblemError,
) -> None:
    """Raise unless an argument is an instance of a class, as by ``isinstance``.

    Raises:
        FenchelError: Of the type ``error``: "NAME is VALUE; expected EXPECTED."

    Example:
        >>> check_type("network", 3, torch.nn.Module, "a torch.nn.Module")
        Traceback (most recent call last):
        fenchel.errors.ProblemError: network is 3; expected a torch.nn.Module.
    """
    if not isinstance(value, kind):
        raise error(f"{name} is {shown(value)}; expected {expected}.")


def check_flags(**flags: Any) -> None:
    """Raise unless every flag is True or False.

    Raises:
        ProblemError: If not; the message names the first.
    """
    for name, flag in flags.items():
        if flag is not True and flag is not False:
            raise ProblemError(f"{name} is {shown(flag)}; expected {FLAG.expected}")


def checked_argument(argument: str, value: Any, *, name: str | None = None) -> Any:
    """A required value, checked by the rule of ``ARGUMENTS``; messages use its name in Python.

    Raises:
        ProblemError: "NAME is VALUE; expected RULE."

    Example:
        >>> checked_argument("tol", "x")
        Traceback (most recent call last):
        fenchel.errors.ProblemError: tol is 'x'; expected a finite number above 0 and below 1, such as 1e-4.
    """
    return _REQUIRED[argument].check(argument if name is None else name, value, ProblemError)


def positive_tensor(
    argument: str,
    value: float | Tensor,
    device: torch.device,
    dtype: torch.dtype,
    form: str,
    broadcast: Sequence[int] | None = None,
) -> Tensor:
    """A tensor of numbers above 0 on a device, to which one number is moved.

    Args:
        argument: Its name in ``ARGUMENTS``, whose rule holds for every entry.
        value: The tensor, or a number, which becomes one of the dtype.
        device: The expected device.
        dtype: The dtype of computations, in which entries have to be above 0 and finite.
        form: The expected shape in words.
        broadcast: As in :func:`check_tensor`.

    Raises:
        ProblemError: If it is not such a tensor.
    """
    if not isinstance(value, Tensor):
        return torch.tensor(checked_argument(argument, value), dtype=dtype, device=device)
    check_tensor(argument, value, form, broadcast=broadcast)
    if value.dim() or value.is_meta:
        check_device(argument, value, device)
    value = value.to(device)

    def is_positive(entries: Tensor) -> Tensor:
        computed = entries.to(dtype)
        return (computed > 0) & (computed < math.inf)

    check_entries(argument, value, is_positive, f"{ARGUMENTS[argument].expected} in every entry")
    return value


def first_index(which: Tensor) -> tuple[int, ...]:
    """Index of the first True of a bool tensor."""
    return tuple(which.nonzero()[0].tolist())


def index_of(position: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element of a shape, given its position in the flattened tensor, such as by ``argmin``."""
    return tuple(int(i) for i in torch.unravel_index(position.cpu(), shape))


def check_entries(
    name: str, tensor: Tensor, good: Callable[[Tensor], Tensor], expected: str, remedy: str = ""
) -> None:
    """Raise unless every entry of a tensor satisfies a condition; unchecked if values are not known.

    Raises:
        ProblemError: If not; the message has the first such entry and its index.
    """
    if not values_are_known(tensor):
        return
    fine = good(tensor.detach())
    if bool(fine.all()):
        return
    where = first_index(~fine)
    value = tensor.detach()[where].item()
    at = f" at index {where}" if where else ""
    count = int((~fine).sum())
    others = f" (one of {count} such entries)" if count > 1 else ""
    holds = "hold" if is_plural(name) else "holds"
    raise ProblemError(
        f"{name} {holds} {value:.6g}{at}{others}; expected {expected}{remedy and ': ' + remedy}"
    )


def check_indices(name: str, indices: Tensor, least: int, count: int, expected: str) -> None:
    """Raise unless all indices are between ``least`` and count - 1, if values are known.

    Raises:
        ProblemError: If not; the message names the argument, a wrong index and the expected ones.
    """
    if indices.numel() and values_are_known(indices):
        smallest, largest = (int(end) for end in indices.aminmax())
        if smallest < least or largest >= count:
            wrong = smallest if smallest < least else largest
            contain = "contain" if is_plural(name) else "contains"
            raise ProblemError(f"{name} {contain} {wrong}; expected {expected}")


def is_under_autocast(tensor: Tensor) -> bool:
    """Whether autocast is enabled for the device of a tensor; there is none on the meta device."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


# Types of devices on which reading an element does not synchronise.
HOSTS = frozenset({"cpu"})


def is_on_host(tensor: Tensor) -> bool:
    """Whether reading an element does not synchronise: on the CPU."""
    return tensor.device.type in HOSTS


def values_are_known(tensor: Tensor) -> bool:
    """Whether values are read, to check them or to skip unnecessary work.

    On the CPU they are. On an accelerator reading waits for all queued work, so they are not, unless
    ``torch.autograd.set_detect_anomaly`` is on.
    """
    return values_can_be_read(tensor) and (is_on_host(tensor) or torch.is_anomaly_enabled())


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether there are values: not while compiling, under ``torch.vmap``, or of a meta or fake tensor."""
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return False
    return not _is_mapped(tensor)


def check_not_mapped(what: str, *tensors: Tensor | None) -> None:
    """Raise under ``torch.vmap``, which hides the values that the computation depends on.

    Raises:
        ProblemError: If a tensor is being mapped.
    """
    if any(tensor is not None and _is_mapped(tensor) for tensor in tensors):
        raise ProblemError(
            f"torch.vmap cannot map {what}, which depends on values; pass the mapped dimension as one more leading "
            "dimension"
        )


def is_onnx_export() -> bool:
    """Whether ``torch.onnx`` is exporting this."""
    return torch.onnx.is_in_onnx_export()


# Dynamo evaluates torch's own function as False (see also fenchel.functional.arguments.unit_of_products).
is_onnx_export._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def refuse_onnx(what: str) -> None:
    """Raise during ``torch.onnx`` export of a computation for which ONNX lacks operations.

    Raises:
        ProblemError: If it is exporting.
    """
    if is_onnx_export():
        raise ProblemError(
            f"{what} cannot be exported to ONNX, which lacks the required operations; use torch.export"
        )


def is_transformed() -> bool:
    """Whether this runs uncompiled inside a transform of ``torch.func``, such as ``grad`` or ``vmap``."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def listed(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor (n,); one by one within ``torch.func``, where torch 2.8 has no ``tolist``."""
    return [number.item() for number in tensor] if is_transformed() else tensor.tolist()


def _is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor is mapped by ``torch.vmap``, at any level of nested transforms."""
    if not is_transformed():
        return False
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def needs_gradient(tensor: Tensor) -> bool:
    """Whether a gradient is recorded for a tensor, or for one that ``torch.func`` wraps in it."""
    if not is_transformed():
        return tensor.requires_grad
    while not tensor.requires_grad and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def _listed(dtypes: Collection[torch.dtype]) -> str:
    names = [str(dtype) for dtype in dtypes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def is_causal_bias(mask: Any) -> bool:
    """Whether an object is a ``torch.nn.attention.bias.CausalBias``.

    Found by name, since its module imports torch's compiler, which takes seconds.
    """
    kind = type(mask)
    return (
        kind is not Tensor and kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"
    )


def without_causal_bias(name: str, mask: Any, queries: int, keys: int, device: torch.device) -> Any:
    """A ``CausalBias`` as a bool tensor (queries, keys), True = attend; any other mask unchanged.

    Args:
        name: Name of the argument.
        mask: The mask. The memory of a ``CausalBias`` is not initialised; only its sizes and variant are used.
        queries: m.
        keys: n.
        device: Device of the result.

    Raises:
        ProblemError: If a ``CausalBias`` was made for other numbers of queries or keys.

    Example:
        >>> from torch.nn.attention.bias import causal_lower_right
        >>> without_causal_bias("attn_mask", causal_lower_right(2, 3), 2, 3, torch.device("cpu"))
        tensor([[ True,  True, False],
                [ True,  True,  True]])
    """
    if not is_causal_bias(mask):
        return mask
    if (mask.seq_len_q, mask.seq_len_kv) != (queries, keys):
        raise ProblemError(
            f"{name} is a CausalBias of {mask.seq_len_q} queries and {mask.seq_len_kv} keys; expected one of {queries} "
            f"and {keys}"
        )
    last = keys - queries if mask.variant.name == "LOWER_RIGHT" else 0
    allowed: Tensor = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(last)
    return allowed


def may_attend(preference: Tensor) -> Tensor:
    """The mask, bool, of the entries to which a log preference or a mask gives weight."""
    return preference if preference.dtype == torch.bool else ~torch.isneginf(preference)


def widened(tensor: Tensor) -> Tensor:
    """A tensor in which half types are converted to float32."""
    return tensor.float() if tensor.dtype in HALF else tensor


def log_weights(preference: Tensor, dtype: torch.dtype) -> Tensor:
    """A log preference, or a mask converted to one, in a dtype.

    Example:
        >>> log_weights(torch.tensor([True, False]), torch.float64)
        tensor([0., -inf], dtype=torch.float64)
    """
    if preference.dtype != torch.bool:
        return preference.to(dtype)
    return torch.zeros_like(preference, dtype=dtype).masked_fill_(~preference, -torch.inf)


# Largest relative error of one operation in float64.
UNIT = 2.0**-53

# Errors of logarithms up to this are relative errors of their arguments, to a tenth.
LINEAR = 0.1

# Range of lengths whose squares float32 can hold.
SQUARED = (1e-15, 1e15)


def norm(x: Tensor) -> Tensor:
    """Euclidean norm over the last dimension, kept, which neither under- nor overflows."""
    if x.dtype != torch.float64:
        if is_on_host(x):
            result = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            if result.numel() == 0:
                return result
            low, high = (bound.item() for bound in result.detach().aminmax())
            if low > SQUARED[0] and high < SQUARED[1]:
                return result
        # float64 holds the squares of all narrower numbers.
        return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float64).to(x.dtype)
    top = x.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    return torch.linalg.vector_norm(x / top, dim=-1, keepdim=True) * top


def reference_norm(length: Tensor, first_order: Tensor) -> Tensor:
    r"""The norm that a tolerance is relative to: ‖λ‖, or ‖αz‖ if λ is zero to rounding."""
    rounding = 16 * torch.finfo(length.dtype).eps
    return torch.where(length > rounding * first_order, length, first_order)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """Evaluate a polynomial elementwise; coefficients start at the constant."""
    result = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        result = result * x + coefficient
    return result


def column(number: Any) -> Any:
    """A number; or a tensor (...), such as one with a number for each row, as (..., 1)."""
    return number.unsqueeze(-1) if isinstance(number, Tensor) and number.dim() else number


def total(x: Tensor) -> Tensor:
    """Sum over the last dimension, kept."""
    return x.sum(-1, keepdim=True)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, kept."""
    return torch.linalg.vecdot(x, y).unsqueeze(-1)


def summed(count: int) -> float:
    r"""Bound on the error of a sum or inner product of ``count`` terms, in units of rounding of the sum of their sizes.

    At most ``count``, the worst case, and beyond 16 terms :math:`8 + 2\sqrt{\mathtt{count}}`: at least three standard
    deviations of independent rounding errors, six and more where terms are of similar size (see Higham and Mary,
    2019). Beyond 16 terms the bound is statistical.
    """
    return min(float(count), 8 + 2 * math.sqrt(count))


def centre(vectors: Tensor, usable: Tensor | None) -> Tensor:
    """The mean (..., 1, d) of the vectors (..., n, d) marked in ``usable`` (..., 1, n), or of all."""
    if usable is None:
        return vectors.mean(-2, keepdim=True)
    some = usable.to(vectors.dtype)
    return some @ vectors / some.sum(-1, keepdim=True).clamp(min=1)
