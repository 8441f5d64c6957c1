"""What parameters of a distribution may be, and errors that name the entry which is not; random numbers by shape."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fenchel.arguments import shown
from fenchel.arguments.causal_bias import is_causal_bias, without_causal_bias
from fenchel.arguments.tensor import MASK, check_device, check_tensor, values_are_known
from fenchel.closeness.rounding import SMALL, UNIT, near_displacement, summed
from fenchel.errors import ProblemError
from fenchel.preference import mask

__all__ = [
    "check_dtype",
    "check_entries",
    "check_form",
    "check_together",
    "checked_log_weights",
    "checked_parameter",
    "checked_sample_shape",
    "displacement",
    "drawn_indices",
    "has",
    "log_mean_exp",
    "normal",
    "picked",
    "sums",
    "widened",
]

HALF = (torch.float16, torch.bfloat16)


def has(name: str) -> str:
    """The verb that goes with the name of an argument."""
    return "have" if name.endswith("s") else "has"


def widened(tensor: Tensor) -> Tensor:
    """Half types in float32, in which everything is then computed."""
    return tensor.float() if tensor.dtype in HALF else tensor


def check_entries(
    name: str, tensor: Tensor, good: Callable[[Tensor], Tensor], expected: str, remedy: str = ""
) -> None:
    """Hold every entry of a parameter against a rule, where values are known.

    Raises:
        ProblemError: Naming the first entry that breaks it, and where it is.
    """
    if not values_are_known(tensor):
        return
    fine = good(tensor.detach())
    if bool(fine.all()):
        return
    where = tuple(int(i) for i in (~fine).nonzero()[0])
    value = tensor.detach()[where].item()
    at = f" at index {where}" if where else ""
    count = int((~fine).sum())
    others = f" (one of {count} such entries)" if count > 1 else ""
    holds = "hold" if name.endswith("s") else "holds"
    raise ProblemError(
        f"{name} {holds} {value:.6g}{at}{others}; expected {expected}{remedy and ': ' + remedy}"
    )


def checked_parameter(
    name: str,
    value: Any,
    form: str,
    *,
    like: Tensor | None = None,
    of: str = "",
    above: float | None = None,
    least: float | None = None,
    remedy: str = "",
) -> Tensor:
    """A parameter as the rest of the package takes it.

    Args:
        name: What the user calls it; a plural ends in "s".
        value: A tensor, or a number where there is a tensor that it can be made like.
        form: Its shape in words.
        like: A tensor whose dtype and device it has to have.
        of: What that tensor is called.
        above: What every entry has to exceed.
        least: What no entry may fall below.
        remedy: What to do about an entry that is not within.

    Raises:
        ProblemError: Naming the argument, what it was and what it should be.
    """
    if like is not None and type(value) in (int, float):
        value = torch.full((), float(value), dtype=like.dtype, device=like.device)
        return checked_parameter(name, value, form, like=like, of=of, above=above, least=least, remedy=remedy)
    check_tensor(name, value, form)
    if value.is_meta:
        raise ProblemError(f"{name} {has(name)} no values, being on meta; expected a device that computes")
    value = widened(value)
    if like is not None:
        check_device(name, value, like.device, of)
        if value.dtype != like.dtype:
            raise ProblemError(
                f"{name} {has(name)} dtype {value.dtype}, {of} {like.dtype}; convert one of them"
            )
    check_entries(name, value, torch.isfinite, "finite numbers", remedy)
    if above is not None:
        check_entries(name, value, lambda x: x > above, f"numbers above {above:g}", remedy)
    if least is not None:
        check_entries(name, value, lambda x: x >= least, f"numbers of {least:g} or more", remedy)
    return value


def check_form(name: str, tensor: Tensor, form: str, dims: int) -> None:
    """Refuse a tensor of fewer dimensions than its form has, or without entries.

    Raises:
        ProblemError: With its shape.
    """
    if tensor.dim() < dims or 0 in tensor.shape:
        empty = ", none of them 0" if 0 in tensor.shape else ""
        raise ProblemError(f"{name} {has(name)} shape {tuple(tensor.shape)}; expected {form}{empty}")


def check_dtype(dtype: Any) -> None:
    """Refuse a dtype in which nothing is computed.

    Raises:
        ProblemError: If it is neither float32 nor float64.
    """
    if dtype not in (torch.float32, torch.float64):
        got = dtype if isinstance(dtype, torch.dtype) else shown(dtype)
        raise ProblemError(f"dtype is {got}; expected torch.float32 or torch.float64")


def sums(count: int) -> float:
    """What two sums of so many terms in float64, one after the other, may lose of the sizes of their terms."""
    return (2 * summed(count) + 8) * UNIT


def check_together(**shapes: tuple[int, ...]) -> torch.Size:
    """The shape to which the leading shapes of parameters broadcast.

    Raises:
        ProblemError: If there is none, naming them all.
    """
    try:
        return torch.broadcast_shapes(*shapes.values())
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
        raise ProblemError(f"leading dimensions do not broadcast to one shape (..., m): {listed}") from None


def checked_log_weights(log_weights: Any, n: int, like: Tensor, *, of: str, thing: str) -> Tensor:
    """Log weights (..., m or 1, n), not yet normalised.

    Args:
        log_weights: What the user gave: (n,), (m, n) or (..., m, n), or a bool mask of such a shape, True where
            weight may be.
        n: How many there are.
        like: Whose dtype they take, and on whose device they have to be.
        of: What that is called, such as "templates".
        thing: What has a weight, such as "templates".

    Raises:
        ProblemError: On a wrong shape, NaN or +inf, or rows that are masked throughout.
    """
    if is_causal_bias(log_weights):
        log_weights = without_causal_bias("log_weights", log_weights, log_weights.seq_len_q, n, like.device)
    check_tensor("log_weights", log_weights, f"(n,), (m, n) or (..., m, n) for n = {n} {thing}", dtypes=MASK)
    if log_weights.dim() == 0 or log_weights.shape[-1] != n:
        raise ProblemError(
            f"log_weights have shape {tuple(log_weights.shape)}, but there are n = {n} {thing} ({of} have "
            f"shape {tuple(like.shape)}); expected (n,), (m, n) or (..., m, n)"
        )
    check_device("log_weights", log_weights, like.device, of)
    if log_weights.dim() == 1:
        log_weights = log_weights.unsqueeze(0)
    log_weights = mask.log_weights(log_weights, like.dtype)
    if not values_are_known(log_weights):
        return log_weights
    if bool(torch.isnan(log_weights).any()) or bool((log_weights == torch.inf).any()):
        raise ProblemError(
            "log_weights contain NaN or +inf; expected finite log weights, or -inf where masked"
        )
    empty = torch.isneginf(log_weights).all(-1)
    if bool(empty.any()):
        where = tuple(int(i) for i in empty.nonzero()[0])
        raise ProblemError(
            f"all {n} {thing} are masked for {int(empty.sum())} of {empty.numel()} rows of log_weights (first at "
            f"index {where}): such a query has no answer; leave it out, or unmask one of the {thing}"
        )
    return log_weights


def checked_sample_shape(shape: Any, generator: Any, device: torch.device) -> tuple[int, ...]:
    """How many samples, as a shape.

    Raises:
        ProblemError: If it is none, or the generator is no generator of the device.
    """
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ProblemError(
            f"generator is {shown(generator)}; expected a torch.Generator, such as torch.Generator().manual_seed(0)"
        )
    if generator is not None and generator.device.type != device.type:
        raise ProblemError(
            f"generator is on {generator.device}, the distribution on {device}; make one with "
            f"torch.Generator({str(device)!r})"
        )
    sizes = (shape,) if isinstance(shape, int) and not isinstance(shape, bool) else shape
    if not isinstance(sizes, tuple | list) or not all(
        isinstance(size, int) and not isinstance(size, bool) and size >= 0 for size in sizes
    ):
        raise ProblemError(
            f"shape is {shown(shape)}; expected a number of samples, or a tuple such as (100, 2)"
        )
    return tuple(sizes)


def drawn_indices(weights: Tensor, shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """Indices drawn by probabilities (..., n), (*shape, ...)."""
    count, rows = math.prod(shape), weights.reshape(-1, weights.shape[-1])
    if count == 0:
        return torch.zeros((*shape, *weights.shape[:-1]), dtype=torch.int64, device=weights.device)
    drawn = torch.multinomial(rows, count, replacement=True, generator=generator)
    return drawn.mT.reshape(*shape, *weights.shape[:-1])


def picked(parameter: Tensor, index: Tensor, own: int) -> Tensor:
    """What is at indices (*shape, ..., m) of parameters (..., m or 1, n, *), given how many dimensions * are."""
    at = index.reshape(*index.shape, *[1] * (own + 1))
    padded = parameter.reshape(*[1] * (at.dim() - parameter.dim()), *parameter.shape)
    return torch.take_along_dim(padded, at, -own - 1).squeeze(-own - 1)


def displacement(exponents: Tensor, log_weights: Tensor) -> Tensor:
    r""":math:`r - w` for :math:`r \propto we^x`, to rounding relative to itself where x is small, (..., m, n)."""
    w, r = log_weights.exp(), torch.softmax(log_weights + exponents, -1)
    masked = torch.isneginf(log_weights)
    known = values_are_known(exponents)
    counted = exponents if known and not bool(masked.any()) else exponents.masked_fill(masked, 0)
    small = torch.maximum(counted.amax(-1, keepdim=True), -counted.amin(-1, keepdim=True)) <= SMALL
    if known and not bool(small.any()):
        return r - w
    return torch.where(small, near_displacement(counted.where(small, 0), w), r - w)


def log_mean_exp(plain: Tensor, centred: Tensor, at_center: Tensor, log_weights: Tensor) -> Tensor:
    r""":math:`\log\sum_i w_i e^{x_i}`, (..., m): to rounding relative to itself where x hardly differ.

    Args:
        plain: x, (..., m, n).
        centred: The same less what is common to all, computed without cancellation.
        at_center: What is common, (..., m).
        log_weights: log w, (..., m or 1, n), which sum to one.
    """
    counted = centred.masked_fill(torch.isneginf(log_weights), 0)
    small = counted.abs().amax(-1, keepdim=True) <= SMALL
    near = torch.log1p((log_weights.exp() * torch.expm1(counted.where(small, 0))).sum(-1))
    whole, around = torch.logsumexp(log_weights + plain, -1), torch.logsumexp(log_weights + centred, -1)
    # Far out what is common may be much larger than the whole, or nearly all of it.
    far = torch.where(whole.abs() < at_center.abs() / 2, whole, around + at_center)
    return torch.where(small.squeeze(-1), near + at_center, far)


def normal(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers."""
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
