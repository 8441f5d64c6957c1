r"""The exact solver: mixing, Newton's method if that stalls, and float64 if rounding limits the accuracy.

A row has converged when its certificate, :math:`\alpha\lVert z - \lambda/\alpha - s(\lambda)\rVert` and a bound on the
rounding errors of it, is at most ``tol`` times ‖λ‖. The methods are described in ``docs/exact-solver.md``; in detail:

* Mixing: a row leaves when its residual fails to halve a fourth time, and all leave after twelve iterations. Over
  templates :math:`p_i - u_i` in the shift is computed by ``expm1`` if potentials are small, which avoids a difference
  of means.
* Newton's direction: conjugate gradients to a relative residual of 1/20, and a Cholesky factor for rows that need
  more than k/4 + 16 iterations, up to 1,024 coordinates.
* Line search: the slope :math:`\langle\nabla\mathcal D, \delta\rangle - t\lVert\delta\rVert^2/\alpha
  - \langle s(\lambda + t\delta) - s(\lambda), \delta\rangle` decreases in t; a safeguarded Newton's method from t = 1
  reduces it to a tenth. A step is at most :math:`\alpha\langle\nabla\mathcal D, \delta\rangle/\lVert\delta\rVert^2` and
  0.95 of the way to the border of the domain.
* Kinks: if weights can be 0, then after a step of at most a quarter of its direction the next curvature is the mean
  of those on both sides.
* Path in α: if :math:`\alpha\lVert t\rVert^2 \ge 10^4`, steps can alternate between vertices of the simplex. Rows
  that have not converged after twelve steps restart at a small α, over templates :math:`1/\max\lVert t - c\rVert^2`,
  and multiply it by 8, with at most five steps each.
* Precision: rows stop in the problem's dtype below half the tolerance, or at the resolution of the dtype. Rows with
  too large a bound on rounding continue in float64; if it exceeds half of the tolerance there, they are solved to a
  tenth of the tolerance. Over templates, with the notation of :mod:`fenchel.estimate` and R = max ρ, the bound is
  :math:`2R((\kappa_k + 8)\epsilon LR + (\kappa_n + 8 + 4\max\lvert\log u\rvert)\epsilon)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fenchel.blocks import Part
from fenchel.errors import ConvergenceError
from fenchel.family import Block, Point
from fenchel.tensors import dot, index_of, norm, reference_norm, total, values_are_known

# Maximum number of fixed-point iterations; rows of trained models take 3 to 5.
MAX_MIXINGS = 12

DAMPING = 0.8

# Regularisation of the products of differences of residuals, relative to them.
RIDGE = 1e-5

# Number of times the residual of a row may fail to halve before Newton's method takes over the row.
MAX_STALLS = 3

# Share of unconverged rows at which mixing ends and Newton's method takes over.
MIN_ACTIVE_SHARE = 0.005

# Number of rows below which mixing continues with all of them.
MIN_ROWS_TO_COMPACT = 512

# Fraction of the tolerance at which a row stops; the rest is for rounding.
STOP_FRACTION = 0.5

# Newton steps before a row restarts on the path in α.
STEPS_BEFORE_PATH = 12

# Fraction of the tolerance tried next if rounding leaves too little of it.
RETRY_FRACTION = 0.1

# Multiple of the rounding of λ below which residuals are not resolved.
RESOLUTION = 8

# Step length up to which a step is assumed to have ended at a kink of the gradient.
KINK_STEP = 0.25

# Share of unconverged rows at which the others leave the batch.
COMPACT_BELOW = 0.5

# Factor by which α grows on the path.
ALPHA_FACTOR = 8.0

# Maximum number of Newton steps of a stage of the path, to a relative accuracy of a fifth.
STEPS_PER_ALPHA = 5

# Largest number of coordinates for which Hessians are factorised query by query.
FACTORISE_UP_TO = 1024

# Condition number above which a Cholesky factor is inaccurate in directions of small curvature.
ILL_CONDITIONED = 1e12

# Iterations of conjugate gradients, and points of a line, between two tests of convergence on accelerators.
ITERATIONS_PER_TEST, POINTS_PER_TEST = 4, 2

# Maximum number of evaluations of a line search.
MAX_POINTS = 40

# Fraction of the tolerance to which problems are solved: a margin, since the certificate is evaluated again.
MARGIN = 0.7


@dataclass(frozen=True, eq=False)
class Solution:
    """Dual points of a block of rows, (g, r, ...).

    Attributes:
        dual: λ, (g, r, k), in the dtype in which it was last computed.
        error: Bound on ‖λ - λ*‖, (g, r, 1): infinite where unknown.
        moving: Rows that do not meet the tolerance, bool (g, r, 1).
        steps: Mixings and Newton steps, int64 (g, r).
        further: The next point of mixing, (g, r, k), about one iteration more accurate; ‖dual - further‖ is within the
            error. ``dual`` where Newton's method was used.
    """

    dual: Tensor
    error: Tensor
    moving: Tensor
    steps: Tensor
    further: Tensor

    def with_rows(self, part: Part, later: Solution, asked: Tensor) -> Solution:
        """The same with improved results for the rows of a part marked in ``asked``, bool (g, r)."""
        asked = part.pick(asked)
        better = asked.unsqueeze(-1) & (later.error <= part.pick(self.error))

        def put(name: str) -> Tensor:
            before = part.pick(getattr(self, name))
            return part.put(getattr(self, name), torch.where(better, getattr(later, name), before))

        steps = part.put(self.steps, part.pick(self.steps) + later.steps * asked)
        return Solution(put("dual"), put("error"), put("moving"), steps, put("further"))


@dataclass(frozen=True)
class Rows:
    """Rows to solve in one dtype.

    Attributes:
        block: The rows, with the problem's α, or that of a stage of the path.
        wanted: Rows to solve, bool (g, r, 1).
        tol: Relative tolerance.
    """

    block: Block
    wanted: Tensor
    tol: float

    @cached_property
    def alpha(self) -> Tensor:
        """α, (g, r, 1)."""
        return self.block.alpha.expand_as(self.block.evidence[..., :1])

    def take(self, part: Part) -> Rows:
        """Some of them."""
        return replace(self, block=self.block.take(part), wanted=part.pick(self.wanted))

    @cached_property
    def _first(self) -> Tensor:
        """‖αz‖."""
        return self._with_outside(self.alpha * norm(self.block.evidence))

    def _with_outside(self, length: Tensor) -> Tensor:
        """Lengths, including the part outside the coordinates."""
        return length if self.block.beyond is None else torch.hypot(length, self.block.beyond)

    def reference(self, lam: Tensor) -> Tensor:
        """The norm that the tolerance is relative to: ‖λ‖, or ‖αz‖ if λ is zero to rounding."""
        return reference_norm(self._with_outside(norm(lam)), self._first)

    def moving(self, lam: Tensor, residual: Tensor) -> Tensor:
        """Wanted rows whose residual is above the tolerance, bool (g, r, 1)."""
        # Residuals that the dtype cannot resolve are left to float64.
        enough = max(STOP_FRACTION * self.tol, RESOLUTION * torch.finfo(lam.dtype).eps)
        return self.wanted & ~(residual <= enough * self.reference(lam))

    def bound(self, lam: Tensor, residual: Tensor, *, accurate: bool) -> Tensor:
        """The certificate: the residual and a bound on its rounding."""
        family, eps, reference = self.block.family, torch.finfo(lam.dtype).eps, self.reference(lam)
        residual = residual + 4 * eps * norm(lam)
        if self.block.wide is not None:
            residual = residual + eps * self._first
        bound = residual + self.alpha * family.rounding(lam, accurate=accurate)
        if accurate and bool(((bound > self.tol * reference) & (residual <= self.tol * reference)).any()):
            of_rows = family.at(lam).rounding_errors().shift.unsqueeze(-1)
            bound = torch.fmin(bound, residual + self.alpha * of_rows)
        return bound


def infer(
    block: Block, *, tol: float, max_steps: int, shift: Tensor | None = None
) -> tuple[Solution, Tensor]:
    """Maximise the dual for every row.

    Args:
        block: The rows, in the dtype in which the solver starts.
        tol: Relative tolerance on λ.
        max_steps: Maximum number of steps of a row.
        shift: s at the first-order point, (g, r, k), if known; for families that start there.

    Returns:
        The solution, and the norms that the tolerance is relative to, (g, r, 1).
    """
    family, evidence = block.family, block.evidence
    zero = evidence.abs().amax(-1, keepdim=True) == 0
    lam = family.start(block.alpha * evidence, evidence).masked_fill(zero, 0)
    error = torch.full_like(evidence[..., :1], torch.inf).masked_fill(zero, 0)
    steps = torch.zeros(evidence.shape[:-1], dtype=torch.int64, device=evidence.device)
    result = Solution(lam, error, ~zero, steps, lam)
    # Rows for Newton's method: those for which mixing has ended, or all if a step has a closed form.
    hard = torch.full_like(zero, family.inverts)
    for dtype in dict.fromkeys((evidence.dtype, torch.float64)):
        wide = dtype == torch.float64
        for newton in (False, True):
            if newton and not (wide or family.bounds_float32):
                continue
            asked = (result.moving & (hard == newton)).squeeze(-1)
            part = Part.of(asked, whole=not family.selectable)
            if part is None:
                continue
            dual, error, further = (x.to(dtype) for x in (result.dual, result.error, result.further))
            result = replace(result, dual=dual, error=error, further=further)
            wanted = part.pick(asked).unsqueeze(-1)
            rows = Rows((block if part.is_all else block.take(part)).to(dtype), wanted, tol)
            point, budget = part.pick(result.dual), max_steps - part.pick(result.steps)
            if newton:
                later = _follow(rows, point, budget)
            else:
                known = None if shift is None or dtype != evidence.dtype else part.pick(shift)
                later = _mix(rows, point, budget, known)
            short = ~(later.error <= tol * rows.reference(later.dual))
            result = result.with_rows(part, replace(later, moving=short), asked)
            # Rows that converged by mixing are evaluated in float64; others go to Newton's method.
            left = short if newton or wide else short & later.moving
            hard = part.put(hard, part.pick(hard) | (wanted & left))
    whole = Rows(block.to(result.dual.dtype), ~zero, tol)
    return result, whole.reference(result.dual)


def solved_block(block: Block, tol: float, max_steps: int) -> tuple[Tensor, Tensor]:
    """The exact dual points of a block, and the steps of each row, int64 (g, r).

    Args:
        block: The rows, in the problem's dtype.
        tol: Relative tolerance on λ, with a margin for a certificate by another evaluation.
        max_steps: Maximum number of steps of a row.
    """
    result, _ = infer(block, tol=MARGIN * tol, max_steps=max_steps)
    return result.dual, result.steps


def check_reached(missed: Tensor, error: Tensor, tol: float, max_steps: int, remedy: str) -> None:
    """Raise if queries did not meet a tolerance.

    Args:
        missed: These queries, bool.
        error: Bounds on the errors of dual points, relative to their lengths.
        tol: The tolerance.
        max_steps: Maximum number of steps.
        remedy: Advice, after "to continue".

    Raises:
        ConvergenceError: If so; the message has their number and the worst one.
    """
    if not bool(missed.any()):
        return
    error = error.nan_to_num(nan=torch.inf).masked_fill(~missed, -torch.inf)
    worst = index_of(error.argmax(), error.shape)
    raise ConvergenceError(
        f"{int(missed.sum())} of {missed.numel()} queries did not reach dual_error <= {tol:g} ||dual|| within "
        f"{max_steps} steps (worst at index {worst}: {float(error[worst]):.2e}). To continue, {remedy}"
    )


def ascended(block: Block, tol: float, max_steps: int) -> tuple[Tensor, Tensor]:
    """The same as :func:`solved_block`, by gradient ascent."""
    family, alpha = block.family, block.alpha.expand(*block.evidence.shape[:-1], 1)
    bound, first = block.family.smoothness(), alpha * block.evidence
    least = torch.zeros_like(alpha) if bound is None else (1 / (1 / alpha + bound)).expand_as(alpha)
    step = alpha if bound is None else least
    dual = family.start(first, block.evidence)
    steps = torch.zeros(alpha.shape[:-1], dtype=torch.int64, device=alpha.device)

    def slope(at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gradient = block.evidence - at / alpha - family.at(at).shift
        size = norm(gradient)
        reference = reference_norm(norm(at), norm(first))
        return gradient, size, alpha * size > MARGIN * tol * reference

    gradient, size, going = slope(dual)
    while bool(going.any()) and int(steps.max()) < max_steps:
        tried = dual + step * gradient
        new_gradient, new_size, new_going = slope(tried)
        kept = ((new_size < size) | (step <= least)) & going
        step = torch.where(kept, 2 * step, torch.where(going, torch.maximum(step / 2, least), step))
        steps += going.squeeze(-1)
        dual, gradient = torch.where(kept, tried, dual), torch.where(kept, new_gradient, gradient)
        size, going = torch.where(kept, new_size, size), torch.where(kept, new_going, going)
    return dual, steps


def _mix(rows: Rows, lam: Tensor, budget: Tensor, shift: Tensor | None = None) -> Solution:
    r"""Damped fixed point :math:`\lambda \leftarrow \alpha(z - s(\lambda))` with Anderson extrapolation (fact 15).

    One evaluation per iteration. Rows whose residuals do not decrease to the tolerance are still moving.

    Args:
        rows: The rows.
        lam: Where to start, (g, r, k).
        budget: Maximum number of steps of each row, (g, r).
        shift: s at the start, if it is known.
    """
    best = further = lam
    residual = torch.full_like(lam[..., :1], torch.inf)
    misses, falling = torch.zeros_like(residual, dtype=torch.int8), residual > 0
    steps, history, larger = torch.zeros_like(budget), [], []
    count, most, known = 0, min(MAX_MIXINGS, int(budget.max())), values_are_known(lam)

    def result() -> Solution:
        bound = rows.bound(best, residual, accurate=False)
        return Solution(best, bound, moving, torch.minimum(steps, budget), torch.where(moving, best, further))

    while True:
        shift = rows.block.family.shift(lam) if shift is None else shift
        r, shift = rows.alpha * (rows.block.evidence - shift) - lam, None
        size = norm(r)
        # A row keeps its point once it reaches the tolerance or stops decreasing, independent of other rows.
        better = falling & (size < residual)
        misses = misses + ~(size < 0.5 * residual)
        damped = torch.add(lam, r, alpha=DAMPING)
        following = _extrapolated(r, damped, history)
        usable = total(following).isfinite()
        following = following if known and bool(usable.all()) else torch.where(usable, following, damped)
        every = known and bool(better.all())
        best = lam if every else torch.where(better, lam, best)
        further = following if every else torch.where(better, following, further)
        residual = torch.where(better, size, residual)
        moving = rows.moving(best, residual)
        falling = falling & (misses <= MAX_STALLS) & moving
        share = float(falling.to(lam.dtype).mean())
        if share <= MIN_ACTIVE_SHARE or count >= most:
            break
        count, steps = count + 1, steps + falling.squeeze(-1)
        history, lam = [(r, damped), *history][:2], following
        if share <= COMPACT_BELOW and falling.numel() >= MIN_ROWS_TO_COMPACT and rows.block.family.selectable:
            part = Part.of(falling.squeeze(-1), whole=False)
            assert part is not None  # noqa: S101 -- some fall
            larger.append((result(), part, falling.squeeze(-1)))
            rows = replace(rows.take(part), wanted=part.pick(falling))
            history = [(part.pick(r), part.pick(x)) for r, x in history]
            lam, best, further, residual, misses, budget = map(
                part.pick, (lam, best, further, residual, misses, budget)
            )
            steps, falling = torch.zeros_like(budget), torch.ones_like(rows.wanted)
    solution = result()
    for whole, part, asked in reversed(larger):
        solution = whole.with_rows(part, solution, asked)
    return solution


def _extrapolated(r: Tensor, damped: Tensor, history: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The next point of mixing, from residual and damped step here and at the last one or two points."""
    if not history:
        return damped
    least = torch.finfo(r.dtype).tiny
    first = r - history[0][0]
    a, p = dot(first, first), dot(first, r)
    if len(history) == 1:
        return torch.addcmul(damped, p / (a * (1 + RIDGE)).clamp(min=least), history[0][1] - damped)
    second = r - history[1][0]
    b, c, q = dot(first, second), dot(second, second), dot(second, r)
    ridge = RIDGE / 2 * (a + c)
    a, c = a + ridge, c + ridge
    determinant = (a * c - b * b).clamp(min=least)
    result = torch.addcmul(damped, (p * c - q * b) / determinant, history[0][1] - damped)
    return result.addcmul_((q * a - p * b) / determinant, history[1][1] - damped)


def _follow(rows: Rows, lam: Tensor, budget: Tensor) -> Solution:
    """Newton's method; rows that do not converge follow the path of solutions from a small α."""
    result = _newton(rows, lam, budget.clamp(max=STEPS_BEFORE_PATH))
    every, far = Part(None, None), result.moving & (budget > result.steps).unsqueeze(-1)
    if lam.dtype == torch.float64 and bool(far.any()):
        alpha = torch.minimum(rows.alpha, rows.block.family.safe_alpha(rows.alpha * rows.block.evidence))
        point = rows.block.family.start(alpha * rows.block.evidence, rows.block.evidence)
        while bool((alpha < rows.alpha).any()):
            stage = Rows(replace(rows.block, alpha=alpha), far, 0.4)
            point = _newton(stage, point, torch.full_like(budget, STEPS_PER_ALPHA)).dual
            alpha = torch.minimum(ALPHA_FACTOR * alpha, rows.alpha)
        last = _newton(rows, point, (budget - result.steps) * far.squeeze(-1))
        result = result.with_rows(every, last, far.squeeze(-1))
    result = replace(result, error=rows.bound(result.dual, result.error, accurate=True))
    # If rounding takes more than its share of the tolerance, the residual gets less.
    short = rows.wanted & ~(result.error <= rows.tol * rows.reference(result.dual))
    if lam.dtype == torch.float64 and bool(short.any()):
        closer = replace(rows, tol=RETRY_FRACTION * rows.tol, wanted=short)
        last = _newton(closer, result.dual, (budget - result.steps).clamp(max=STEPS_BEFORE_PATH))
        last = replace(last, error=rows.bound(last.dual, last.error, accurate=True))
        result = result.with_rows(every, last, short.squeeze(-1))
    return result


def _newton(rows: Rows, lam: Tensor, budget: Tensor) -> Solution:
    """Newton's method with an exact line search; the error of the result is only the residual."""
    best, residual = lam, torch.full_like(rows.alpha, torch.inf)
    since = torch.zeros_like(residual)
    patience = 9 if lam.dtype == torch.float64 else 3
    steps = torch.zeros(lam.shape[:-1], dtype=torch.int64, device=lam.device)
    tiny = torch.finfo(lam.dtype).tiny
    here, length = None, None
    while True:
        here = rows.block.family.at(lam, here, None if length is None else length < KINK_STEP)
        gradient = rows.block.evidence - lam / rows.alpha - here.shift
        size = norm(gradient)
        scaled = rows.alpha * size
        since = torch.where(scaled < 0.9 * residual, 0, since + 1)
        better = scaled < residual
        best, residual = torch.where(better, lam, best), torch.where(better, scaled, residual)
        moving = rows.moving(best, residual)
        going = moving & (since < patience) & (steps < budget).unsqueeze(-1)
        part = Part.of(going.squeeze(-1), whole=not rows.block.family.selectable)
        if part is None:
            break
        if part.pick(going).numel() <= COMPACT_BELOW * going.numel():
            some = replace(rows.take(part), wanted=part.pick(going))
            later = _newton(some, part.pick(lam), part.pick(budget - steps))
            return Solution(best, residual, moving, steps, best).with_rows(part, later, going.squeeze(-1))
        # The unit of the line search; avoids underflow for small evidence.
        size = size.clamp(min=tiny)
        unit = gradient / size
        direction = newton_direction(here, unit, rows.alpha, rtol=0.05)
        length = _line(here, direction, size, unit, rows.alpha)
        lam = lam + torch.where(length.isfinite() & going, length, 0) * size * direction
        steps += going.squeeze(-1)
    return Solution(best, residual, moving, steps, best)


def newton_direction(
    here: Point,
    vector: Tensor,
    alpha: Tensor,
    *,
    rtol: float,
    most: int | None = None,
    slack: float = 2.0,
    unsure: list[Tensor] | None = None,
) -> Tensor:
    r""":math:`(I/\alpha + \nabla^2\varphi)^{-1}v`, (g, r, k), to ``rtol`` of v.

    In closed form if there is one; else by at most ``most`` iterations of conjugate gradients, and by Cholesky
    factorisation for rows that end above ``slack`` times ``rtol``. If a list ``unsure`` is given, no value is read and
    nothing is factorised; whether some row needs a factorisation is appended to the list.
    """
    closed = here.resolvent(alpha, vector)
    if closed is not None:
        return closed
    k = vector.shape[-1]
    most = k // 4 + 16 if most is None else most
    each = 1 if values_are_known(vector) else ITERATIONS_PER_TEST if unsure is None else most
    result = conjugate_gradients(here.product, vector, alpha, rtol, most, each)
    apart = norm(vector - result / alpha - here.product(result))
    missed = ~(apart <= slack * rtol * norm(vector)).squeeze(-1)
    if unsure is not None:
        unsure.append(missed.any())
        return result
    if k > FACTORISE_UP_TO or not bool(missed.any()):
        return result
    inverse_alpha = 1 / alpha.expand_as(vector[..., :1])[missed]
    solution = factorised(here.matrices(missed), vector[missed].unsqueeze(-2), inverse_alpha).squeeze(-2)
    return result.index_put((missed,), torch.where(total(solution).isfinite(), solution, result[missed]))


def factorised(matrices: Tensor, rows: Tensor, shift: float | Tensor = 1.0) -> Tensor:
    r"""Rows (any, r, k) times :math:`(A + cI)^{-1}`, by Cholesky factors.

    Args:
        matrices: A, symmetric and positive semi-definite, (any, k, k).
        rows: (any, r, k).
        shift: c > 0, a number or (any, 1).
    """
    shifts = torch.as_tensor(shift, dtype=rows.dtype, device=rows.device).expand(matrices.shape[:-1])
    shifted = matrices + torch.diag_embed(shifts)
    factors, failed = torch.linalg.cholesky_ex(shifted)
    solution = torch.cholesky_solve(rows.mT, factors).mT
    condition = shifted.diagonal(dim1=-2, dim2=-1).amax(-1) / shifts[..., 0]
    singular = (failed != 0) | ~(condition <= ILL_CONDITIONED)
    if bool(singular.any()):
        # Rounding perturbs directions without curvature; no exact eigenvalue is below the shift.
        values, basis = torch.linalg.eigh(shifted[singular].nan_to_num(0, 0, 0))
        values = torch.maximum(values, shifts[singular]).unsqueeze(-2)
        solution = solution.index_put((singular,), (rows[singular] @ basis / values) @ basis.mT)
    return solution


def solved(
    here: Point, vector: Tensor, alpha: Tensor, *, rtol: float = 0.0, unsure: list[Tensor] | None = None
) -> Tensor:
    r""":math:`(I/\alpha + \nabla^2\varphi)^{-1}v`, (g, r, k), to ``rtol`` of v of any size, or to rounding.

    For ``unsure`` see :func:`newton_direction`.
    """
    size = norm(vector).clamp(min=torch.finfo(vector.dtype).tiny)
    least = 8 * torch.finfo(vector.dtype).eps
    rtol = max(rtol, least)
    slack = max(2.0, 64 * least / rtol)
    return size * newton_direction(here, vector / size, alpha, rtol=rtol, most=60, slack=slack, unsure=unsure)


def conjugate_gradients(
    product: Callable[[Tensor], Tensor], vector: Tensor, alpha: Tensor, rtol: float, most: int, each: int = 1
) -> Tensor:
    r""":math:`(I/\alpha + A)^{-1}v` for the operator ``product`` of A, to ``rtol`` of v for each row (g, r, k).

    Convergence is tested every ``each`` iterations; rows that have converged do not change.
    """
    tiny = torch.finfo(vector.dtype).tiny
    result, residual, direction = torch.zeros_like(vector), vector, vector
    square = dot(vector, vector)
    stop = rtol**2 * square
    for count in range(1, most + 1):
        image = direction / alpha + product(direction)
        length = torch.where(square > stop, square / dot(direction, image).clamp(min=tiny), 0)
        result, residual = result + length * direction, residual - length * image
        following = dot(residual, residual)
        if count % each == 0 and (count == most or not bool((following > stop).any())):
            break
        direction, square = residual + following / square.clamp(min=tiny) * direction, following
    return result


def _line(here: Point, direction: Tensor, size: Tensor, unit: Tensor, alpha: Tensor) -> Tensor:
    """The step length that maximises the dual along a direction, to a tenth of its slope.

    By Newton's method from t = 1, safeguarded by a bracket from strong concavity. It needs no values of the dual, and
    ends when the slope is rounding error.
    """
    tiny = torch.finfo(size.dtype).tiny
    slope, curvature = (
        dot(unit, direction).clamp(min=0),
        (dot(direction, direction) / alpha).clamp(min=tiny),
    )
    low, high = torch.zeros_like(slope), slope / curvature
    reach = here.reach(size * direction)
    if reach is not None:
        high = torch.minimum(high, 0.95 * reach)
    look, noise = here.along(direction, size)
    each = 1 if values_are_known(high) else POINTS_PER_TEST
    t, enough = torch.minimum(torch.ones_like(low), high), torch.maximum(0.1 * slope, noise)
    for count in range(MAX_POINTS):
        moved, derivative = look(t)
        rest = slope - t * curvature - moved
        done = rest.abs() <= enough
        if (count + 1) % each == 0 and bool(done.all()):
            break
        low, high = torch.where(rest > 0, t, low), torch.where(rest > 0, high, t)
        newton = t + rest / (curvature + derivative)
        # Newton's method is slow where the slope grows exponentially.
        inside = (newton > low) & (newton < high) & (count < 3 or count % 2 == 0)
        t = torch.where(done, t, torch.where(inside, newton, (low + high) / 2))
    return t
