"""What tensors may be, from what torch knows of them without looking at an element; norms and sums.

Checks run at every call of an attention, and inside of what is compiled, exported or transformed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import EllipsisType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]
from torch._subclasses.fake_tensor import FakeTensor

from fenchel.arguments import ARGUMENTS, FLAG, shown
from fenchel.errors import FenchelError, ProblemError

FLOATING = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
"""Dtypes in which, or from which, everything is computed."""

BOOL = (torch.bool,)
MASK = (*FLOATING, torch.bool)
"""Log weights, or a mask."""

WHOLE = (torch.int64,)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

_REQUIRED = {
    name: replace(rule, optional=False) for name, rule in ARGUMENTS.items()
}  # callers say what None is


Size = int | None | tuple[int, ...]
"""What one dimension of a tensor has to be: a number, any (None), or one of some."""


def has_shape(tensor: Tensor, sizes: Sequence[Size | EllipsisType]) -> bool:
    """Whether a tensor has some sizes; an ellipsis at their start stands for any number of dimensions.

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
    for size, wanted in zip(shape, sizes, strict=True):
        if wanted is not None and not (size in wanted if isinstance(wanted, tuple) else size == wanted):
            return False
    return True


def _in_words(sizes: Sequence[Size | EllipsisType]) -> str:
    each = ["..." if size is ... else "any" if size is None else str(size) for size in sizes]
    each = [one.strip("()").replace(", ", " or ") for one in each]
    return f"({', '.join(each)}{',' * (len(each) == 1)})"


def check_tensor(
    name: str,
    tensor: Any,
    form: str,
    *,
    dtypes: Collection[torch.dtype] = FLOATING,
    dims: int | None = None,
    sizes: Sequence[Size | EllipsisType] | None = None,
    device: torch.device | None = None,
    other: str = "query",
    error: type[FenchelError] = ProblemError,
) -> None:
    """Hold a tensor against what can be computed with: dense, of one of some dtypes, of a shape, on a device.

    Args:
        name: What the user calls it; a plural ends in "s".
        tensor: What was given.
        form: Its shape in words, such as "(batch, heads, tokens, dim)", and what else there is to say.
        dtypes: Those that it may have.
        dims: How many dimensions, if they are fixed.
        sizes: Those that it has to have, as :func:`has_shape` takes them; messages have them after the form's letters.
        device: Where it has to be.
        other: What else is there.
        error: What to raise.

    Raises:
        FenchelError: Of the type ``error``, naming the argument, what it was and what it should be.

    Example:
        >>> check_tensor("query", [1.0], "(batch, heads, tokens, dim)")
        Traceback (most recent call last):
        fenchel.errors.ProblemError: query is a list; expected a tensor (batch, heads, tokens, dim)
        >>> check_tensor("mask", torch.ones(3, 2), "(N or 1, A), 0 or 1", sizes=((1, 4), 2))
        Traceback (most recent call last):
        fenchel.errors.ProblemError: mask has shape (3, 2); expected (N or 1, A) = (1 or 4, 2), 0 or 1
    """
    are, have = ("are", "have") if name.endswith("s") else ("is", "has")
    if not isinstance(tensor, Tensor):
        raise error(f"{name} {are} a {type(tensor).__name__}; expected a tensor {form}")
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
    if sizes is not None and not has_shape(tensor, sizes):
        letters, end, rest = form.partition(")")
        expected = f"{letters}{end} = {_in_words(sizes)}{rest}"
        raise error(f"{name} {have} shape {tuple(tensor.shape)}; expected {expected}")
    if device is not None:
        check_device(name, tensor, device, other, error=error)


def broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape broadcasts to another without making that one larger."""
    more = len(wanted) - len(shape)
    return more >= 0 and all([size in (1, full) for size, full in zip(shape, wanted[more:], strict=True)])  # noqa: C419


def check_device(
    name: str,
    tensor: Tensor,
    device: torch.device,
    other: str = "query",
    *,
    error: type[FenchelError] = ProblemError,
) -> None:
    """Hold the device of a tensor against that of another.

    Raises:
        FenchelError: Of the type ``error``, naming both.
    """
    if tensor.device != device:
        are = "are" if name.endswith("s") else "is"
        raise error(f"{name} {are} on {tensor.device}, {other} on {device}; move one of them")


def check_dtype(name: str, tensor: Tensor, dtype: torch.dtype, other: str = "query") -> None:
    """Hold the dtype of a tensor against that of another; under autocast they may differ.

    Raises:
        ProblemError: Naming both.
    """
    if tensor.dtype != dtype and not is_under_autocast(tensor):
        raise ProblemError(f"{name} {has(name)} dtype {tensor.dtype}, {other} {dtype}; convert one of them")


class Placed(Protocol):
    """Whatever has a dtype and a device."""

    @property
    def dtype(self) -> torch.dtype:
        """Of its numbers."""
        ...

    @property
    def device(self) -> torch.device:
        """Where they are."""
        ...


def check_vectors(
    name: str, tensor: Any, form: str, width: int, like: Placed, other: str = "templates"
) -> None:
    """Hold a tensor of vectors against how long they are, and against the dtype and device of something else.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    check_tensor(name, tensor, form)
    if tensor.dim() == 0 or tensor.shape[-1] != width:
        raise ProblemError(f"{name} {has(name)} shape {tuple(tensor.shape)}; expected {form}")
    check_device(name, tensor, like.device, other)
    check_dtype(name, tensor, like.dtype, other)


def has(name: str) -> str:
    """The verb that goes with the name of an argument."""
    return "have" if name.endswith("s") else "has"


def check_type(
    name: str,
    value: Any,
    kind: Any,
    expected: str,
    *,
    error: type[FenchelError] = ProblemError,
) -> None:
    """Hold an argument against a class, or what else ``isinstance`` takes.

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
    """Every flag is True or False.

    Raises:
        ProblemError: Naming the first that is not.
    """
    for name, flag in flags.items():
        if flag is not True and flag is not False:
            raise ProblemError(f"{name} is {shown(flag)}; expected {FLAG.expected}")


def checked_argument(argument: str, value: Any, *, name: str | None = None) -> Any:
    """A value that has to be given, by the table's rule for it, called in messages what it is called in Python.

    Raises:
        ProblemError: "NAME is VALUE; expected RULE."

    Example:
        >>> checked_argument("tol", "x")
        Traceback (most recent call last):
        fenchel.errors.ProblemError: tol is 'x'; expected a finite number above 0 and below 1, such as 1e-4.
    """
    return _REQUIRED[argument].check(argument if name is None else name, value, ProblemError)


def checked_scale(scale: Any, like: Tensor) -> float | Tensor:
    """A number, or a tensor of one element with the device of another tensor and no dimension.

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


def positive_tensor(
    argument: str, value: Tensor, device: torch.device, dtype: torch.dtype, form: str
) -> Tensor:
    """A tensor of numbers above 0, on a device; one number may come from another one.

    Args:
        argument: Its name in the table, where the rule of each number is.
        value: What was given.
        device: Where it is wanted.
        dtype: In which it will be computed with, and has to be above 0 and finite.
        form: Its shape in words.

    Raises:
        ProblemError: If it is of another kind, or a number in it breaks the rule.
    """
    check_tensor(argument, value, form)
    if value.dim() or value.is_meta:
        check_device(argument, value, device)
    value = value.to(device)

    def is_positive(entries: Tensor) -> Tensor:
        computed = entries.to(dtype)
        return (computed > 0) & (computed < math.inf)

    check_entries(argument, value, is_positive, f"{ARGUMENTS[argument].expected} in every entry")
    return value


def first_index(which: Tensor) -> tuple[int, ...]:
    """Where the first True of a bool tensor is."""
    return tuple(which.nonzero()[0].tolist())


def index_of(position: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The index of an element of a shape, given its position in the flattened tensor, such as by ``argmin``."""
    return tuple(int(i) for i in torch.unravel_index(position.cpu(), shape))


def check_entries(
    name: str, tensor: Tensor, good: Callable[[Tensor], Tensor], expected: str, remedy: str = ""
) -> None:
    """Hold every entry of a tensor against a rule, where values are known.

    Raises:
        ProblemError: Naming the first entry that breaks it, and where it is.
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
    holds = "hold" if name.endswith("s") else "holds"
    raise ProblemError(
        f"{name} {holds} {value:.6g}{at}{others}; expected {expected}{remedy and ': ' + remedy}"
    )


def is_under_autocast(tensor: Tensor) -> bool:
    """Whether autocast is on where a tensor is; there is none on the meta device."""
    return not tensor.is_meta and torch.is_autocast_enabled(tensor.device.type)


HOSTS = frozenset({"cpu"})
"""Types of devices on which looking at an element waits for nothing."""


def is_on_host(tensor: Tensor) -> bool:
    """Whether looking at an element waits for nothing: on the CPU."""
    return tensor.device.type in HOSTS


def values_are_known(tensor: Tensor) -> bool:
    """Whether values are looked at, to check them or to leave out what they make superfluous.

    They are on the CPU. On an accelerator a look waits for all work that is queued, so that they are not, unless
    ``torch.autograd.set_detect_anomaly`` asks for checks.
    """
    return values_can_be_read(tensor) and (is_on_host(tensor) or torch.is_anomaly_enabled())


def values_can_be_read(tensor: Tensor) -> bool:
    """Whether there are values: not while a graph is made, under ``torch.vmap``, or of a meta or fake tensor."""
    if torch.compiler.is_compiling() or tensor.is_meta or isinstance(tensor, FakeTensor):
        return False
    return not _is_mapped(tensor)


def check_finite(*, always: bool = False, **tensors: Tensor | None) -> None:
    """Refuse NaN and infinity while torch's anomaly detection is on.

    Args:
        always: Whether to refuse them in any case, for estimators that look at values wherever these are.
        **tensors: By the names that the caller has for them.

    Raises:
        ProblemError: Naming the first tensor that has one.
    """
    if not always and (torch.compiler.is_compiling() or not torch.is_anomaly_enabled()):
        return
    for name, tensor in tensors.items():
        if tensor is not None and values_can_be_read(tensor) and not bool(torch.isfinite(tensor).all()):
            raise ProblemError(
                f"{name} contains NaN or infinity; every entry must be finite, masked ones too"
            )


def check_not_mapped(what: str, *tensors: Tensor | None) -> None:
    """Refuse ``torch.vmap`` where what is computed depends on values that it hides.

    Raises:
        ProblemError: If a tensor is being mapped.
    """
    if any(tensor is not None and _is_mapped(tensor) for tensor in tensors):
        raise ProblemError(
            f"torch.vmap cannot map {what}, which looks at values; give what is mapped as one more leading dimension"
        )


def is_onnx_export() -> bool:
    """Whether ``torch.onnx`` is exporting this."""
    return torch.onnx.is_in_onnx_export()


# Dynamo takes torch's own function to be False (see also fenchel.functional.arguments.unit_of_products).
is_onnx_export._dynamo_marked_constant = True  # pyright: ignore[reportFunctionMemberAccess]


def refuse_onnx(what: str) -> None:
    """Refuse ``torch.onnx`` where a computation has no operations of ONNX.

    Raises:
        ProblemError: If it is exporting.
    """
    if is_onnx_export():
        raise ProblemError(
            f"{what} cannot be exported to ONNX, which lacks operations that it needs; use torch.export"
        )


def is_transformed() -> bool:
    """Whether this runs inside of ``torch.func.grad``, ``vmap`` or another of their kind, uncompiled."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def listed(tensor: Tensor) -> list[Any]:
    """The numbers of a tensor (n,), in one transfer; within ``torch.func``, where torch 2.8 has no ``tolist``, in n."""
    return [number.item() for number in tensor] if is_transformed() else tensor.tolist()


def _is_mapped(tensor: Tensor) -> bool:
    """Whether a tensor is mapped by ``torch.vmap``, at whatever depth of transforms."""
    if not is_transformed():
        return False
    while _functorch.is_functorch_wrapped_tensor(tensor):
        if _functorch.is_batchedtensor(tensor):
            return True
        tensor = _functorch.get_unwrapped(tensor)
    return False


def needs_gradient(tensor: Tensor) -> bool:
    """Whether a gradient is recorded for a tensor, or for what ``torch.func`` has made it of."""
    if not is_transformed():
        return tensor.requires_grad
    while not tensor.requires_grad and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def _listed(dtypes: Collection[torch.dtype]) -> str:
    names = [str(dtype) for dtype in dtypes]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"


def is_causal_bias(mask: Any) -> bool:
    """Whether something is a ``torch.nn.attention.bias.CausalBias``.

    By name: its module brings torch's compiler, which takes seconds to import.
    """
    kind = type(mask)
    return (
        kind is not Tensor and kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"
    )


def without_causal_bias(name: str, mask: Any, queries: int, keys: int, device: torch.device) -> Any:
    """A mask of torch's own as a bool tensor (queries, keys), True = attend; whatever else was given as it is.

    Args:
        name: What the user calls it.
        mask: What was given. A ``CausalBias`` is a tensor whose memory is not initialised; it says what it means by its
            sizes and its variant alone.
        queries: m.
        keys: n.
        device: Where the tensor is to be.

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
    """Where a log preference or a mask gives weight, bool."""
    return preference if preference.dtype == torch.bool else ~torch.isneginf(preference)


def log_weights(preference: Tensor, dtype: torch.dtype) -> Tensor:
    """A log preference in a dtype, or what a mask is as one.

    Example:
        >>> log_weights(torch.tensor([True, False]), torch.float64)
        tensor([0., -inf], dtype=torch.float64)
    """
    if preference.dtype != torch.bool:
        return preference.to(dtype)
    return torch.zeros_like(preference, dtype=dtype).masked_fill_(~preference, -torch.inf)


UNIT = 2.0**-53
"""Largest relative error of one operation in float64."""

SMALL = 0.5
"""Potentials up to this, in units of the modulus, move the weights by less than cancellation would leave of them."""


LINEAR = 0.1
"""Errors of logarithms up to this are errors of what they are the logarithms of, to a tenth."""


SQUARED = (1e-15, 1e15)
"""Lengths whose squares float32 holds."""


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
    r"""What a relative tolerance is relative to: ‖λ‖, or ‖αz‖ where λ is zero to rounding."""
    rounding = 16 * torch.finfo(length.dtype).eps
    return torch.where(length > rounding * first_order, length, first_order)


def polynomial(x: Tensor, coefficients: Sequence[float]) -> Tensor:
    """A polynomial, from its constant on, elementwise."""
    result = torch.zeros_like(x)
    for coefficient in reversed(coefficients):
        result = result * x + coefficient
    return result


def total(x: Tensor) -> Tensor:
    """Sum over the last dimension, kept."""
    return x.sum(-1, keepdim=True)


def dot(x: Tensor, y: Tensor) -> Tensor:
    """Inner product over the last dimension, kept."""
    return torch.linalg.vecdot(x, y).unsqueeze(-1)


def summed(count: int) -> float:
    r"""By how many units a sum or inner product of ``count`` terms may be off, relative to the sum of their sizes.

    At most ``count``, the worst case, and beyond 16 terms :math:`8 + 2\sqrt{\mathtt{count}}`: at least three standard
    deviations of independent roundings one after another, six and more where terms are of like size (in the manner of
    Higham and Mary, 2019). Bounds on such sums are statistical and no worst cases.
    """
    return min(float(count), 8 + 2 * math.sqrt(count))


def near_displacement(potential: Tensor, preference: Tensor) -> Tensor:
    r"""What a small potential (..., m, n) adds to u, to rounding relative to itself.

    .. math:: p_i - u_i = u_i\,\frac{e_i - \langle u, e\rangle}{1 + \langle u, e\rangle}, \qquad e = e^f - 1
    """
    e = torch.expm1(potential)
    mass = (preference * e).sum(-1, keepdim=True)
    return preference * (e - mass) / (1 + mass)
