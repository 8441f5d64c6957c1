r"""The one way to λ*: mixing, Newton's method for the rows that it leaves, float64 for those that rounding leaves.

A row is done when its certificate says so: :math:`\alpha\lVert z - \lambda/\alpha - s(\lambda)\rVert` and what rounding
can hide in it are at most ``tol`` times ‖λ‖. The methods: ``docs/exact-solver.md``. In detail:

* Mixing: a row leaves when its residual fails to halve twice, all leave after eight iterations. Over templates
  :math:`p_i - u_i` in the shift comes from ``expm1`` where potentials are small, so that no two means are subtracted.
* Newton's direction: conjugate gradients to a relative residual of 1/20, and a Cholesky factor for rows that need more
  than k/4 + 16 iterations, up to 1,024 coordinates.
* Line search: the slope :math:`\langle\nabla\mathcal D, \delta\rangle - t\lVert\delta\rVert^2/\alpha
  - \langle s(\lambda + t\delta) - s(\lambda), \delta\rangle` decreases in t; a safeguarded Newton's method from t = 1
  reduces it to a tenth. A step is at most :math:`\alpha\langle\nabla\mathcal D, \delta\rangle/\lVert\delta\rVert^2` and
  0.95 of the way to the border of the domain.
* Kinks: where weights can be 0, after a step of at most a quarter of its direction the next curvature is the mean of
  those on both sides.
* Path in α: where :math:`\alpha\lVert t\rVert^2 \ge 10^4` steps can alternate between vertices of the simplex. Rows
  that move after twelve steps restart at a small α, over templates :math:`1/\max\lVert t - c\rVert^2`, and multiply it
  by 8, with at most five steps each.
* Precision: rows stop in the problem's dtype below half the tolerance, or at what the dtype resolves. Rows for which
  rounding may hide too much continue in float64; those for which it takes more than half of the tolerance there are
  solved to a tenth of it. Over templates, with the notation of :mod:`fenchel.estimate` and R = max ρ, it may hide
  :math:`2R((\kappa_k + 8)\epsilon LR + (\kappa_n + 8 + 4\max\lvert\log u\rvert)\epsilon)`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from fenchel.blocks import Part
from fenchel.estimate import Certificate, certify
from fenchel.family import Block, Family, Point
from fenchel.tensors import dot, norm, reference_norm, total, values_are_known

MIXINGS = 8
"""Fixed-point iterations at most; rows of trained models take 3 to 5."""

DAMPING = 0.8

RIDGE = 1e-5
"""What is added to the products of differences of residuals, relative to them."""

MISSES = 1
"""Iterations in which the residual of a row may fail to halve before the row is left to Newton's method."""

STRAGGLERS = 0.005
"""Share of rows that is left to Newton's method rather than mixing all of them once more."""

COMPACT_FROM = 512
"""Rows below which mixing goes on with all of them, since it has little to do for each."""

ENOUGH = 0.5
"""Rows at this fraction of the tolerance take no step more; rounding may use the rest."""

PATIENCE = 12
"""Newton steps before a row starts again on the path in α."""

CLOSER = 0.1
"""What part of the tolerance is tried for where that is not enough."""

RESOLVED = 8
"""Roundings of λ below which a residual says little."""

SHORT = 0.25
"""A step of at most this part of a direction ended at a kink, where a gradient has kinks."""

COMPACT_BELOW = 0.5
"""Iterations go on without the rows that are done where at most this share is left."""

STAGE = 8.0
"""Factor by which α grows on the path."""

STEPS_OF_STAGE = 5
"""Newton steps that a stage of the path takes at most, to a fifth of λ."""

FACTORISE_UP_TO = 1024
"""Largest Hessian, in rows and columns, that is factorised query by query."""

ILL_CONDITIONED = 1e12
"""Condition of a Hessian above which its Cholesky factor says little of directions in which it is near 1/α."""

ITERATIONS_A_LOOK, LINES_A_LOOK = 4, 2
"""Conjugate gradients and points of a line from one look at whether they are enough to the next, off the CPU."""

BLOCK_BYTES = 2**26
"""Size aimed at for one array (rows, n) of Newton's method."""

MARGIN = 0.7
"""The part of the tolerance that is aimed at: this certificate and that of an estimate are two evaluations."""


@dataclass(frozen=True, eq=False)
class Solution:
    """Dual points of a block of rows.

    Attributes:
        dual: λ, (g, r, k), in the dtype in which it was last computed.
        error: Bound on ‖λ - λ*‖, (g, r, 1): infinite where nothing is known.
        reference: What a relative tolerance is relative to, (g, r, 1).
        steps: Mixings and Newton steps, int64 (g, r).
        further: Where mixing would go next, about as much nearer as an iteration brings, (g, r, k); ‖dual - further‖ is
            within the error. ``dual`` where Newton's method led there.
    """

    dual: Tensor
    error: Tensor
    reference: Tensor
    steps: Tensor
    further: Tensor


@dataclass(frozen=True)
class Rows:
    """Rows of one problem in one dtype.

    Attributes:
        block: The rows, with the problem's α, or one on the way to it.
        wanted: Which are to be solved, bool (g, r, 1).
        tol: Relative tolerance.
    """

    block: Block
    wanted: Tensor
    tol: float

    @property
    def family(self) -> Family:
        """Φ."""
        return self.block.family

    @property
    def evidence(self) -> Tensor:
        """Z, (g, r, k)."""
        return self.block.evidence

    @cached_property
    def alpha(self) -> Tensor:
        """α, (g, r, 1)."""
        return self.block.alpha.expand_as(self.evidence[..., :1])

    def take(self, part: Part) -> Rows:
        """Some of them."""
        return replace(self, block=self.block.take(part), wanted=part.pick(self.wanted))

    def reference(self, lam: Tensor) -> Tensor:
        """‖λ‖, or ‖αz‖ where λ is zero to rounding."""
        beyond = self.block.beyond
        length = norm(lam) if beyond is None else torch.hypot(norm(lam), beyond)
        return reference_norm(length, self._first)

    @cached_property
    def _first(self) -> Tensor:
        """‖αz‖."""
        first = self.alpha * norm(self.evidence)
        return first if self.block.beyond is None else torch.hypot(first, self.block.beyond)

    def moving(self, lam: Tensor, residual: Tensor) -> Tensor:
        """Wanted rows whose residual is above the tolerance, bool (g, r, 1)."""
        # What a narrow dtype cannot resolve is left to float64.
        enough = max(ENOUGH * self.tol, RESOLVED * torch.finfo(lam.dtype).eps)
        return self.wanted & ~(residual <= enough * self.reference(lam))

    def bound(self, lam: Tensor, residual: Tensor, *, accurate: bool) -> Tensor:
        """The certificate: residual and what rounding can hide."""
        hidden, eps = self.alpha * self.family.rounding(lam, accurate=accurate), torch.finfo(lam.dtype).eps
        if self.block.wide is not None:
            hidden = hidden + eps * self._first
        bound, reference = residual + hidden + 4 * eps * norm(lam), self.reference(lam)
        if accurate and bool(((bound > self.tol * reference) & (residual <= self.tol * reference)).any()):
            closer = self.alpha * self.family.rounding_of_rows(lam)
            bound = torch.fmin(bound, residual + closer + 4 * eps * norm(lam))
        return bound


@dataclass(frozen=True)
class _Found:
    """Where a method arrived: dual points, the bound on their error, which still move, and steps, (g, r, ...)."""

    dual: Tensor
    bound: Tensor
    moving: Tensor
    steps: Tensor
    further: Tensor

    def with_rows(self, part: Part, later: _Found, went: Tensor) -> _Found:
        """The same where some rows, those of a part that are marked in ``went`` (g, r), went on."""
        went = part.pick(went)
        better = went.unsqueeze(-1) & (later.bound <= part.pick(self.bound))

        def put(name: str) -> Tensor:
            before = part.pick(getattr(self, name))
            return part.put(getattr(self, name), torch.where(better, getattr(later, name), before))

        steps = part.put(self.steps, part.pick(self.steps) + later.steps * went)
        return _Found(put("dual"), put("bound"), put("moving"), steps, put("further"))


def infer(block: Block, *, tol: float, max_steps: int, shift: Tensor | None = None) -> Solution:
    """Maximise the dual for every row.

    Args:
        block: The rows; their dtype is the first in which is computed.
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take.
        shift: s at the first-order point, (g, r, k), where it is known already; for families that start at any point.
    """
    family, evidence = block.family, block.evidence
    nothing = evidence.abs().amax(-1, keepdim=True) == 0
    lam = family.start(block.alpha * evidence, evidence).masked_fill(nothing, 0)
    error = torch.full_like(evidence[..., :1], torch.inf).masked_fill(nothing, 0)
    steps = torch.zeros(evidence.shape[:-1], dtype=torch.int64, device=evidence.device)
    rows, at = Rows(block, ~nothing, tol), _Found(lam, error, ~nothing, steps, lam)
    # Rows for Newton's method: those that mixing has left, or all where a step is in closed form.
    hard = torch.full_like(nothing, family.inverts)
    for dtype in dict.fromkeys((evidence.dtype, torch.float64)):
        for method in (_mix, _follow):
            if method is _follow and dtype != torch.float64 and not family.bounds_float32:
                continue
            asked = (at.moving & (hard if method is _follow else ~hard)).squeeze(-1)
            wanted_now = Part.of(asked, whole=not family.selectable)
            if wanted_now is None:
                continue
            at = replace(at, dual=at.dual.to(dtype), bound=at.bound.to(dtype), further=at.further.to(dtype))
            # Newton's method has arrays (rows, n); mixing has none.
            whole = method is _mix or not family.selectable
            parts = [wanted_now] if whole else wanted_now.split(asked, family.width, BLOCK_BYTES)
            for part in parts:
                of_part = part.pick(asked).unsqueeze(-1)
                some = Rows((block if part.is_all else block.take(part)).to(dtype), of_part, tol)
                point, budget = part.pick(at.dual), max_steps - part.pick(at.steps)
                if method is _mix:
                    known = None if shift is None or dtype != evidence.dtype else part.pick(shift)
                    result = _mix(some, point, budget, known)
                else:
                    result = _follow(some, point, budget)
                short = ~(result.bound <= tol * some.reference(result.dual))
                at = at.with_rows(part, replace(result, moving=short), asked)
                # What mixing brought to the tolerance is evaluated in float64; all else goes to Newton's method.
                moved = short if dtype == torch.float64 else short & (result.moving | (method is _follow))
                hard = part.put(hard, part.pick(hard) | (of_part & moved))
    return Solution(
        at.dual,
        at.bound,
        replace(rows, block=block.to(at.dual.dtype)).reference(at.dual),
        at.steps,
        at.further,
    )


def solved_block(block: Block, dtype: torch.dtype, tol: float, max_steps: int) -> tuple[Certificate, Tensor]:
    """The dual points of a block, certified in float64, and the steps that each row took, int64 (g, r).

    Args:
        block: The rows, in the problem's dtype.
        dtype: To which results are rounded.
        tol: Relative tolerance on λ.
        max_steps: Steps that a row may take.
    """
    result = infer(block, tol=MARGIN * tol, max_steps=max_steps)
    return certify(block.to(torch.float64), result.dual.double(), dtype), result.steps


def ascended(block: Block, dtype: torch.dtype, tol: float, max_steps: int) -> tuple[Certificate, Tensor]:
    """What :func:`solved_block` gives, by gradient ascent."""
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
    return certify(block.to(torch.float64), dual.double(), dtype), steps


def _mix(rows: Rows, lam: Tensor, budget: Tensor, shift: Tensor | None = None) -> _Found:
    r"""Damped fixed point :math:`\lambda \leftarrow \alpha(z - s(\lambda))` with Anderson extrapolation (fact 15).

    One evaluation an iteration, less the first where s is known there; rows that do not fall, or not to the tolerance,
    still move.
    """
    best = further = lam
    residual = torch.full_like(lam[..., :1], torch.inf)
    misses, falling = (
        torch.zeros_like(residual, dtype=torch.int8),
        torch.ones_like(residual, dtype=torch.bool),
    )
    counts, history, before = torch.zeros_like(budget), [], []
    step, most, known = 0, min(MIXINGS, int(budget.max())), values_are_known(lam)

    def arrived() -> _Found:
        bound = rows.bound(best, residual, accurate=False)
        return _Found(best, bound, moving, torch.minimum(counts, budget), torch.where(moving, best, further))

    while True:
        shift = rows.family.shift(lam) if shift is None else shift
        r, shift = rows.alpha * (rows.evidence - shift) - lam, None
        size = norm(r)
        # A row stays where it reaches the tolerance or no longer falls, whatever the others do.
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
        falling = falling & (misses <= MISSES) & moving
        share = float(falling.to(lam.dtype).mean())
        if share <= STRAGGLERS or step >= most:
            break
        step += 1
        counts = counts + falling.squeeze(-1)
        history, lam = [(r, damped), *history][:2], following
        if share <= COMPACT_BELOW and falling.numel() >= COMPACT_FROM and rows.family.selectable:
            part = Part.of(falling.squeeze(-1), whole=False)
            assert part is not None  # noqa: S101 -- some fall
            before.append((arrived(), part, falling.squeeze(-1)))
            rows = replace(rows.take(part), wanted=part.pick(falling))
            history = [(part.pick(r), part.pick(x)) for r, x in history]
            lam, best, further, residual, misses = map(part.pick, (lam, best, further, residual, misses))
            budget, falling = part.pick(budget), torch.ones_like(rows.wanted)
            counts = torch.zeros_like(budget)
    result = arrived()
    for whole, part, went in reversed(before):
        result = whole.with_rows(part, result, went)
    return result


def _extrapolated(r: Tensor, damped: Tensor, history: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The point that mixing goes to, given residual and damped step here and at the last one or two points."""
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


def _follow(rows: Rows, lam: Tensor, budget: Tensor) -> _Found:
    """Newton's method; rows that do not arrive follow the path of solutions from a small α."""
    result = _newton(rows, lam, budget.clamp(max=PATIENCE))
    every, far = Part(None, None), result.moving & (budget > result.steps).unsqueeze(-1)
    if lam.dtype == torch.float64 and bool(far.any()):
        alpha = torch.minimum(rows.alpha, rows.family.safe_alpha(rows.alpha * rows.evidence))
        point = rows.family.start(alpha * rows.evidence, rows.evidence)
        while bool((alpha < rows.alpha).any()):
            stage = Rows(replace(rows.block, alpha=alpha), far, 0.4)
            point = _newton(stage, point, torch.full_like(budget, STEPS_OF_STAGE)).dual
            alpha = torch.minimum(STAGE * alpha, rows.alpha)
        last = _newton(rows, point, (budget - result.steps) * far.squeeze(-1))
        result = result.with_rows(every, last, far.squeeze(-1))
    result = replace(result, bound=rows.bound(result.dual, result.bound, accurate=True))
    # Where rounding takes more than its share of the tolerance, the residual gets less.
    short = rows.wanted & ~(result.bound <= rows.tol * rows.reference(result.dual))
    if lam.dtype == torch.float64 and bool(short.any()):
        closer = replace(rows, tol=CLOSER * rows.tol, wanted=short)
        last = _newton(closer, result.dual, (budget - result.steps).clamp(max=PATIENCE))
        last = replace(last, bound=rows.bound(last.dual, last.bound, accurate=True))
        result = result.with_rows(every, last, short.squeeze(-1))
    return result


def _newton(rows: Rows, lam: Tensor, budget: Tensor) -> _Found:
    """Newton's method with an exact line; the bound that it returns is the residual alone."""
    best, residual = lam, torch.full_like(rows.alpha, torch.inf)
    since = torch.zeros_like(residual)
    patience = 9 if lam.dtype == torch.float64 else 3
    steps = torch.zeros(lam.shape[:-1], dtype=torch.int64, device=lam.device)
    tiny = torch.finfo(lam.dtype).tiny
    here, length = None, None
    while True:
        here = rows.family.at(lam, here, None if length is None else length < SHORT)
        gradient = rows.evidence - lam / rows.alpha - here.shift
        size = norm(gradient)
        scaled = rows.alpha * size
        since = torch.where(scaled < 0.9 * residual, 0, since + 1)
        better = scaled < residual
        best, residual = torch.where(better, lam, best), torch.where(better, scaled, residual)
        moving = rows.moving(best, residual)
        going = moving & (since < patience) & (steps < budget).unsqueeze(-1)
        part = Part.of(going.squeeze(-1), whole=not rows.family.selectable)
        if part is None:
            break
        if part.pick(going).numel() <= COMPACT_BELOW * going.numel():
            some = replace(rows.take(part), wanted=part.pick(going))
            later = _newton(some, part.pick(lam), part.pick(budget - steps))
            return _Found(best, residual, moving, steps, best).with_rows(part, later, going.squeeze(-1))
        # The line is measured in it, or small evidence underflows.
        size = size.clamp(min=tiny)
        unit = gradient / size
        direction = newton_direction(here, unit, rows.alpha, rtol=0.05)
        length = _line(here, direction, size, unit, rows.alpha)
        lam = lam + torch.where(length.isfinite() & going, length, 0) * size * direction
        steps += going.squeeze(-1)
    return _Found(best, residual, moving, steps, best)


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

    In closed form where there is one; else by conjugate gradients, at most ``most`` of them, and by Cholesky
    factorisation for the rows where these end above ``slack`` times ``rtol``. With a list ``unsure`` nothing is looked
    at and nothing factorised, and whether some row should be is added to it.
    """
    closed = here.resolvent(alpha, vector)
    if closed is not None:
        return closed
    k = vector.shape[-1]
    most = k // 4 + 16 if most is None else most
    each = 1 if values_are_known(vector) else ITERATIONS_A_LOOK if unsure is None else most
    result = conjugate_gradients(here.product, vector, alpha, rtol, most, each)
    apart = norm(vector - result / alpha - here.product(result))
    missed = ~(apart <= slack * rtol * norm(vector)).squeeze(-1)
    if unsure is not None:
        unsure.append(missed.any())
        return result
    if k > FACTORISE_UP_TO or not bool(missed.any()):
        return result
    inverse_alpha = (1 / alpha.expand_as(vector[..., :1])[missed]).expand(-1, k)
    hessian, right = here.matrices(missed) + torch.diag_embed(inverse_alpha), vector[missed]
    factor, failed = torch.linalg.cholesky_ex(hessian)
    solution = torch.cholesky_solve(right.unsqueeze(-1), factor).squeeze(-1)
    condition = hessian.diagonal(dim1=-2, dim2=-1).amax(-1) / inverse_alpha[:, 0]
    singular = (failed != 0) | ~(condition <= ILL_CONDITIONED)
    if bool(singular.any()):
        # Rounding leaves directions without curvature some; no eigenvalue is below 1/α.
        values, basis = torch.linalg.eigh(hessian[singular].nan_to_num(0, 0, 0))
        along = (
            right[singular].unsqueeze(-2)
            @ basis
            / torch.maximum(values, inverse_alpha[singular]).unsqueeze(-2)
        )
        solution[singular] = (along @ basis.mT).squeeze(-2)
    return result.index_put((missed,), torch.where(total(solution).isfinite(), solution, result[missed]))


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

    Whether all rows are there is looked at every ``each`` iterations; those that are stay where they are.
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


def _line(
    here: Point, direction: Tensor, size: Tensor, unit: Tensor, alpha: Tensor, looks: int = 40
) -> Tensor:
    """The largest of the dual along a direction, to a tenth of its slope: Newton from t = 1, kept in a bracket.

    The line needs no value of the dual; strong concavity bounds the step. A slope that is rounding ends it.
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
    each = 1 if values_are_known(high) else LINES_A_LOOK
    t, enough = torch.minimum(torch.ones_like(low), high), torch.maximum(0.1 * slope, noise)
    for count in range(looks):
        moved, derivative = look(t)
        rest = slope - t * curvature - moved
        done = rest.abs() <= enough
        if (count + 1) % each == 0 and bool(done.all()):
            break
        low, high = torch.where(rest > 0, t, low), torch.where(rest > 0, high, t)
        newton = t + rest / (curvature + derivative)
        # Newton's method creeps where the slope grows like an exponential.
        inside = (newton > low) & (newton < high) & (count < 3 or count % 2 == 0)
        t = torch.where(done, t, torch.where(inside, newton, (low + high) / 2))
    return t
