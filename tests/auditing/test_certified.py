"""Every query that an audit calls converged is certified in float64: recomputed here from the call and the point."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.auditing.solution import BlockSolution, Solving, layer_problem, solutions_of
from fenchel.integrations.capture import AttentionCall
from tests.auditing.test_measure import PREFERENCES, by_definition, call, in_dtype, measure, problem_of

SIZES: dict[str, Any] = {"d_h": 16, "width": 24, "scale": 10.0, "scaling": 0.25, "dtype": torch.float32}


def dual_of(solution: BlockSolution) -> Tensor:
    """λ* of a block in the space of the templates, float64, (g, h, q, d)."""
    group, lam = solution.group, solution.found.dual.double()
    if group._basis is not None:
        queries = solution.block.queries.double()
        whole = queries if group._lift is None else queries @ group._lift[solution.block.where[1]]
        whole = whole.flatten(1, 2)
        outside = whole - whole @ group._basis @ group._basis.mT
        lam = lam @ group._basis.mT + group._solving.alpha * outside
    return lam.reshape(*solution.converged.shape, -1)


def exact_duals(given: AttentionCall, **solving: Any) -> tuple[Tensor, Tensor]:
    """λ* of every query, (batch, heads, m, d), and where it is certified, (batch, heads, m)."""
    with torch.no_grad():
        problem = layer_problem(given, solving["space"])
        shape = problem.queries.shape[:3]
        dual = problem.queries.new_zeros((*shape, problem.vectors.shape[-1]), dtype=torch.float64)
        converged = torch.zeros(shape, dtype=torch.bool)
        for solution in solutions_of(problem, problem.counted(given), Solving(**solving)):
            dual[solution.block.where] = dual_of(solution)
            converged[solution.block.where] = solution.converged
    return dual.reshape(len(given.query), -1, *dual.shape[2:]), problem.by_head(converged)


def certified_errors(given: AttentionCall, space: str, alpha: float, dual: Tensor) -> Tensor:
    """α‖∇𝒟(λ)‖/‖λ‖ of the public problem, float64, (batch, heads, m)."""
    problem = problem_of(in_dtype(given, torch.float64), space, alpha)
    return alpha * problem.dual_gradient(dual).norm(dim=-1) / dual.norm(dim=-1)


def worst_claimed(given: AttentionCall, space: str, alpha: float, dual: Tensor, claimed: Tensor) -> float:
    """The largest certificate of a query that is said to be converged."""
    errors = certified_errors(given, space, alpha, dual).nan_to_num(nan=torch.inf)
    return float(errors[claimed].max()) if bool(claimed.any()) else 0.0


def of_counted(given: AttentionCall, values: Tensor) -> Tensor:
    return values.transpose(1, 2)[given.counted]


CASES = [
    *(
        ({"preference": name, "n": n}, 1e-6) for name in PREFERENCES for n in (20, 70)
    ),  # by the Gram matrix and not
    *(
        ({"n": 32, "dtype": dtype}, tol)
        for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)
        for tol in (1e-3, 2e-5, 1e-6, 1e-9, 1e-12)
    ),
]


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize(("sizes", "tol"), CASES)
def test_what_is_converged_is_certified_in_float64(space: str, sizes: dict[str, Any], tol: float) -> None:
    """Whatever the preference, the dtype and the tolerance."""
    given = call(**{"preference": "causal padding", **SIZES, **sizes})
    dual, converged = exact_duals(given, space=space, tol=tol)
    assert bool(of_counted(given, converged).all())
    # The definition, on templates that are not centred, has a rounding of its own.
    assert worst_claimed(given, space, 1.0, dual, converged) <= tol * (1 + 1e-6) + 1e-13
    torch.testing.assert_close(measure(given, space=space, tol=tol).values["converged"], converged)


def test_a_tolerance_below_float64_is_not_claimed() -> None:
    given = call("padding", n=12, **SIZES)
    measures = measure(given, space="input", tol=1e-18)
    assert not bool(measures.values["converged"].any())
    assert all(
        bool(torch.isfinite(of_counted(given, measures.values[name])).all()) for name in ("gap", "mean_error")
    )


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize("preference", ["none", "causal", "bias padding"])
def test_what_is_factorised_is_measured_at_its_point(space: str, preference: str) -> None:
    """With α this large attention's point is a vertex, and λ* is much shorter than αz."""
    narrow, alpha = call(preference, n=12, **SIZES), 1e4
    rounded = in_dtype(narrow, torch.float64)
    dual, converged = exact_duals(narrow, space=space, alpha=alpha, tol=1e-6)
    assert float(of_counted(narrow, converged).double().mean()) > 0.9
    assert worst_claimed(narrow, space, alpha, dual, converged) <= 1e-6 * (1 + 1e-3)
    measures = measure(narrow, space=space, alpha=alpha, tol=1e-6)
    some = ([0, 0, 1], [0, 3, 2], [1, 5, 7])
    assert bool(measures.values["converged"][some].all())
    for name, expected in by_definition(problem_of(rounded, space, alpha), tol=1e-7, throw=False).items():
        found = measures.values[name][some].double()
        torch.testing.assert_close(found, expected[some], rtol=2e-3, atol=1e-4, msg=name)


def test_a_step_limit_leaves_queries_that_say_so() -> None:
    given = call("none", n=32, **SIZES)
    dual, converged = exact_duals(given, space="input", tol=1e-6, max_steps=2)
    errors = certified_errors(given, "input", 1.0, dual)
    assert not bool(of_counted(given, converged).all())
    assert bool((errors[converged] <= 1e-6 * (1 + 1e-6)).all())
    assert bool((of_counted(given, errors)[~of_counted(given, converged)] > 1e-6).all())
    steps = [
        measure(given, space="input", tol=1e-6, max_steps=2).values["newton_steps"].max(),
        *(measure(given, space="input", tol=tol).values["newton_steps"].sum() for tol in (0.5, 1e-6)),
    ]
    assert steps[0] <= 2
    assert steps[1] < steps[2]
