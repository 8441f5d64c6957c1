"""Tsallis closenesses: facts of theirs, against CVXPY, and as problems."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fenchel import KL, Discrete, InferenceProblem, ProblemError, Tsallis
from tests.closeness.test_sparse_weights import by_bisection
from tests.normal import drawn

KINDS = ("any", "uniform", "masked", "tied")
both_forms = pytest.mark.parametrize("relative", ["bregman", "csiszar"])

LOG_U = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0]], dtype=torch.float64).log()


def problem(
    order: float | Tensor,
    relative: str = "bregman",
    *,
    n: int = 9,
    d: int = 16,
    m: int = 8,
    scale: float = 1.0,
    kind: str = "any",
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> InferenceProblem:
    """M problems with templates of their own."""
    templates = drawn(m, n, d, seed=seed, scale=scale)
    if kind == "tied":
        templates[:, : n // 2] = templates[:, n // 2 : 2 * (n // 2)]
    log_u = None if kind in ("uniform", "tied") else drawn(m, 1, n, seed=seed + 1)
    if kind == "masked" and log_u is not None:
        log_u[..., 1::3] = -torch.inf
    u = Discrete(templates.to(dtype), None if log_u is None else log_u.to(dtype))
    z = drawn(m, 1, d, seed=seed + 2).to(dtype)
    return InferenceProblem(u, z, closeness=Tsallis(order, relative))


@both_forms
def test_the_limit_of_order_1_is_kl(relative: str) -> None:
    """Fact 12, and that order 1 is KL to the last bit."""
    f = drawn(6, 5)
    for order, tolerance in ((1 + 1e-6, 1e-4), (1 + 1e-10, 1e-8)):
        near = Tsallis(order, relative)
        torch.testing.assert_close(near.weights(f, LOG_U), KL().weights(f, LOG_U), rtol=0, atol=tolerance)
        torch.testing.assert_close(near.conjugate(f, LOG_U), KL().conjugate(f, LOG_U), rtol=0, atol=tolerance)
        p = f.masked_fill(LOG_U.isneginf(), -torch.inf).softmax(-1)
        torch.testing.assert_close(near.value(p, LOG_U), KL().value(p, LOG_U), rtol=0, atol=tolerance)
    one = Tsallis(1, relative)
    assert torch.equal(one.weights(f, LOG_U), KL().weights(f, LOG_U))
    here, there = (
        InferenceProblem(Discrete(drawn(5, 3), LOG_U), drawn(4, 3), closeness=closeness).solve("exact")
        for closeness in (one, KL())
    )
    assert torch.equal(here.weights, there.weights)


def test_the_moduli_are_sharp_enough_to_be_reached() -> None:
    """N^(1 - order) is attained at the uniform distribution, and 1 by half of all weight moving to the other half."""
    n, step = 6, 1e-4
    log_u = torch.zeros(1, n, dtype=torch.float64).log_softmax(-1)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)
    p = log_u.exp() + step * signs
    for relative in ("bregman", "csiszar"):
        for order in (1.5, 2.0):
            closeness = Tsallis(order, relative).bind(Discrete(drawn(n, 2)))
            quotient = closeness.value(p, log_u) / ((n * step) ** 2 / 2)
            torch.testing.assert_close(float(quotient), float(closeness.modulus), rtol=1e-3, atol=0)


HARD = [  # each two of form, kind and order together, and orders nearer to 1 and between with smaller templates
    *(("bregman", kind, order, 100.0) for kind, order in zip(KINDS, (2.0, 1.2, 2.0, 1.2), strict=True)),
    *(("csiszar", kind, order, 100.0) for kind, order in zip(KINDS, (1.2, 2.0, 1.2, 2.0), strict=True)),
    *zip(("csiszar", "bregman", "csiszar"), 3 * ["any"], (2.0, 1.6, 1.2), 3 * [10.0], strict=True),
]


@pytest.mark.parametrize(("relative", "kind", "order", "scale"), HARD)
def test_every_hard_problem_converges(relative: str, order: float, kind: str, scale: float) -> None:
    """Large templates: p has few weights that are not 0 and its Hessian is singular nearly everywhere."""
    given = problem(order, relative, m=25, scale=scale, kind=kind, dtype=torch.float32)
    truth = given.to(torch.float64).solve("exact", tol=1e-8)
    for dtype in (torch.float32, torch.float64):
        found = given.to(dtype).solve("exact", tol=1e-4, throw=False)
        assert int(found.converged.sum()) == 25
        apart = (found.dual.double() - truth.dual).norm(dim=-1)
        assert bool((apart <= found.dual_error.double() + truth.dual_error).all())
        assert bool((found.dual_error.double() <= 1.000001e-4 * found.dual.double().norm(dim=-1)).all())


@both_forms
@pytest.mark.parametrize("order", [1.02, 1.5, 2.0])
@pytest.mark.parametrize("scale", [1e-9, 1e-3, 1.0, 30.0])
def test_what_float64_may_lose_is_within_the_bounds(relative: str, order: float, scale: float) -> None:
    """First order at many sizes, against weights and means in extended precision."""
    given = problem(order, relative, n=12, d=4, m=6, scale=scale, kind="masked", seed=5)
    found = given.solve("first_order")
    parts = given.preference.log_weights.exp(), given.evidence, found.dual, found.mean_error, found.dual_error
    rows = (given.preference.templates, *(part.squeeze(1) for part in parts))
    for t, u, z, dual, *errors in zip(*(part.numpy().astype(np.longdouble) for part in rows), strict=True):
        p = by_bisection(t @ dual, u, order - 1, relative == "csiszar")
        gradient = u @ t + z - dual - p @ t
        assert np.sqrt((gradient**2).sum()) <= min(errors) * (1 + 1e-12)


def test_one_without_templates_is_shown_and_has_no_modulus() -> None:
    with pytest.raises(ProblemError, match="bind"):
        _ = Tsallis(1.5).modulus
    assert repr(Tsallis(1.5, "csiszar", 2)) == "Tsallis(1.5, relative='csiszar', temperature=2)"
    assert repr(Tsallis(torch.full((2, 1), 1.5))) == "Tsallis(<(2, 1)>)"
