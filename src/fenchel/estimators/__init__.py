"""Estimators of the dual point λ, and the inference problem that they solve.

Problems and ops accept them by name, ``first_order``, ``second_order``, ``exact`` and for problems ``gradient_ascent``
and ``constrained``, or as objects with options: ``Exact(tol=1e-6)``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.closeness import AbstractCloseness
from fenchel.cumulants import CumulantFamily
from fenchel.errors import DomainError, ProblemError
from fenchel.estimate import Estimate, estimate_of
from fenchel.estimators.exact_solver import ascended, check_reached, solved_block
from fenchel.estimators.implicit import AbstractEquation, Expansion, StationaryPoint, second_order_point
from fenchel.family import Block
from fenchel.problem import DEFAULT_MEMORY_BUDGET, P_co, Problem, QueryLayout
from fenchel.reliability import within_radius
from fenchel.tensors import check_flags, check_not_mapped, check_type, checked_argument, index_of, norm

__all__ = [
    "ESTIMATORS",
    "Constrained",
    "Estimator",
    "Exact",
    "FirstOrder",
    "GradientAscent",
    "InferenceProblem",
    "SecondOrder",
    "check_curved",
    "estimator_with",
]


@dataclass(frozen=True, kw_only=True)
class Estimator(ABC):
    """A solver with its options; None is the solver's default.

    Attributes:
        name: Name accepted by problems, ops and layers.
        equation: Residual that is zero at the solution and defines the implicit gradient; None if there is none.
        has_gradients: Whether estimates have gradients.
        memory_budget: Bytes of working memory for solving a problem, besides input and result; ignored by ops.
    """

    memory_budget: int | None = None

    name: ClassVar[str]
    equation: ClassVar[AbstractEquation | None] = None
    has_gradients: ClassVar[bool] = True

    @property
    def options(self) -> dict[str, Any]:
        """The options that are not None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @abstractmethod
    def __call__(self, problem: Problem) -> Estimate:
        """Solve a problem, without gradients."""

    def joined(self, problem: Problem, dual: Tensor) -> Tensor:
        """A dual point of this solver, (..., m, d), with gradients to all tensors of the problem."""
        assert self.equation is not None  # noqa: S101 -- others override this
        return self.equation.joined(problem, dual)

    def _checked(self, problem: Problem) -> int:
        """The memory budget, after checking that the estimator is defined for the problem."""
        check_type("problem", problem, Problem, "a fenchel.InferenceProblem")
        check_curved(problem.closeness, self.name)
        if self.memory_budget is None:
            return DEFAULT_MEMORY_BUDGET
        return checked_argument("memory_budget", self.memory_budget)


def check_curved(closeness: AbstractCloseness, estimator: str) -> None:
    """Raise unless the closeness has the curvature that the estimator needs.

    Raises:
        ProblemError: If its weights are discontinuous and the estimator is not first order.
    """
    if estimator != "first_order" and not closeness.curved:
        raise ProblemError(
            f"closeness is {closeness!r}, whose weights jump; it has no {estimator!r} estimate; expected "
            "estimator='first_order', or a closeness with a small temperature, such as fenchel.Tsallis(2, "
            "temperature=0.01)"
        )


@dataclass(frozen=True, kw_only=True)
class ClosedForm(Estimator):
    """Base class of estimators whose dual points have a closed form."""

    @abstractmethod
    def _points(self, block: Block) -> Tensor:
        """Dual points of a block, (g, r, d), in float64."""

    @override
    def __call__(self, problem: Problem) -> Estimate:
        budget = self._checked(problem)

        def points(problem: Problem) -> Tensor:
            layout = QueryLayout(problem)
            solved = layout.solved(lambda block: {"dual": self._points(block)}, memory_budget=budget)
            return solved["dual"].to(problem.dtype)

        def of_block(block: Block) -> tuple[Tensor, None]:
            dual, family = self._points(block), block.family
            if isinstance(family, CumulantFamily):
                inside = family.preference.inside(dual.to(problem.dtype))
                if inside is not None and not bool(inside.all()):
                    raise _domain_error(problem, points, self.name)
            return dual, None

        return estimate_of(problem, 64 * torch.finfo(problem.dtype).eps, of_block, memory_budget=budget)


def _domain_error(problem: Problem, points: Callable[[Problem], Tensor], name: str) -> DomainError:
    r"""The error for dual points of a closed form outside the domain of log M.

    It has the number of such queries, the one farthest outside, and the largest α admissible for it.

    Args:
        problem: The problem.
        points: Function that returns the dual points of a problem, (..., m, d), in its dtype. If they are inside at
            some α, they have to be inside at all smaller α.
        name: Name of the estimator.
    """
    dual = points(problem)
    inside = problem.preference.inside(dual)
    assert inside is not None  # noqa: S101 -- some are outside
    reach = problem.preference.reach(torch.zeros_like(dual), dual)
    reach = (inside.to(dual.dtype) if reach is None else reach).nan_to_num(nan=0.0)
    outside = (~inside).expand(problem.shape)
    where = index_of(reach.masked_fill(inside, torch.inf).expand(problem.shape).argmin(), problem.shape)
    alpha = float(problem.alpha.expand(problem.shape)[where])
    largest = _largest_alpha(problem, where, alpha, points)
    return DomainError(
        f"{name} puts the dual point of {int(outside.sum())} of {outside.numel()} queries where log M of the "
        f"{type(problem.preference).__name__} preference is infinite or overflows (farthest at index {where}, where "
        f"alpha is {alpha:.6g} and the largest admissible alpha {largest:.6g}): make alpha or the evidence smaller "
        "there, or use the estimator 'exact', which stays inside",
        query=where,
        largest_alpha=largest,
    )


# Bisections of log α, to more than six digits of α.
_HALVINGS = 60


def _largest_alpha(
    problem: Problem, where: tuple[int, ...], alpha: float, points: Callable[[Problem], Tensor]
) -> float:
    """The largest admissible α of a query, to six digits, rounded down to be admissible itself."""
    row = problem.queries(slice(where[-1], where[-1] + 1))

    def is_admissible(tried: float) -> bool:
        trial = row._with_alpha(torch.full_like(row.alpha.expand(row.shape), tried))
        inside = trial.preference.inside(points(trial))
        return inside is None or bool(inside.expand(trial.shape)[(*where[:-1], 0)])

    low, high = -700.0, math.log(alpha)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_admissible(math.exp(middle)) else (low, middle)
    result = math.exp(low)
    unit = 10.0 ** (math.floor(math.log10(result)) - 5)
    return float(f"{(math.ceil(result / unit * (1 - 1e-9)) - 1) * unit:.6g}")


@dataclass(frozen=True, kw_only=True)
class FirstOrder(ClosedForm):
    r"""Take λ = αz: dot-product attention if u is uniform.

    .. math:: \lambda = \alpha z, \qquad \hat h = \sum_i t_i \frac{u_i e^{\alpha\langle t_i, z\rangle}}
              {\sum_j u_j e^{\alpha\langle t_j, z\rangle}}

    Its gap is :math:`\frac\alpha2\lVert\hat h - \mu\rVert^2`: α times half the squared shift of the output (fact 1).

    Returns:
        The estimate with its bounds.

    Raises:
        DomainError: If log M is infinite at αz; the message has the largest admissible α.

    Reference:
        Eqs. (14) and (16).

    Example:
        >>> import torch
        >>> from fenchel import Discrete, FirstOrder, InferenceProblem
        >>> t, z = torch.eye(2, dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
        >>> InferenceProblem(Discrete(t), z).solve(FirstOrder()).weights      # softmax of (1, 0)
        tensor([[0.7311, 0.2689]], dtype=torch.float64)
    """

    name = "first_order"

    @override
    def _points(self, block: Block) -> Tensor:
        return (block.alpha * block.evidence).double()

    @override
    def joined(self, problem: Problem, dual: Tensor) -> Tensor:
        return (problem.alpha_column * problem.evidence).expand_as(dual)


@dataclass(frozen=True, kw_only=True)
class SecondOrder(ClosedForm):
    r"""Take the maximiser of the dual with log M replaced by its second-order expansion (12).

    .. math:: \lambda = \alpha(I + \alpha\Sigma)^{-1} z

    Exact whenever u is Gaussian. Σ is the covariance of u under :class:`~fenchel.KL`, and the curvature
    :math:`\nabla^2\varphi(0)` in general: :math:`\tfrac1\gamma\sum_i u_i\Sigma_i` for optimal transport. In float64.

    Returns:
        The estimate with its bounds.

    Raises:
        DomainError: If log M is infinite at a dual point; the message has the largest admissible α.

    Reference:
        Eq. (13); Appendix D.

    Example:
        >>> import torch
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))       # Σ = 1
        >>> InferenceProblem(u, torch.tensor([[1.0]], dtype=torch.float64)).solve("second_order").dual
        tensor([[0.5000]], dtype=torch.float64)
    """

    name = "second_order"
    equation = Expansion()

    @override
    def _points(self, block: Block) -> Tensor:
        return second_order_point(block.to(torch.float64))


@dataclass(frozen=True, kw_only=True)
class Iterative(Estimator):
    """Base class of estimators that iterate until a tolerance is met.

    Attributes:
        tol: Tolerance on λ relative to ‖λ‖, or to ‖αz‖ if λ is zero to rounding. None is 1e-6 in problems; in ops 1e-5,
            and 1e-10 in float64.
        max_steps: Maximum number of steps of a query.
        throw: Whether to raise if the tolerance is not met, as ops always do; otherwise check ``estimate.converged``.
    """

    tol: float | None = None
    max_steps: int | None = None
    throw: bool = True

    # Default of ``max_steps`` in problems.
    steps: ClassVar[int]

    _solve: ClassVar[Callable[[Block, float, int], tuple[Tensor, Tensor]]] = staticmethod(solved_block)

    def _limits(self) -> tuple[float, int]:
        check_flags(throw=self.throw)
        tol = 1e-6 if self.tol is None else checked_argument("tol", self.tol)
        if self.max_steps is None:
            return tol, self.steps
        return tol, checked_argument("solver_steps", self.max_steps, name="max_steps")

    @override
    def __call__(self, problem: Problem) -> Estimate:
        budget, (tol, max_steps) = self._checked(problem), self._limits()

        def of_block(block: Block) -> tuple[Tensor, Tensor]:
            return self._solve(block, tol, max_steps)

        estimate = estimate_of(problem, tol, of_block, memory_budget=budget)
        if self.throw and not bool(estimate.converged.all()):
            error = estimate.dual_error.double() / norm(estimate.dual.double()).squeeze(-1)
            if bool((estimate.steps >= max_steps)[~estimate.converged].any()):
                remedy = "raise max_steps, or tol if more steps change nothing (rounding is then the limit)"
            elif problem.dtype == torch.float32 and tol < torch.finfo(torch.float32).eps:
                remedy = "raise tol, or give the problem in float64"
            elif problem.dtype == torch.float32:
                remedy = "raise tol: rounding is the limit"
            else:
                remedy = "raise tol: float64 cannot certify more on this problem"
            remedy = f"{remedy}; or pass throw=False and check estimate.converged"
            check_reached(~estimate.converged, error, tol, max_steps, remedy)
        return estimate


@dataclass(frozen=True, kw_only=True)
class Exact(Iterative):
    r"""Maximise the dual (7) to a certified relative accuracy.

    .. math:: \lambda^\star = \arg\max_\lambda \mathcal{D}(\lambda), \qquad
              \lVert\lambda - \lambda^\star\rVert \le \alpha\lVert\nabla\mathcal{D}(\lambda)\rVert
              \le \mathtt{tol}\cdot\lVert\lambda\rVert

    Mixing and Newton's method run in the problem's dtype; queries with rounding errors too large for the tolerance
    continue in float64, and all are certified in float64.

    Returns:
        The estimate, whose bounds depend only on the problem and λ.

    Raises:
        ProblemError: If the tolerance, the step limit or the closeness is invalid.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Theorem 1, eqs. (7)–(10); Appendix D, eqs. (35) and (36).

    Example:
        >>> import torch
        >>> from fenchel import Discrete, Exact, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64))
        >>> estimate = problem.solve(Exact(tol=1e-10))
        >>> bool(estimate.dual_error <= 1e-10 * estimate.dual.norm())
        True
    """

    name = "exact"
    equation = StationaryPoint()
    steps = 50


@dataclass(frozen=True, kw_only=True)
class GradientAscent(Iterative):
    r"""Gradient ascent on the dual from αz, with a step size that doubles on success and halves on failure.

    .. math:: \lambda \leftarrow \lambda + \eta\,\nabla\mathcal{D}(\lambda)

    A step is accepted if it reduces the norm of the gradient. The initial and smallest η is one over a bound on the
    Hessian, at which every step is accepted: :math:`1 / (\alpha^{-1} + \max_i\lVert t_i - \bar t\rVert^2/\sigma)` over
    templates. Without such a bound η starts at α and has no minimum. The papers' method, as a baseline; only for
    problems.

    Returns:
        The estimate with its bounds.

    Raises:
        ProblemError: If the tolerance is not positive.
        ConvergenceError: If a query does not meet the tolerance and ``throw`` is true.

    Reference:
        Section 8, "performing gradient ascent".

    Example:
        >>> import torch
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.eye(2, dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[1.0, 0.0]], dtype=torch.float64))
        >>> slow = problem.solve("gradient_ascent")
        >>> bool(slow.converged.all())
        True
    """

    name = "gradient_ascent"
    equation = StationaryPoint()
    steps = 10_000
    _solve = staticmethod(ascended)


@dataclass(frozen=True, kw_only=True)
class Constrained(Iterative):
    r"""Solve :math:`\min_p D(p, u)` subject to :math:`\lVert\mu + z - \mathbb{E}_p[t]\rVert \le \text{radius}`.

    The solution is the exact estimate at one α per query, the multiplier of the constraint on half the squared
    distance. The distance :math:`\lVert\mu + z - h^\star(\alpha)\rVert = \lVert\lambda^\star(\alpha)\rVert/\alpha`
    decreases in α wherever the templates vary along λ*; α is therefore the root of a monotone function, found by
    safeguarded false position in log α. In general this is not the α of the penalty form with
    :math:`\text{radius}^2 = 1/(2\alpha)`: depending on the problem, the two agree at no α, at one or at several.

    If ‖z‖ ≤ radius, the preference itself is feasible: then p is the distribution nearest u (u itself for KL), λ = 0
    and α = 0. The problem's α is the first guess; ``estimate.alpha`` is the α found, and the bounds refer to the
    penalty problem at that α. ``tol`` applies to λ and the distance, and ``max_steps`` counts solves. Only for
    problems.

    Attributes:
        radius: Largest distance of the mean from μ + z, > 0: a number, or a tensor that broadcasts to (..., m).

    Returns:
        The estimate; ``estimate.alpha`` (..., m) is the α found, and the bounds refer to the penalty problem at that α.

    Raises:
        ProblemError: If a radius is not positive, or is smaller than the distance from μ + z to the convex hull of the
            templates, which makes the problem infeasible.
        ConvergenceError: If the root or a solve does not meet the tolerance and ``throw`` is true.

    Reference:
        Section 4, "A Maximum Entropy on the Mean Perspective".

    Example:
        >>> import torch
        >>> from fenchel import Discrete, InferenceProblem
        >>> u = Discrete(torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.8]], dtype=torch.float64))
        >>> estimate = problem.solve("constrained", radius=0.3, tol=1e-10)
        >>> estimate.mean, estimate.alpha               # 0.8 - 0.3; atanh(0.5) / 0.3
        (tensor([[0.5000]], dtype=torch.float64), tensor([1.8310], dtype=torch.float64))
    """

    name = "constrained"
    has_gradients = False
    steps = 100

    radius: float | Tensor

    @override
    def __call__(self, problem: Problem) -> Estimate:
        budget, (tol, max_steps) = self._checked(problem), self._limits()

        def solve(problem: Problem, tol: float, throw: bool) -> Estimate:
            return Exact(tol=tol, max_steps=STEPS_OF_SEARCH, throw=throw, memory_budget=budget)(problem)

        return within_radius(problem, self.radius, solve, tol, max_steps, self.throw)


# Maximum number of steps of a query at each α tried for a radius.
STEPS_OF_SEARCH = 100


# Name of an estimator of ops and layers, checked when it is used.
EstimatorName = Literal["first_order", "second_order", "exact"] | str

# Estimators by the name that ``solve`` takes.
ESTIMATORS: dict[str, type[Estimator]] = {
    kind.name: kind for kind in (FirstOrder, SecondOrder, Exact, GradientAscent, Constrained)
}


def estimator_with(estimator: Any, options: Mapping[str, Any]) -> Estimator:
    """The estimator with this name and these options, or the given object.

    Raises:
        ProblemError: If the estimator or an option does not exist, or a required option is missing.
    """
    if isinstance(estimator, Estimator):
        if options:
            raise ProblemError(
                f"{next(iter(options))} is given with an estimator that has its own options, {estimator!r}; expected "
                f"{type(estimator).__name__}({next(iter(options))}=...)"
            )
        return estimator
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        expected = f"one of {', '.join(map(repr, ESTIMATORS))}, or an object such as fenchel.Exact(tol=1e-6)"
        raise ProblemError(f"estimator is {shown(estimator)}; expected {expected}")
    known = {field.name: field for field in fields(ESTIMATORS[estimator])}
    for option, value in options.items():
        if option not in known:
            raise ProblemError(
                f"{option} is not an option of the estimator {estimator!r}; expected some of {', '.join(known)}"
            )
        if value is None:
            raise ProblemError(f"{option} is None; omit it for the default of the estimator {estimator!r}")
    for option, field in known.items():
        if field.default is MISSING and option not in options:
            raise ProblemError(f"{option} is missing; the estimator {estimator!r} requires {option}=")
    return ESTIMATORS[estimator](**options)


class InferenceProblem(Problem[P_co]):
    r"""Find the distribution p near the preference u whose mean is near :math:`\mu + z`.

    .. math::
        \text{primal (3):}\quad & \min_p P(p) = \tfrac{\alpha}{2}\lVert \mu + z - \mathbb{E}_p[t] \rVert^2 + D(p, u) \\
        \text{dual (7):}\quad & \max_\lambda \mathcal{D}(\lambda) =
            \langle \lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - D^*(T\lambda)

    Args:
        preference: u: a :class:`~fenchel.Discrete` with templates (..., n, d) and log weights (..., m or 1, n), or any
            other distribution, such as a :class:`~fenchel.Gaussian` (``docs/continuous.md``).
        evidence: z, the noisy shift of the mean, shape (..., m, d) with the dtype and device of the templates. Leading
            dimensions broadcast with those of the preference. Half types are converted to float32.
        alpha: α > 0, the reliability of the evidence: a number, or a tensor that broadcasts to (..., m).
        closeness: D: :class:`~fenchel.KL` if None; :class:`~fenchel.Tsallis`, whose weights may be 0;
            :class:`~fenchel.Hard`; a custom :class:`~fenchel.Divergence`; or :class:`~fenchel.OptimalTransport`, whose
            atoms p may use in addition to the N = n templates of the preference.

    Raises:
        ProblemError: If shapes, dtypes or devices are inconsistent, α ≤ 0, or an entry is NaN or infinite.

    Reference:
        Sections 4 and 6, eqs. (3), (7)–(10).

    Example:
        >>> import torch
        >>> from fenchel import Discrete
        >>> u = Discrete(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]], dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[0.6, 0.2]], dtype=torch.float64), alpha=2.0)
        >>> estimate = problem.solve("exact", tol=1e-9)
        >>> gap = problem.primal(estimate.weights) - problem.dual(estimate.dual)
        >>> bool(gap.abs().max() < 1e-12)
        True
    """

    def solve(self, estimator: str | Estimator = "exact", **options: Any) -> Estimate:
        """Solve by ``"first_order"``, ``"second_order"``, ``"exact"``, ``"gradient_ascent"`` or ``"constrained"``.

        Args:
            estimator: One of these names, or an object with its options, such as ``fenchel.Exact(tol=1e-6)``.
            options: Options of the estimator with that name: ``tol``, ``max_steps``, ``throw``, ``memory_budget``,
                ``radius``.

        Returns:
            The estimate, with bounds on its distance from the solution. If the problem's data require gradients, its
            ``dual``, ``weights`` and ``mean`` have them. Gradients of iterative solvers come from the implicit function
            theorem at the dual point found, and are inaccurate if it did not converge. Bounds, steps and ``converged``
            have none.

        Raises:
            ProblemError: If the estimator or an option does not exist, or data require gradients that the estimator
                does not have.
            ConvergenceError: If an iterative solver stops early and ``throw`` is true.
        """
        solver = estimator_with(estimator, options)
        check_not_mapped("an inference problem", *(tensor for _, tensor in self.tensors()))
        wanted = self.wants_gradients()
        if wanted and not solver.has_gradients:
            raise ProblemError(
                f"{' and '.join(wanted)} require gradients, which {solver.name!r} does not support; solve under "
                "torch.no_grad(), or pass detached tensors"
            )
        with torch.no_grad():
            estimate = solver(self)
        if not wanted:
            return estimate
        # Rounding may have moved dual points to the border.
        self.preference.check_inside(estimate.dual)
        dual = solver.joined(self, estimate.dual)
        point = self.conjugate.at(dual)
        # Bounds are of these values; the point has the derivatives, with more rounding.
        mean = point.mean + (estimate.mean - point.mean).detach()
        weights = (
            None if point.weights is None else point.weights + (estimate.weights - point.weights).detach()
        )
        return replace(estimate, dual=dual, inferred=weights, mean=mean)
