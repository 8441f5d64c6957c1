"""Estimators: what each takes for the dual point λ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fenchel.errors import ProblemError
from fenchel.estimate import Estimate
from fenchel.problem import InferenceProblem
from fenchel.solver.constrained import constrained as constrained
from fenchel.solver.exact import exact as exact
from fenchel.solver.first_order import first_order as first_order
from fenchel.solver.gradient_ascent import gradient_ascent as gradient_ascent
from fenchel.solver.second_order import second_order as second_order

__all__ = ["ESTIMATORS", "constrained", "exact", "first_order", "gradient_ascent", "second_order", "solve"]

ESTIMATORS: dict[str, Callable[..., Estimate]] = {
    "first_order": first_order,
    "second_order": second_order,
    "exact": exact,
    "gradient_ascent": gradient_ascent,
    "constrained": constrained,
}
"""Estimators by the name that :meth:`fenchel.InferenceProblem.solve` takes."""


def solve(problem: InferenceProblem, estimator: str, **options: Any) -> Estimate:
    """Solve a problem with the estimator of that name.

    Raises:
        ProblemError: If there is none.
    """
    if estimator not in ESTIMATORS:
        raise ProblemError(f"estimator is {estimator!r}; expected one of {', '.join(map(repr, ESTIMATORS))}")
    return ESTIMATORS[estimator](problem, **options)
