r"""Sparse weights as an operation that is differentiable in potential, preference and order, eager and compiled.

On the support of p the weights solve :math:`\ln_a`-linear equations; every derivative is therefore one product with the
curvature at p (fact 12), :math:`H = \operatorname{diag} q - qq^\top/\sum q`. With the gradient g of p and y = Hg,

.. math:: \partial f = y, \qquad \partial\log u = u^a y, \qquad
          \partial a = \sum_i y_i\,\bigl(\partial_a\ln_a u_i - \partial_a\ln_a p_i\bigr)

for the Bregman form, with :math:`q = p^{1-a}`; for Csiszár's :math:`q = u^a p^{1-a}`,
:math:`\partial\log u = (p/u)^a y` and :math:`\partial a = -\sum_i y_i\,\partial_a\ln_a(p_i/u_i)`. At kinks, where p_i
becomes 0, this is the one-sided derivative on the side where p_i = 0.

Weights are computed from a threshold τ. For :math:`a = \beta - 1 \in [0, 1]` and a potential f,

.. math:: p_i = w_i\,[x_i - \tau]_+^{1/a}, \qquad \sum_i p_i = 1,

with :math:`x = af + u^a,\ w = 1` (Bregman) or :math:`x = af,\ w = u` (Csiszár). Then :math:`N(\tau) = (\sum_i p_i)^a`
is a weighted norm of :math:`[x - \tau]_+`, convex and decreasing, and piecewise linear at a = 1. Newton's method on N =
1, from the τ at which the largest p is one, increases to the root without overshooting:

.. math:: \tau \leftarrow \tau + \frac{S - S^{1-a}}{Q}, \qquad S = \sum_i p_i, \qquad
          Q = \sum_i w_i\,[x_i - \tau]_+^{1/a - 1}.

At a = 1 this is Michelot's algorithm, which finds the support after finitely many steps; it usually takes three to six.
N of some of the templates is at most N, and so is its root: in the Bregman form the method starts near that of the
largest of every four x. The last step is added to the differences :math:`x_i - \tau` instead of τ.

Deformed logarithms :math:`\ln_a r = (r^a - 1)/a`, whose inverse is :math:`\exp_a(s) = [1 + as]_+^{1/a}`, are functions
of :math:`x = \log r`, smooth in a down to 0, near which the quotients are evaluated by their series.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch  # pyright: ignore[reportAttributeAccessIssue]

from fenchel.arguments import shown
from fenchel.blocks import part_of, spans
from fenchel.errors import ProblemError
from fenchel.preference.abstract import check_together
from fenchel.tensors import HALF, check_entries, check_tensor, is_onnx_export, polynomial, values_are_known


def sparse_weights(
    potential: Tensor, log_preference: Tensor | None, a: float | Tensor, *, csiszar: bool = False
) -> Tensor:
    r"""The weights of a Tsallis closeness of order :math:`\beta = 1 + a` and temperature 1.

    .. math:: p_i = [u_i^a + a(f_i - \tau)]_+^{1/a} \quad\text{(Bregman)}, \qquad
              p_i = u_i\,[1 + a(f_i - \tau)]_+^{1/a} \quad\text{(Csiszár)}, \qquad \sum_i p_i = 1

    Differentiable any number of times in every argument in reverse mode, also under ``torch.compile``, and once in
    forward mode, uncompiled: ``torch.func`` supports ``grad``, ``vjp``, ``jacrev``, ``vmap``, ``jvp``, ``jacfwd`` and
    ``hessian``, but no forward derivative of a forward derivative. Half types are computed in float32.

    Args:
        potential: f, (..., n); -inf where masked.
        log_preference: log u, normalised, broadcasting to (..., n), -inf where masked; uniform if None.
        a: β - 1, from 0 to 1: a number, or a tensor that broadcasts to (..., 1).
        csiszar: Whether the form is Csiszár's instead of Bregman's.

    Returns:
        p, (..., n).

    Raises:
        ProblemError: If an argument is not a tensor, shapes do not broadcast, or a is outside [0, 1]; also for a
            forward derivative of a forward derivative.

    Example:
        >>> sparse_weights(torch.tensor([1.0, 0.5, -1.0]), None, 1.0)          # sparsemax
        tensor([0.7500, 0.2500, 0.0000])
    """
    _check(potential, log_preference, a)
    dtype = potential.dtype
    if dtype in HALF:
        return sparse_weights(potential.float(), log_preference, a, csiszar=csiszar).to(dtype)
    if log_preference is not None:
        log_preference = log_preference.to(dtype)
    if isinstance(a, Tensor):
        a = a.to(dtype)
    order, fixed = (a, -1.0) if isinstance(a, Tensor) else (None, float(a))
    if is_onnx_export():
        return threshold_weights(potential, log_preference, order, fixed, csiszar)
    if torch.compiler.is_compiling():
        return _compiled(potential, log_preference, order, fixed, csiszar)
    return _Eager.apply(potential, log_preference, order, fixed, csiszar)


def _check(potential: Any, log_preference: Any, a: Any) -> None:
    check_tensor("potential", potential, "(..., n), one score for each template", sizes=(..., None))
    shapes = {"potential": potential.shape}
    if log_preference is not None:
        check_tensor("log_preference", log_preference, "that broadcasts to (..., n), or None")
        shapes["log_preference"] = log_preference.shape
    if isinstance(a, Tensor):
        sizes = (..., 1) if a.dim() else ()
        check_tensor("a", a, "a number, or one order for all scores of a row", sizes=sizes)
        shapes["a"] = a.shape
        check_entries("a", a, lambda x: (x >= 0) & (x <= 1), "orders less 1, from 0 to 1")
    elif not isinstance(a, (int, float)) or not 0 <= a <= 1:
        raise ProblemError(f"a is {shown(a)}; expected the order less 1, from 0 to 1")
    check_together("", "shapes do not broadcast to (..., n)", **shapes)


def curvature_weights(
    weights: Tensor, log_preference: Tensor | None, a: float | Tensor, *, csiszar: bool
) -> Tensor:
    r"""The q of the curvature :math:`\operatorname{diag} q - qq^\top/\sum q` at weights p (..., n), 0 where p is 0."""
    if isinstance(a, float) and a == 1 and not csiszar:
        return weights.sign()
    if isinstance(a, float) and a == 0.5 and not csiszar:
        return weights.clamp(min=torch.finfo(weights.dtype).tiny).sqrt() * weights.sign()
    positive, log_p = log_of_positive(weights)
    exponent = (1 - a) * log_p
    if csiszar:
        exponent = exponent + a * _log_u(log_preference, weights)
    return torch.where(positive, exponent.exp(), 0)


def _log_u(log_preference: Tensor | None, weights: Tensor) -> Tensor:
    """Log u, 0 where masked."""
    if log_preference is None:
        return torch.zeros_like(weights).log_softmax(-1)
    return torch.where(log_preference < LEAST_LOG_WEIGHT, 0, log_preference)


def _as_potential(
    weights: Tensor,
    log_preference: Tensor | None,
    a: float | Tensor,
    csiszar: bool,
    needed: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """Changes of the potential with the effect of a unit change of log u, and of a, (..., n); None if not needed."""
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


def _is_nested_jvp() -> bool:
    """Whether ``torch.func.jvp``, which ``jacfwd`` uses, is applied twice."""
    applied = [transform.key() for transform in _functorch.get_interpreter_stack() or ()]
    return applied.count(_functorch.TransformType.Jvp) > 1


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    weights, log_preference, order = ctx.saved_tensors
    a = ctx.fixed if order is None else order
    y = _of_potential(gradient, weights, log_preference, a, ctx.csiszar)
    needed = (ctx.needs_input_grad[1], ctx.needs_input_grad[2])
    of_preference, of_order = _as_potential(weights, log_preference, a, ctx.csiszar, needed)
    result = [y.sum_to_size(ctx.shape) if ctx.needs_input_grad[0] else None, None, None]
    if of_preference is not None and log_preference is not None:
        result[1] = (of_preference * y).sum_to_size(log_preference.shape)
    if of_order is not None and order is not None:
        result[2] = (of_order * y).sum(-1, keepdim=True).sum_to_size(order.shape)
    return *result, None, None


class _Eager(torch.autograd.Function):
    """For autograd and ``torch.func``."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:
        return threshold_weights(*inputs)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _setup(ctx, inputs, output)
        ctx.save_for_forward(output, inputs[1], inputs[2])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The change of the weights: the curvature times the total change of the potential."""
        if _is_nested_jvp():
            # torch would treat saved tensors as constants.
            raise ProblemError(
                "sparse weights do not support a forward derivative of a forward derivative, which torch computes "
                "incompletely; expected one of the two in reverse mode: torch.func.hessian, or jacfwd of grad"
            )
        weights, log_preference, order = ctx.saved_tensors
        a = ctx.fixed if order is None else order
        potential, preference, of_a = tangents[:3]
        factors = _as_potential(
            weights, log_preference, a, ctx.csiszar, (preference is not None, of_a is not None)
        )
        change = torch.zeros_like(weights) if potential is None else potential
        for factor, tangent in zip(factors, (preference, of_a), strict=True):
            if factor is not None and tangent is not None:
                change = change + factor * tangent
        # Weights of 0 do not change, and tangents of masked entries may not be finite.
        return _of_potential(change.masked_fill(weights == 0, 0), weights, log_preference, a, ctx.csiszar)

    backward = staticmethod(_backward)  # pyright: ignore[reportAssignmentType]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """The mapped dimension becomes a leading one, since rows are independent."""
        dims = max(
            part.dim() - (dim is not None)
            for part, dim in zip(inputs, in_dims, strict=True)
            if isinstance(part, Tensor)
        )

        def leading(part: Any, dim: int | None) -> Any:
            if dim is None:
                return part
            moved = part.movedim(dim, 0)
            return moved.reshape(moved.shape[0], *(1,) * (dims + 1 - moved.dim()), *moved.shape[1:])

        return _Eager.apply(*map(leading, inputs, in_dims)), 0


@torch.library.custom_op("fenchel::sparse_weights", mutates_args=())
def _compiled(
    potential: Tensor, log_preference: Tensor | None, order: Tensor | None, fixed: float, csiszar: bool
) -> Tensor:
    return threshold_weights(potential, log_preference, order, fixed, csiszar)


@_compiled.register_fake
def _(potential, log_preference, order, fixed, csiszar):
    return potential.new_empty(_shape_of(potential, log_preference, order))


_compiled.register_autograd(_backward, setup_context=_setup)


# Log weights below this are masked in every dtype: float32 cannot hold such weights (e⁻⁸⁷ is about 10⁻³⁸).
LEAST_LOG_WEIGHT = -87.0

# Smallest a for which weights are computed from powers of differences; below it logarithms are used.
DIRECT_FROM = 0.1

# The value used for a = 0; the difference is below rounding in both dtypes.
LEAST_ORDER = 1e-30

# Maximum number of steps; up to 13 were observed.
MOST_STEPS = 100

# Number of steps on an accelerator, where convergence is not checked.
STEPS_UNSEEN = 40

# Number of templates from which the threshold starts from that of the largest of every four.
LEAST_COUNT_TO_GROUP = 64

# Size of a working array, which is read and written in every step.
CHUNK_BYTES = 2**19


@torch.no_grad()
def threshold_weights(
    potential: Tensor, log_preference: Tensor | None, order: Tensor | None, fixed: float, csiszar: bool
) -> Tensor:
    r"""Weights that sum to one along the last dimension, without gradient.

    Args:
        potential: f, (..., n), float32 or float64; -inf where masked.
        log_preference: log u, broadcasting to (..., n), normalised, below ``LEAST_LOG_WEIGHT`` where masked; uniform if
            None.
        order: β - 1 in [0, 1], a tensor that broadcasts to (..., 1); None if it is a single number.
        fixed: That number.
        csiszar: Whether the form is Csiszár's instead of Bregman's.

    Returns:
        p, with the broadcast shape.
    """
    a = fixed if order is None else order.to(potential.dtype)
    shape = _shape_of(potential, log_preference, order)
    if isinstance(a, Tensor) and a.numel() == 1 and values_are_known(a):
        a = float(a)
    n = shape[-1]
    if 0 in shape:
        return potential.new_zeros(shape)
    f = potential.expand(shape).reshape(-1, n)
    log_u = None if log_preference is None else _rows(log_preference, shape)
    rows_of_a = _rows(a, (*shape[:-1], 1)) if isinstance(a, Tensor) else a
    if torch.compiler.is_exporting():
        return _solved(f, log_u, rows_of_a, csiszar).reshape(shape)
    result = torch.empty_like(f, memory_format=torch.contiguous_format)
    each = max(1, CHUNK_BYTES // (n * f.element_size())) if f.device.type == "cpu" else len(f)
    spare = f.new_empty(3, each, n) if each < len(f) else None
    for rows in spans(len(f), each):
        log_u_here = None if log_u is None else part_of(log_u, (rows,))
        a_here = part_of(rows_of_a, (rows,)) if isinstance(rows_of_a, Tensor) else rows_of_a
        working = None if spare is None else spare[:, : rows.stop - rows.start]
        result[rows] = _solved(f[rows], log_u_here, a_here, csiszar, working)
    return result.reshape(shape)


def _shape_of(potential: Tensor, log_preference: Tensor | None, order: Tensor | None) -> torch.Size:
    """The shape of the weights."""
    shape = torch.broadcast_shapes(*(x.shape for x in (potential, log_preference) if x is not None))
    return shape if order is None else torch.broadcast_shapes(shape, (*order.shape[:-1], shape[-1]))


def _rows(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """As rows (all or 1, n)."""
    if tensor.dim() < 2 or tensor.shape[:-1].numel() == 1:
        return tensor.reshape(1, -1).expand(1, shape[-1])
    return tensor.expand(shape).reshape(-1, shape[-1])


def _solved(
    f: Tensor, log_u: Tensor | None, a: float | Tensor, csiszar: bool, spare: Tensor | None = None
) -> Tensor:
    if csiszar and f.dtype == torch.float32:
        # Scores may be much larger than their differences.
        log_u = None if log_u is None else log_u.double()
        return _solved(f.double(), log_u, a.double() if isinstance(a, Tensor) else a, csiszar).float()
    least = a
    if isinstance(a, Tensor):
        least = float(a.min()) if values_are_known(a) else 0.0
    if log_u is None and csiszar:
        log_u = torch.zeros_like(f[:1]).log_softmax(-1)
    if least >= DIRECT_FROM:
        return _Powers(f, log_u, 1.0 if least == 1 else a, csiszar, spare).solve()
    clamped = a.clamp(min=LEAST_ORDER) if isinstance(a, Tensor) else max(a, LEAST_ORDER)
    return _Logarithms(f, log_u, clamped, csiszar).solve()


def _from_whole(x: Tensor, whole: Tensor) -> Tensor:
    """Differences from the largest τ at which some p is 1, given the differences (r or 1, n) at which each is 1.

    At this τ the sum of the weights is at least 1. The first of the two differences is exact where it matters.
    """
    first = (x - whole).argmax(-1, keepdim=True)
    return x - x.gather(-1, first) + whole.expand_as(x).gather(-1, first)


class _Powers:
    """Weights by powers of differences, unless a is small.

    Args:
        f: (r, n).
        log_u: (r or 1, n), or None.
        a: A number, or (r, 1).
        csiszar: Whether the form is Csiszár's.
    """

    # Rounding error of a sum of weights, in units of rounding.
    _noise = 8.0

    def __init__(
        self, f: Tensor, log_u: Tensor | None, a: float | Tensor, csiszar: bool, spare: Tensor | None
    ) -> None:
        self._a, self._weight, self._grouped = a, None, not csiszar
        x, self._t, self._q = f.new_empty(3, *f.shape) if spare is None else spare
        self._order = None if isinstance(a, Tensor) else 1 + a
        # Above 0 also where a = 1: then q is 0 outside the support.
        self._power = (1 / a - 1).clamp(min=torch.finfo(f.dtype).tiny) if isinstance(a, Tensor) else 1 / a - 1
        if log_u is None:
            # The largest score is subtracted before scores are multiplied and shifted, which would round them.
            self._x = torch.sub(f, f.amax(-1, keepdim=True), out=x).mul_(a).add_(1)
        elif csiszar:
            masked = log_u < LEAST_LOG_WEIGHT
            self._weight = log_u.masked_fill(masked, -torch.inf).exp()
            x = torch.mul(f, a, out=x).masked_fill_(masked, -torch.inf)
            self._x = _from_whole(x, (log_u.clamp(min=LEAST_LOG_WEIGHT) * -a).exp_())
        else:
            # A comparison of every entry takes longer than the rest.
            if not values_are_known(log_u) or bool(log_u.amin() < LEAST_LOG_WEIGHT):
                f = f.masked_fill(log_u < LEAST_LOG_WEIGHT, -torch.inf)
            torch.sub(f, f.amax(-1, keepdim=True), out=x)
            x = (x if self._order == 2 else x.mul_(a)).add_((log_u * a).exp_())
            self._x = x.sub_(x.amax(-1, keepdim=True).sub_(1))

    def solve(self) -> Tensor:
        """The weights, (r, n)."""
        eps, known = torch.finfo(self._x.dtype).eps, values_are_known(self._x)
        total = step = tau = self._start(known)
        for _ in range(MOST_STEPS if known else STEPS_UNSEEN):
            total, slope = self._sums(tau)
            step = self._step(total, slope)
            # Comparisons with NaN are false.
            going = step.abs() > eps * torch.maximum(self._noise * total / slope, tau)
            if known and not bool(going.any()):
                break
            tau = torch.where(going, tau + step, tau)
        return self._weights(tau.masked_fill(total.isnan(), torch.nan), step)

    def _start(self, known: bool) -> Tensor:
        """A τ from 0 to the root: near the root for the largest of every four differences alone, which is not above."""
        x, n = self._x, self._x.shape[-1]
        tau = torch.zeros_like(x[:, :1])
        if not known or not self._grouped or n < LEAST_COUNT_TO_GROUP:
            return tau
        rest = n % 4
        largest = x[:, : n - rest].unflatten(-1, (4, -1)).amax(1)
        torch.maximum(largest[:, :rest], x[:, n - rest :], out=largest[:, :rest])
        some = copy.copy(self)
        some._x, some._t, some._q = largest, torch.empty_like(largest), torch.empty_like(largest)
        for _ in range(3):
            tau = tau + self._step(*some._sums(tau))
        return tau

    def _step(self, total: Tensor, slope: Tensor) -> Tensor:
        return (total - (1 if self._order == 2 else total.pow(1 - self._a))) / slope

    def _differences(self, tau: Tensor) -> Tensor:
        return torch.sub(self._x, tau, out=self._t).clamp_(min=0)

    def _sums(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        """S and Q, (r, 1)."""
        t = self._differences(tau)
        if self._order == 2:
            if self._weight is None:
                # Differences are the weights: their sum is faster than an inner product.
                return t.sum(-1, keepdim=True), t.sign_().sum(-1, keepdim=True)
            q = torch.sign(t, out=self._q)
        else:
            q = t if self._order == 1.5 else torch.pow(t, self._power, out=self._q)
        if self._weight is not None:
            q = torch.mul(q, self._weight, out=self._q)
        return torch.linalg.vecdot(q, t).unsqueeze(-1), q.sum(-1, keepdim=True)

    def _weights(self, tau: Tensor, step: Tensor) -> Tensor:
        # The last step is too small to be added to τ; differences that were 0 stay 0.
        t = self._differences(tau)
        p = t.addcmul_(torch.sign(t, out=self._q), step, value=-1).clamp_(min=0)
        p = p if self._order == 2 else p.mul_(p) if self._order == 1.5 else p.pow_(1 / self._a)
        return p if self._weight is None else p.mul_(self._weight)


class _Logarithms(_Powers):
    r"""Weights by logarithms of ratios, :math:`p_i = u_i\exp(\log(1 + a c_i(f_i - \tau))/a)`, for small a.

    c is :math:`u^{-a}` for the Bregman form and 1 for Csiszár's. Rounding of large logarithms gives errors by a nearly
    common factor, which is divided out.
    """

    _noise = -4 * LEAST_LOG_WEIGHT
    _grouped = False

    def __init__(self, f: Tensor, log_u: Tensor | None, a: float | Tensor, csiszar: bool) -> None:
        if log_u is None:
            log_u = torch.zeros_like(f[:1]).log_softmax(-1)
        masked = log_u < LEAST_LOG_WEIGHT
        self._a, self._log_u, self._ratio = a, log_u.masked_fill(masked, -torch.inf), None
        rise = torch.expm1(log_u.clamp(min=LEAST_LOG_WEIGHT) * -a)
        # Differences for a weight of 1.
        whole = rise / a
        if not csiszar:
            self._ratio = rise + 1
            whole = whole / self._ratio
        self._x = _from_whole(f.masked_fill(masked, -torch.inf), whole)

    def _step(self, total: Tensor, slope: Tensor) -> Tensor:
        return total * (torch.expm1(-self._a * total.log()) / -self._a) / slope

    def _sums(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        p, rise = self._at(self._x - tau)
        q = p / (rise + 1) if self._ratio is None else p * self._ratio / (rise + 1)
        return p.sum(-1, keepdim=True), q.masked_fill_(p == 0, 0).sum(-1, keepdim=True)

    def _weights(self, tau: Tensor, step: Tensor) -> Tensor:
        p = self._at(self._x - tau - step)[0]
        return p.div_(p.sum(-1, keepdim=True))

    def _at(self, s: Tensor) -> tuple[Tensor, Tensor]:
        rise = (s * self._a if self._ratio is None else s * self._a * self._ratio).clamp_(min=-1)
        return (torch.log1p(rise) / self._a + self._log_u).exp_(), rise


# Size of arguments below which quotients are evaluated by series; above it less than a digit cancels.
SERIES_UP_TO = 0.5

# Number of terms of a series, with a remainder below rounding in float64 at the largest argument.
_TERMS = 16

_RISE = [1 / math.factorial(j + 1) for j in range(_TERMS)]
_SLOPE = [(j + 1) / math.factorial(j + 2) for j in range(_TERMS)]


def _quotient(y: Tensor, coefficients: list[float], numerator: Tensor, power: int) -> Tensor:
    """A numerator divided by a power of y, by its series where y is small."""
    small = y.abs() < SERIES_UP_TO
    by_series = polynomial(torch.where(small, y, 0), coefficients)
    return torch.where(small, by_series, numerator / torch.where(small, 1, y).pow(power))


def deformed_log(log_r: Tensor, a: Tensor | float) -> Tensor:
    r""":math:`\ln_a r` given :math:`\log r`, which is finite.

    Example:
        >>> r = torch.tensor([0.5, 2.0], dtype=torch.float64)
        >>> deformed_log(r.log(), 1.0), deformed_log(r.log(), 0.0)         # r - 1 and log r
        (tensor([-0.5000,  1.0000], dtype=torch.float64), tensor([-0.6931,  0.6931], dtype=torch.float64))
    """
    y = a * log_r
    return log_r * _quotient(y, _RISE, torch.expm1(y), 1)


def slope_of_deformed_log(log_r: Tensor, a: Tensor | float) -> Tensor:
    r""":math:`\partial_a \ln_a r = (a\, r^a \log r - (r^a - 1))/a^2`, which is :math:`\tfrac12\log^2 r` at a = 0."""
    y = a * log_r
    return log_r.square() * _quotient(y, _SLOPE, y * y.exp() - torch.expm1(y), 2)


def log_of_positive(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Whether weights are positive, and their logarithms, 0 where not, with finite gradients."""
    positive = weights > 0
    return positive, torch.where(positive, weights, 1).log()
