"""Estimators, what each takes for the dual point λ, and the inference problem that solves itself by one of them.

``first_order``, ``second_order``, ``exact``, ``gradient_ascent`` and ``constrained`` solve a problem. Problems and ops
take them by these names, or as objects with options: ``Exact(tol=1e-6)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from fenchel.arguments import shown
from fenchel.closeness import AbstractCloseness
from fenchel.conjugate import conjugate_of
from fenchel.errors import DomainError, ProblemError
from fenchel.estimate import Estimate
from fenchel.preference import AbstractPreference
from fenchel.problem import Problem
from fenchel.solver.closed_form import first_order as first_order
from fenchel.solver.closed_form import second_order as second_order
from fenchel.solver.exact import constrained as constrained
from fenchel.solver.exact import exact as exact
from fenchel.solver.exact import gradient_ascent as gradient_ascent
from fenchel.solver.implicit import (
    AbstractEquation,
    Expansion,
    Proportion,
    StationaryPoint,
    implicit_dual_point,
)
from fenchel.tensors import check_not_mapped

__all__ = [
    "ESTIMATORS",
    "Constrained",
    "Estimator",
    "Exact",
    "FirstOrder",
    "GradientAscent",
    "InferenceProblem",
    "SecondOrder",
    "constrained",
    "estimator_with",
    "exact",
    "first_order",
    "gradient_ascent",
    "second_order",
]


@dataclass(frozen=True, kw_only=True)
class Estimator:
    """A solver with its options; an option that is None has the solver's own default.

    Attributes:
        name: By which problems, ops and layers know it.
        equation: What vanishes at its answer, by which gradients pass; None where they do not.
        memory_budget: Bytes of working memory of a problem's solve; ops have a rule of their own.
    """

    memory_budget: int | None = None

    name: ClassVar[str]
    equation: ClassVar[AbstractEquation | None] = None
    _solve: ClassVar[Callable[..., Estimate]]

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in given.items() if value is not None}

    def __call__(self, problem: Problem) -> Estimate:
        """Solve a problem, without gradients."""
        return type(self)._solve(problem, **self.options)


@dataclass(frozen=True, kw_only=True)
class FirstOrder(Estimator):
    """λ = αz, which is dot-product attention: :func:`first_order`.

    Example:
        >>> import torch
        >>> from fenchel import Discrete, FirstOrder, InferenceProblem
        >>> problem = InferenceProblem(Discrete(torch.eye(3)), torch.tensor([[2.0, 0.0, 0.0]]))
        >>> problem.solve(FirstOrder()).dual
        tensor([[2., 0., 0.]])
    """

    name = "first_order"
    equation = Proportion()
    _solve = staticmethod(first_order)


@dataclass(frozen=True, kw_only=True)
class SecondOrder(Estimator):
    """The maximiser of the dual's second-order expansion: :func:`second_order`."""

    name = "second_order"
    equation = Expansion()
    _solve = staticmethod(second_order)


@dataclass(frozen=True, kw_only=True)
class Iterative(Estimator):
    """What iterates until a tolerance is met.

    Attributes:
        tol: Relative tolerance on λ. None is 1e-6 in problems; in ops 1e-5, and 1e-10 in float64.
        max_steps: Steps that a query may take.
        throw: Raise where the tolerance is not met; ops always do.
    """

    tol: float | None = None
    max_steps: int | None = None
    throw: bool = True


@dataclass(frozen=True, kw_only=True)
class Exact(Iterative):
    """The maximiser of the dual, to a certified tolerance: :func:`exact`.

    Example:
        >>> import torch
        >>> from fenchel import Discrete, Exact, InferenceProblem
        >>> u = Discrete(torch.eye(3, dtype=torch.float64))
        >>> problem = InferenceProblem(u, torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64))
        >>> estimate = problem.solve(Exact(tol=1e-9))
        >>> bool(estimate.dual_error <= 1e-9 * estimate.dual.norm())
        True
    """

    name = "exact"
    equation = StationaryPoint()
    _solve = staticmethod(exact)


@dataclass(frozen=True, kw_only=True)
class GradientAscent(Iterative):
    """The same by gradient ascent: :func:`gradient_ascent`; a baseline, for problems alone."""

    name = "gradient_ascent"
    equation = StationaryPoint()
    _solve = staticmethod(gradient_ascent)


@dataclass(frozen=True, kw_only=True)
class Constrained(Iterative):
    """The constrained form: :func:`constrained`; for problems alone.

    Attributes:
        radius: Largest distance of the mean from μ + z, > 0, a number or a tensor that broadcasts to (..., m).
    """

    name = "constrained"
    _solve = staticmethod(constrained)

    radius: float | Tensor


EstimatorName = Literal["first_order", "second_order", "exact"] | str
"""Name of an estimator of ops and layers; which there are is looked at when it is given."""

ESTIMATORS: dict[str, type[Estimator]] = {
    kind.name: kind for kind in (FirstOrder, SecondOrder, Exact, GradientAscent, Constrained)
}
"""Estimators by the name that :meth:`fenchel.InferenceProblem.solve` takes."""


def estimator_with(estimator: Any, options: Mapping[str, Any]) -> Estimator:
    """The estimator of a name, if it takes the options and is not missing one; or the one that was given.

    Raises:
        ProblemError: Naming what was given and what can be.
    """
    if isinstance(estimator, Estimator):
        if options:
            raise ProblemError(
                f"{next(iter(options))} is given beside an estimator with options of its own, {estimator!r}; expected "
                f"{type(estimator).__name__}({next(iter(options))}=...)"
            )
        return estimator
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        expected = f"one of {', '.join(map(repr, ESTIMATORS))}, or an object such as fenchel.Exact(tol=1e-6)"
        if isinstance(estimator, type) and issubclass(estimator, Estimator):
            expected = f"an object of it, fenchel.{estimator.__name__}(...)"
        raise ProblemError(f"estimator is {shown(estimator)}; expected {expected}")
    known = fields(ESTIMATORS[estimator])
    for option in options:
        if option not in [field.name for field in known]:
            raise ProblemError(
                f"{option} is no option of the estimator {estimator!r}; expected some of "
                f"{', '.join(field.name for field in known)}"
            )
    for field in known:
        if field.default is MISSING and field.name not in options:
            raise ProblemError(
                f"{field.name} is missing; the estimator {estimator!r} cannot do without it: pass {field.name}="
            )
    for option, value in options.items():
        if value is None:
            raise ProblemError(
                f"{option} is None; leave it out for the default of the estimator {estimator!r}"
            )
    return ESTIMATORS[estimator](**options)


P = TypeVar("P", bound=AbstractPreference)


class InferenceProblem(Problem, Generic[P]):
    r"""Find the distribution p near the preference u whose mean is near :math:`\mu + z`.

    .. math::
        \text{primal (3):}\quad & \min_p P(p) = \tfrac{\alpha}{2}\lVert \mu + z - \mathbb{E}_p[t] \rVert^2 + D(p, u) \\
        \text{dual (7):}\quad & \max_\lambda \mathcal{D}(\lambda) =
            \langle \lambda, \mu + z\rangle - \tfrac{1}{2\alpha}\lVert\lambda\rVert^2 - D^*(T\lambda)

    Args:
        preference: u: a :class:`~fenchel.Discrete` with templates (..., n, d) and log weights (..., m or 1, n), or any
            other distribution, such as a :class:`~fenchel.Gaussian` (``docs/continuous.md``).
        evidence: z, the noisy shift of the mean, shape (..., m, d) with the dtype and device of the templates. Leading
            dimensions broadcast against those of the preference. Half types are converted to float32.
        alpha: α > 0, the reliability of the evidence: a number, or a tensor that broadcasts to (..., m).
        closeness: D: :class:`~fenchel.KL` where None; :class:`~fenchel.Tsallis`, whose weights may be 0;
            :class:`~fenchel.Hard`; a :class:`~fenchel.Divergence` of one's own; or :class:`~fenchel.OptimalTransport`,
            whose atoms p may use beside the N = n templates of the preference.

    Raises:
        ProblemError: On shapes, dtypes or devices that do not fit, α ≤ 0, or NaN or infinity anywhere.

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

    def __init__(
        self,
        preference: P,
        evidence: Tensor,
        alpha: float | Tensor = 1.0,
        closeness: AbstractCloseness | str | None = None,
    ) -> None:
        super().__init__(conjugate_of(preference, closeness), evidence, alpha)

    @property
    @override
    def preference(self) -> P:
        return cast("P", self.conjugate.preference)

    def solve(self, estimator: str | Estimator = "exact", **options: Any) -> Estimate:
        """Solve by ``"first_order"``, ``"second_order"``, ``"exact"``, ``"gradient_ascent"`` or ``"constrained"``.

        Args:
            estimator: One of these names, or an object with its options, such as ``fenchel.Exact(tol=1e-6)``.
            options: Of the estimator of that name: ``tol``, ``max_steps``, ``throw``, ``memory_budget``, ``radius``.

        Returns:
            The estimate, with bounds on its distance from the solution. Where the problem's data require gradients, its
            ``dual``, ``weights`` and ``mean`` carry them: those of an iterative solver by the implicit function
            theorem, which takes what was found for the solution, so that where it did not converge they are off as much
            as it is. Bounds, steps and ``converged`` never do.

        Raises:
            ProblemError: If there is no such estimator or option, or data require gradients that it does not carry.
            ConvergenceError: If an iterative solver stops early and ``throw`` is true.
        """
        solver = estimator_with(estimator, options)
        check_not_mapped("an inference problem", *self.tensors().values())
        wanted = self.wants_gradients()
        if wanted and solver.equation is None:
            raise ProblemError(
                f"{' and '.join(wanted)} require gradients, which {solver.name!r} does not carry; solve under "
                "torch.no_grad(), or give detached tensors"
            )
        with torch.no_grad():
            estimate = solver(self)
        if not wanted or solver.equation is None:
            return estimate
        _refuse_border(self, estimate)
        dual = implicit_dual_point(self, solver.equation, estimate.dual)
        weights, shift = self.conjugate.infer(dual)
        return replace(estimate, dual=dual, inferred=weights, mean=self.conjugate.mean_by(dual, shift))


def _refuse_border(problem: Problem, estimate: Estimate) -> None:
    """Refuse gradients at dual points that rounding put out of the domain of log M, where there are none.

    Raises:
        DomainError: Saying how many queries these are.
    """
    inside = problem.preference.inside(estimate.dual)
    if inside is None or bool(inside.all()):
        return
    where = tuple(int(i) for i in (~inside).nonzero()[0])
    raise DomainError(
        f"rounding to {problem.dtype} puts the dual point of {int((~inside).sum())} of {inside.numel()} queries "
        "(first at "
        f"index {where}) on the border of the domain of log M, where there is no gradient: give the problem in "
        "float64, or "
        "make alpha or the evidence smaller",
        query=where,
    )
