"""Tsallis closenesses: facts of theirs, against CVXPY, and as problems."""

import math
import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fenchel import KL, Discrete, InferenceProblem, ProblemError, Tsallis
from fenchel.closeness import sparse_weights
from tests.problems import rows_of

both_forms = pytest.mark.parametrize("relative", ["bregman", "csiszar"])
every_order = pytest.mark.parametrize("order", [1.0, 1.05, 1.3, 1.5, 1.8, 2.0])

LOG_U = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.0]], dtype=torch.float64).log()


def drawn(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(shape, dtype=torch.float64, generator=generator)


def on(
    count: int, order: float | Tensor, relative: str = "bregman", temperature: float | Tensor = 1.0
) -> Tsallis:
    """Bound to templates, as many as that."""
    return Tsallis(order, relative, temperature).bind(Discrete(drawn(count, 2)))


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
    temperature: float | Tensor = 1.0,
    dtype: torch.dtype = torch.float64,
    alpha: float = 1.0,
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
    return InferenceProblem(u, z, alpha, Tsallis(order, relative, temperature))


@both_forms
@every_order
def test_it_is_least_at_the_preference_where_it_is_zero(relative: str, order: float) -> None:
    closeness = Tsallis(order, relative)
    u = LOG_U.exp()
    assert abs(float(closeness.value(u, LOG_U))) < 1e-15
    torch.testing.assert_close(closeness.rest(LOG_U), u)
    torch.testing.assert_close(closeness.weights(torch.zeros_like(u), LOG_U), u)
    near = (u + 1e-6 * torch.tensor([1.0, -1.0, 0, 0, 0])).double()
    assert 0 < float(closeness.value(near, LOG_U)) < 1e-10
    outside = torch.tensor([[0.2, 0.2, 0.2, 0.2, 0.2]], dtype=torch.float64)
    assert math.isinf(float(closeness.value(outside, LOG_U)))


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
    assert torch.equal(here.mean_error, there.mean_error)


@both_forms
def test_a_tensor_of_order_1_is_kl_with_a_gradient(relative: str) -> None:
    order = torch.ones(2, 1, dtype=torch.float64, requires_grad=True)
    f = drawn(2, 4, 5)
    found = Tsallis(order, relative).weights(f, LOG_U)
    torch.testing.assert_close(found, KL().weights(f, LOG_U), rtol=1e-12, atol=1e-15)
    direction = drawn(2, 4, 5, seed=1)
    (gradient,) = torch.autograd.grad((found * direction).sum(), order)
    step = 1e-5
    ends = [(Tsallis(1 + k * step, relative).weights(f, LOG_U) * direction).sum((-2, -1)) for k in (0, 1, 2)]
    torch.testing.assert_close(
        gradient.squeeze(-1), (4 * ends[1] - ends[2] - 3 * ends[0]) / (2 * step), rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("order", [1.2, 1.5, 2.0])
def test_the_uniform_preference_gives_entmax(order: float) -> None:
    f, log_u = drawn(5, 8, scale=2), torch.zeros(1, 8, dtype=torch.float64).log_softmax(-1)
    entmax = sparse_weights(f, None, order - 1)
    torch.testing.assert_close(Tsallis(order).weights(f, log_u), entmax)
    torch.testing.assert_close(Tsallis(order, "csiszar").weights(8 ** (order - 1) * f, log_u), entmax)
    bregman = Tsallis(order).weights(f, LOG_U.expand(1, 5).masked_fill(LOG_U.isneginf(), -20)[..., [0] * 8])
    torch.testing.assert_close(bregman, entmax)


@pytest.mark.parametrize("order", [1.3, 1.5, 2.0])
def test_the_bregman_form_is_entmax_of_shifted_scores(order: float) -> None:
    f, a = drawn(5, 4, scale=2), order - 1
    shift = LOG_U[:, :4].exp() ** a / a
    expected = sparse_weights(f + shift, None, a)
    torch.testing.assert_close(Tsallis(order).weights(f, LOG_U[:, :4]), expected)


@every_order
def test_at_rest_the_curvature_of_csiszars_form_is_the_covariance_of_u_whatever_the_order(
    order: float,
) -> None:
    v = drawn(3, 5)
    found = Tsallis(order, "csiszar", 0.5).curvature(torch.zeros(3, 5, dtype=torch.float64), LOG_U)(v)
    torch.testing.assert_close(found, KL().curvature(torch.zeros_like(v), LOG_U)(v) / 0.5)
    u, z = Discrete(drawn(5, 3), LOG_U), drawn(4, 3)
    second = [
        InferenceProblem(u, z, 0.8, closeness).solve("second_order").dual
        for closeness in (Tsallis(order, "csiszar", 2.0), Tsallis(1, temperature=2.0))
    ]
    torch.testing.assert_close(second[0], second[1])


@both_forms
@every_order
@given(st.integers(0, 10**6))
@settings(max_examples=25)
def test_strong_convexity(relative: str, order: float, seed: int) -> None:
    """Its modulus: ``D(p) - D(q) - <D'(q), p - q> >= modulus / 2 |p - q|^2`` in the 1-norm, by which D* is smooth."""
    closeness = on(5, order, relative, 0.6)
    f = drawn(8, 5, seed=seed, scale=10 ** (seed % 4 - 2))
    g = drawn(8, 5, seed=seed + 1, scale=10 ** (seed % 3 - 1))
    p, other = closeness.weights(f, LOG_U), closeness.weights(g, LOG_U)
    squared = (p - other).abs().sum(-1).square()
    # What D at p exceeds its tangent at other by is a Fenchel-Young gap, since g is in the subdifferential there.
    gap = closeness.fenchel_young_gap(p, g, LOG_U)
    assert bool((gap >= closeness.modulus / 2 * squared - 1e-12).all())
    assert bool(((p - other).abs().sum(-1) <= (f - g).abs().amax(-1) / closeness.modulus + 1e-12).all())


def test_the_moduli_are_sharp_enough_to_be_reached() -> None:
    """N^(1 - order) is attained at the uniform distribution, and 1 by half of all weight moving to the other half."""
    n, step = 6, 1e-4
    log_u = torch.zeros(1, n, dtype=torch.float64).log_softmax(-1)
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)
    p = log_u.exp() + step * signs
    for relative in ("bregman", "csiszar"):
        for order in (1.5, 2.0):
            closeness = on(n, order, relative)
            quotient = closeness.value(p, log_u) / ((n * step) ** 2 / 2)
            torch.testing.assert_close(float(quotient), float(closeness.modulus), rtol=1e-3, atol=0)


def by_interior_point(given: InferenceProblem) -> np.ndarray:
    """P of every row by a conic solver."""
    closeness: Any = given.closeness
    order, theta = closeness.order, closeness.temperature
    found: list[np.ndarray] = []
    for _, templates, u, z, alpha in rows_of(given):
        keep = u > 0
        t, believed = templates[keep], u[keep]
        p = cp.Variable(int(keep.sum()), nonneg=True)
        if closeness.relative == "bregman":
            linear = believed ** (order - 1) / (order - 1)
            divergence = cp.sum(cp.power(p, order, approx=False)) / (order * (order - 1)) - linear @ p
        else:
            scaled = cp.multiply(believed ** (1 - order), cp.power(p, order, approx=False))
            divergence = cp.sum(scaled) / (order * (order - 1))
        shortfall = believed @ t + z - t.T @ p
        objective = alpha / 2 * cp.sum_squares(shortfall) + theta * divergence
        tolerances = {f"tol_{name}": 1e-9 for name in ("gap_abs", "gap_rel", "feas")}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Solution may be inaccurate")
            stated = cp.Problem(cp.Minimize(objective), [cp.Zero(cp.sum(p) - 1)])
            stated.solve(solver=cp.CLARABEL, **tolerances)
        everywhere = np.zeros(len(u))
        everywhere[keep] = p.value
        found.append(everywhere)
    return np.stack(found).reshape(*given.shape, -1)


@both_forms
@pytest.mark.parametrize("order", [1.3, 1.5, 2.0])
@pytest.mark.parametrize("kind", ["uniform", "masked", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_exact_answer_is_that_of_an_interior_point_method(
    relative: str, order: float, kind: str, dtype: torch.dtype
) -> None:
    given = problem(order, relative, n=6, d=3, m=3, scale=1.5, kind=kind, temperature=0.8, dtype=dtype)
    found = given.solve("exact", tol=1e-5 if dtype == torch.float32 else 1e-10)
    wanted = torch.from_numpy(by_interior_point(given))
    # The conic solver's gap of about 1e-9 leaves its weights off by as much as the root of that, in places.
    torch.testing.assert_close(found.weights.double(), wanted, rtol=0, atol=1e-4)
    wide = given.to(torch.float64)
    lower = wide.primal(found.weights.double()) - wide.primal(wanted / wanted.sum(-1, keepdim=True))
    # Weights in float32 sum to one to that.
    slack = 1e-5 if dtype == torch.float32 else 1e-9
    assert bool((lower <= slack).all())
    assert bool(
        (wide.primal(wanted / wanted.sum(-1, keepdim=True)) - wide.dual(found.dual.double()) >= -slack).all()
    )


@both_forms
@pytest.mark.parametrize("order", [2.0, 1.5, 1.2])
def test_every_hard_problem_converges(relative: str, order: float) -> None:
    """Large templates: p has few weights that are not 0 and its Hessian is singular nearly everywhere."""
    found = problem(order, relative, m=400, scale=10.0, kind="uniform").solve("exact", tol=1e-8, throw=False)
    assert int(found.converged.sum()) == 400
    assert bool((found.dual_error <= 1e-8 * found.dual.norm(dim=-1)).all())


@both_forms
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("scale", "length"), [(10, 1), (10, 10), (100, 100)])
def test_all_problems_with_long_templates_converge(
    relative: str, dtype: torch.dtype, scale: float, length: float
) -> None:
    templates, z = drawn(100, 9, 16, seed=7, scale=scale), drawn(100, 1, 16, seed=8, scale=length)
    given = InferenceProblem(Discrete(templates.to(dtype)), z.to(dtype), closeness=Tsallis(2, relative))
    assert bool(given.solve("exact").converged.all())


@both_forms
@pytest.mark.parametrize("order", [2.0, 1.6])
@pytest.mark.parametrize("kind", ["any", "masked", "tied"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_hard_problem_converges_masked_or_tied(
    relative: str, order: float, kind: str, dtype: torch.dtype
) -> None:
    given = problem(order, relative, m=25, scale=10.0, kind=kind, dtype=dtype)
    found = given.solve("exact", tol=1e-4, throw=False)
    assert int(found.converged.sum()) == 25
    truth = given.to(torch.float64).solve("exact", tol=1e-8)
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
    for row, (_, templates, u, z, _alpha) in enumerate(rows_of(given)):
        t, wide = templates.astype(np.longdouble), u.astype(np.longdouble)
        dual = found.dual.reshape(-1, 4)[row].numpy().astype(np.longdouble)
        f, a = t @ dual, np.longdouble(order) - 1
        low, high = f.max() - 2000, f.max() + 2000
        kept = wide > 0

        def weights(tau: Any, f: Any = f, wide: Any = wide, kept: Any = kept, a: Any = a) -> Any:
            p = np.zeros_like(f)
            if relative == "csiszar":
                p[kept] = wide[kept] * np.maximum(1 + a * (f[kept] - tau), 0) ** (1 / a)
            else:
                p[kept] = np.maximum(wide[kept] ** a + a * (f[kept] - tau), 0) ** (1 / a)
            return p

        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if weights(middle).sum() >= 1 else (low, middle)
        p = weights(low)
        gradient = wide @ t + z - dual - p @ t
        length = float(np.sqrt((gradient**2).sum()))
        assert length <= float(found.mean_error.reshape(-1)[row]) * (1 + 1e-12)
        assert length <= float(found.dual_error.reshape(-1)[row]) * (1 + 1e-12)


def test_orders_and_temperatures_by_head_and_query() -> None:
    n, d, m = 7, 3, 5
    order = torch.tensor([1.0, 1.4, 2.0], dtype=torch.float64)[:, None]
    temperature = torch.linspace(0.5, 2, m, dtype=torch.float64)
    templates, z = drawn(2, 1, n, d), drawn(2, 3, m, d, seed=1)
    whole = InferenceProblem(Discrete(templates), z, 0.7, Tsallis(order, "csiszar", temperature))
    for estimator in ("first_order", "second_order", "exact"):
        found = whole.solve(estimator)
        for head in range(3):
            for query in range(m):
                alone = InferenceProblem(
                    Discrete(templates[:, 0]),
                    z[:, head, query : query + 1],
                    0.7,
                    Tsallis(float(order[head]), "csiszar", float(temperature[query])),
                ).solve(estimator)
                torch.testing.assert_close(found.mean[:, head, query], alone.mean[:, 0], rtol=1e-5, atol=1e-6)


def test_shapes_that_do_not_fit_are_named() -> None:
    u, z = Discrete(drawn(5, 3)), drawn(4, 3)
    with pytest.raises(ProblemError, match="order"):
        InferenceProblem(u, z, closeness=Tsallis(torch.full((3,), 1.5)))
    with pytest.raises(ProblemError, match="bind"):
        _ = Tsallis(1.5).modulus
    assert repr(Tsallis(1.5, "csiszar", 2)) == "Tsallis(1.5, relative='csiszar', temperature=2)"
    assert repr(Tsallis(torch.full((2, 1), 1.5))) == "Tsallis(<(2, 1)>)"
