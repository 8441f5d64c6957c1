r"""Sparse weights as an operation: with gradients to potential, preference and order, eager and compiled.

On the support of p the weights solve :math:`\ln_a`-linear equations, so that every derivative is one product with the
curvature at p (fact 12), :math:`H = \operatorname{diag} q - qq^\top/\sum q`. With the gradient g of p and y = Hg,

.. math:: \partial f = y, \qquad \partial\log u = u^a y, \qquad
          \partial a = \sum_i y_i\,\bigl(\partial_a\ln_a u_i - \partial_a\ln_a p_i\bigr)

in Bregman's sense, with :math:`q = p^{1-a}`; in Csiszár's :math:`q = u^a p^{1-a}`,
:math:`\partial\log u = (p/u)^a y` and :math:`\partial a = -\sum_i y_i\,\partial_a\ln_a(p_i/u_i)`. Where p_i has just
become 0 this is the derivative of the side on which it stays 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from fenchel.arguments import shown
from fenchel.arguments.tensor import check_tensor, values_are_known
from fenchel.closeness.deformed import log_of_positive, slope_of_deformed_log
from fenchel.closeness.threshold import LEAST_LOG_WEIGHT, threshold_weights
from fenchel.errors import ProblemError

__all__ = ["curvature_weights", "sparse_weights"]


def sparse_weights(
    potential: Tensor, log_preference: Tensor | None, a: float | Tensor, *, csiszar: bool = False
) -> Tensor:
    r"""The weights of a Tsallis closeness of order :math:`\beta = 1 + a` and temperature 1.

    .. math:: p_i = [u_i^a + a(f_i - \tau)]_+^{1/a} \quad\text{(Bregman)}, \qquad
              p_i = u_i\,[1 + a(f_i - \tau)]_+^{1/a} \quad\text{(Csiszár)}, \qquad \sum_i p_i = 1

    Differentiable any number of times in everything, backwards (``torch.compile`` included) and, uncompiled, forwards:
    ``torch.func.jvp``, ``jacfwd`` and ``hessian`` as ``grad``, ``vjp``, ``jacrev`` and ``vmap``. Forwards once alone:
    a forward derivative of a forward derivative is refused. Half types are computed in float32.

    Args:
        potential: f, (..., n); -inf where no weight may go.
        log_preference: log u, normalised, broadcasting to (..., n), -inf where masked; uniform where None.
        a: β - 1 in [0, 1]: a number, or a tensor that broadcasts to (..., 1).
        csiszar: Relative to u in Csiszár's sense; else in Bregman's.

    Returns:
        p, (..., n).

    Raises:
        ProblemError: If a tensor is none, its shape does not fit, or a is outside [0, 1]; also in a forward derivative
            of a forward derivative.

    Example:
        >>> sparse_weights(torch.tensor([1.0, 0.5, -1.0]), None, 1.0)          # sparsemax
        tensor([0.7500, 0.2500, 0.0000])
    """
    _check(potential, log_preference, a)
    dtype = potential.dtype
    if dtype in (torch.float16, torch.bfloat16):
        return sparse_weights(potential.float(), log_preference, a, csiszar=csiszar).to(dtype)
    if log_preference is not None:
        log_preference = log_preference.to(dtype)
    if isinstance(a, Tensor):
        a = a.to(dtype)
    order, fixed = (a, -1.0) if isinstance(a, Tensor) else (None, float(a))
    if torch.compiler.is_compiling():
        return _compiled(potential, log_preference, order, fixed, csiszar)
    return _Eager.apply(potential, log_preference, order, fixed, csiszar)


def _check(potential: Any, log_preference: Any, a: Any) -> None:
    check_tensor("potential", potential, "(..., n)")
    parts = {"potential": potential}
    if log_preference is not None:
        check_tensor("log_preference", log_preference, "that broadcasts to (..., n), or None")
        parts["log_preference"] = log_preference
    if isinstance(a, Tensor):
        check_tensor("a", a, "that broadcasts to (..., 1), or a number")
        parts["a"] = a
        if a.dim() and a.shape[-1] != 1:
            raise ProblemError(
                f"a has shape {tuple(a.shape)}; expected (..., 1), one order for all scores of a row"
            )
        if values_are_known(a) and not bool(((a >= 0) & (a <= 1)).all()):
            raise ProblemError(
                "a, the order less 1, holds numbers outside [0, 1]; expected orders from 1 to 2"
            )
    elif not isinstance(a, int | float) or not 0 <= a <= 1:
        raise ProblemError(f"a is {shown(a)}; expected the order less 1, from 0 to 1")
    if not potential.dim():
        raise ProblemError("potential has shape (); expected (..., n), one score for each template")
    try:
        torch.broadcast_shapes(*(part.shape for part in parts.values()))
    except RuntimeError:
        listed = ", ".join(f"{name} {tuple(part.shape)}" for name, part in parts.items())
        raise ProblemError(f"shapes do not broadcast to (..., n): {listed}") from None


def curvature_weights(
    weights: Tensor, log_preference: Tensor | None, a: float | Tensor, *, csiszar: bool
) -> Tensor:
    r"""The q of the curvature :math:`\operatorname{diag} q - qq^\top/\sum q` at weights p (..., n), 0 where p is 0."""
    if isinstance(a, float) and a == 1 and not csiszar:
        return (weights > 0).to(weights.dtype)
    if isinstance(a, float) and a == 0.5 and not csiszar:
        return torch.where(weights > 0, weights, 1).sqrt().masked_fill(weights <= 0, 0)
    positive, log_p = log_of_positive(weights)
    exponent = (1 - a) * log_p
    if csiszar:
        exponent = exponent + a * _log_u(log_preference, weights)
    return torch.where(positive, exponent.exp(), 0)


def _log_u(log_preference: Tensor | None, weights: Tensor) -> Tensor:
    """Log u, finite where it is a mask."""
    if log_preference is None:
        return torch.zeros_like(weights).log_softmax(-1)
    return torch.where(log_preference < LEAST_LOG_WEIGHT, 0, log_preference)


def _differentiated(
    gradient: Tensor,
    weights: Tensor,
    log_preference: Tensor | None,
    a: float | Tensor,
    csiszar: bool,
    needed: tuple[bool, bool, bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients to potential, log preference and a, before they are summed to the shapes of these."""
    y = _of_potential(gradient, weights, log_preference, a, csiszar)
    of_preference, of_order = _as_potential(weights, log_preference, a, csiszar, needed[1:])
    to_preference = None if of_preference is None else of_preference * y
    to_order = None if of_order is None else (of_order * y).sum(-1, keepdim=True)
    return y, to_preference, to_order


def _as_potential(
    weights: Tensor,
    log_preference: Tensor | None,
    a: float | Tensor,
    csiszar: bool,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """What a change of log u, and one of a, are worth in changes of the potential, (..., n)."""
    if not any(needed):
        return None, None
    positive, log_p = log_of_positive(weights)
    log_u = _log_u(log_preference, weights)
    of_preference = of_order = None
    if needed[0]:
        power = torch.where(positive, log_p - log_u, 0) if csiszar else log_u
        of_preference = (a * power).exp()
    if needed[1]:
        if csiszar:
            slope = -slope_of_deformed_log(torch.where(positive, log_p - log_u, 0), a)
        else:
            slope = slope_of_deformed_log(log_u, a) - slope_of_deformed_log(log_p, a)
        of_order = torch.where(positive, slope, 0)
    return of_preference, of_order


def _of_potential(
    gradient: Tensor, weights: Tensor, log_preference: Tensor | None, a: float | Tensor, csiszar: bool
) -> Tensor:
    q = curvature_weights(weights, log_preference, a, csiszar=csiszar)
    level = torch.linalg.vecdot(q, gradient) / q.sum(-1)
    return q * (gradient - level.unsqueeze(-1))


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    potential, log_preference, order, ctx.fixed, ctx.csiszar = inputs
    ctx.shape = potential.shape
    ctx.save_for_backward(output, log_preference, order)


def _is_pushed_forward_twice() -> bool:
    """Whether ``torch.func.jvp``, of which ``jacfwd`` is made, is applied to what it is applied to."""
    applied = [transform.key() for transform in _functorch.get_interpreter_stack() or ()]
    return applied.count(_functorch.TransformType.Jvp) > 1


def _forward(ctx: Any, tangents: tuple[Tensor | None, ...]) -> Tensor:
    """The change of the weights: the same symmetric curvature times changes of the potential, and what is worth one."""
    if _is_pushed_forward_twice():
        # torch would take what is saved here for constants.
        raise ProblemError(
            "sparse weights are differentiated forwards in a function that is itself differentiated forwards, of which "
            "torch loses a part; expected one of the two backwards: torch.func.hessian, or jacfwd of grad"
        )
    weights, log_preference, order = ctx.saved_tensors
    a = ctx.fixed if order is None else order
    potential, preference, of_a = tangents[:3]
    worth = _as_potential(weights, log_preference, a, ctx.csiszar, (preference is not None, of_a is not None))
    change = torch.zeros_like(weights) if potential is None else potential
    for each, tangent in zip(worth, (preference, of_a), strict=True):
        if each is not None and tangent is not None:
            change = change + each * tangent
    # Where there is no weight nothing changes, and a mask may have no finite tangent.
    return _of_potential(change.masked_fill(weights == 0, 0), weights, log_preference, a, ctx.csiszar)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    weights, log_preference, order = ctx.saved_tensors
    a = ctx.fixed if order is None else order
    needed = (ctx.needs_input_grad[0], ctx.needs_input_grad[1], ctx.needs_input_grad[2])
    found = _differentiated(gradient, weights, log_preference, a, ctx.csiszar, needed)
    shapes = (ctx.shape, *(None if part is None else part.shape for part in (log_preference, order)))
    summed = [
        None if part is None or not wanted or shape is None else part.sum_to_size(shape)
        for part, wanted, shape in zip(found, needed, shapes, strict=True)
    ]
    return *summed, None, None


def _computed(
    potential: Tensor, log_preference: Tensor | None, order: Tensor | None, fixed: float, csiszar: bool
) -> Tensor:
    with torch.no_grad():
        return threshold_weights(
            potential, log_preference, fixed if order is None else order, csiszar=csiszar
        )


class _Eager(torch.autograd.Function):
    """For autograd and ``torch.func``."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return _computed(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _setup(ctx, inputs, output)
        ctx.save_for_forward(output, inputs[1], inputs[2])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return _forward(ctx, tangents)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return _backward(ctx, *gradients)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """What is mapped becomes a leading dimension; rows do not see each other."""
        most = max(
            part.dim() - (dim is not None)
            for part, dim in zip(inputs, in_dims, strict=True)
            if isinstance(part, Tensor)
        )

        def leading(part: Any, dim: int | None) -> Any:
            if dim is None:
                return part
            moved = part.movedim(dim, 0)
            return moved.reshape(moved.shape[0], *(1,) * (most + 1 - moved.dim()), *moved.shape[1:])

        return _Eager.apply(*map(leading, inputs, in_dims)), 0


@torch.library.custom_op("fenchel::sparse_weights", mutates_args=())
def _compiled(
    potential: Tensor, log_preference: Tensor | None, order: Tensor | None, fixed: float, csiszar: bool
) -> Tensor:
    return _computed(potential, log_preference, order, fixed, csiszar)


@_compiled.register_fake
def _(potential, log_preference, order, fixed, csiszar):
    parts = [part.shape for part in (potential, log_preference) if part is not None]
    shape = torch.broadcast_shapes(*parts)
    if order is not None:
        shape = torch.broadcast_shapes(shape, (*order.shape[:-1], shape[-1]))
    return potential.new_empty(shape)


_compiled.register_autograd(_backward, setup_context=_setup)
