"""Estimators: what each takes for the dual point λ.

``first_order``, ``second_order``, ``exact``, ``gradient_ascent`` and ``constrained`` solve a problem. Problems and ops
take them by these names, or as objects with options: ``Exact(tol=1e-6)``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal

from torch import Tensor

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.estimate import Estimate
from fenchel.problem import Problem
from fenchel.solver.closed_form import first_order as first_order
from fenchel.solver.closed_form import second_order as second_order
from fenchel.solver.exact import constrained as constrained
from fenchel.solver.exact import exact as exact
from fenchel.solver.exact import gradient_ascent as gradient_ascent
from fenchel.solver.implicit import AbstractEquation, Expansion, Proportion, StationaryPoint

__all__ = [
    "ESTIMATORS",
    "Constrained",
    "Estimator",
    "Exact",
    "FirstOrder",
    "GradientAscent",
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
