"""Estimators: what each takes for the dual point λ."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from fenchel.arguments import shown
from fenchel.errors import ProblemError
from fenchel.estimate import Estimate
from fenchel.problem import InferenceProblem
from fenchel.solver.constrained import constrained as constrained
from fenchel.solver.exact import exact as exact
from fenchel.solver.first_order import first_order as first_order
from fenchel.solver.gradient_ascent import gradient_ascent as gradient_ascent
from fenchel.solver.second_order import second_order as second_order

__all__ = [
    "ESTIMATORS",
    "check_options",
    "constrained",
    "exact",
    "first_order",
    "gradient_ascent",
    "second_order",
    "solve",
]

ESTIMATORS: dict[str, Callable[..., Estimate]] = {
    "first_order": first_order,
    "second_order": second_order,
    "exact": exact,
    "gradient_ascent": gradient_ascent,
    "constrained": constrained,
}
"""Estimators by the name that :meth:`fenchel.InferenceProblem.solve` takes."""


def solve(problem: InferenceProblem, estimator: str, /, **options: Any) -> Estimate:
    """Solve a problem with the estimator of that name.

    Raises:
        ProblemError: If there is none, or it has no such option.
    """
    check_options(estimator, options)
    return ESTIMATORS[estimator](problem, **options)


def check_options(estimator: Any, options: Mapping[str, Any]) -> None:
    """Refuse a name that no estimator has, and options that the one of that name does not take or cannot do without.

    Raises:
        ProblemError: Naming what was given and what can be.
    """
    if not isinstance(estimator, str) or estimator not in ESTIMATORS:
        raise ProblemError(
            f"estimator is {shown(estimator)}; expected one of {', '.join(map(repr, ESTIMATORS))}"
        )
    _, *parameters = inspect.signature(ESTIMATORS[estimator]).parameters.values()
    taken = [parameter.name for parameter in parameters]
    for option in options:
        if option not in taken:
            raise ProblemError(
                f"{option} is no option of the estimator {estimator!r}; expected some of {', '.join(taken)}"
            )
    for parameter in parameters:
        if parameter.default is parameter.empty and parameter.name not in options:
            raise ProblemError(
                f"{parameter.name} is missing; the estimator {estimator!r} cannot do without it: pass {parameter.name}="
            )
