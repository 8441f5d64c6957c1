"""Estimators: what each takes for the dual point λ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.estimate import Estimate
from fenchel.problem import Problem
from fenchel.solver.closed_form import first_order as first_order
from fenchel.solver.closed_form import second_order as second_order
from fenchel.solver.constrained import constrained as constrained
from fenchel.solver.exact import exact as exact
from fenchel.solver.gradient_ascent import gradient_ascent as gradient_ascent
from fenchel.solver.implicit import AbstractEquation, Expansion, Proportion, StationaryPoint

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "constrained",
    "estimator_with",
    "exact",
    "first_order",
    "gradient_ascent",
    "second_order",
]


@dataclass(frozen=True)
class Estimator:
    """A solver, and what its answer solves.

    Attributes:
        solve: Takes a problem and its own options.
        equation: What vanishes at its answer, by which gradients pass; None where they do not.
    """

    solve: Callable[..., Estimate]
    equation: AbstractEquation | None = None

    def __call__(self, problem: Problem, **options: Any) -> Estimate:
        """Solve a problem."""
        return self.solve(problem, **options)


ESTIMATORS: dict[str, Estimator] = {
    "first_order": Estimator(first_order, Proportion()),
    "second_order": Estimator(second_order, Expansion()),
    "exact": Estimator(exact, StationaryPoint()),
    "gradient_ascent": Estimator(gradient_ascent, StationaryPoint()),
    "constrained": Estimator(constrained),
}
"""Estimators by the name that :meth:`fenchel.InferenceProblem.solve` takes."""


def estimator_with(name: Any, options: Mapping[str, Any]) -> Estimator:
    """The estimator of a name, if it takes the options and is not missing one.

    Raises:
        ProblemError: Naming what was given and what can be.
    """
    if not isinstance(name, str) or name not in ESTIMATORS:
        raise ProblemError(f"estimator is {shown(name)}; expected one of {', '.join(map(repr, ESTIMATORS))}")
    _, *parameters = inspect.signature(ESTIMATORS[name].solve).parameters.values()
    taken = [parameter.name for parameter in parameters]
    for option in options:
        if option not in taken:
            raise ProblemError(
                f"{option} is no option of the estimator {name!r}; expected some of {', '.join(taken)}"
            )
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise ProblemError(
                f"{parameter.name} is missing; the estimator {name!r} cannot do without it: pass {parameter.name}="
            )
    return ESTIMATORS[name]
