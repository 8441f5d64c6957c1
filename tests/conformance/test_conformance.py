"""What holds for every preference and every closeness, whoever wrote it."""

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from fenchel import KL, Discrete, Estimate, Exact, InferenceProblem, ProblemError
from fenchel.family import TemplateFamily
from fenchel.preference import Continuous1d, Continuous2d
from tests.conformance import toys
from tests.conformance.families import FAMILIES, Family
from tests.normal import drawn
from tests.side_effects import assert_checkpointed, in_memory

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)

OPTIONS: dict[str, dict[str, Any]] = {
    "first_order": {},
    "second_order": {},
    "exact": {"tol": 1e-11},
    "gradient_ascent": {"tol": 1e-4, "max_steps": 100_000},
}
# For what is true of an estimate however near it is to the answer: gradient ascent takes long to come nearer.
ROUGH = {**OPTIONS, "gradient_ascent": {"tol": 1e-3, "max_steps": 100_000}}
every_estimator = pytest.mark.parametrize("estimator", OPTIONS)


@cache
def solved(name: str, estimator: str, tol: float | None = None) -> tuple[InferenceProblem, Estimate]:
    """A family's problem and its answer, which no test changes."""
    family = next(family for family in FAMILIES if family.name == name)
    problem = family.problem(family.draw())
    options = ROUGH[estimator] if tol is None else {"tol": tol, "throw": False}
    return problem, problem.solve(estimator, **options)


def point_in_domain(problem: InferenceProblem, seed: int = 1) -> Tensor:
    """Some dual points at which φ is finite."""
    lam = drawn(*problem.shape, problem.preference.dim, seed=seed)
    reach = problem.preference.reach(torch.zeros_like(lam), lam)
    return lam if reach is None else lam * (0.5 * reach).clamp(max=1).unsqueeze(-1)


@every_family
def test_the_mean_is_the_gradient_and_the_curvature_its_derivative(family: Family) -> None:
    conjugate = family.problem(family.draw()).conjugate
    lam = point_in_domain(family.problem(family.draw()))
    torch.testing.assert_close(
        torch.func.grad(lambda at: conjugate.value(at).sum())(lam), conjugate.at(lam).mean
    )
    vector = drawn(*lam.shape, seed=2)
    step = 1e-6
    difference = (conjugate.at(lam + step * vector).mean - conjugate.at(lam - step * vector).mean) / (
        2 * step
    )
    torch.testing.assert_close(conjugate.at(lam).product(vector), difference, rtol=1e-5, atol=1e-7)


@every_family
def test_the_gap_is_half_the_squared_gradient(family: Family) -> None:
    """Fact 1, at any λ."""
    problem = family.problem(family.draw())
    lam = point_in_domain(problem)
    gap = problem.primal_at(lam) - problem.dual(lam)
    torch.testing.assert_close(
        gap, problem.alpha / 2 * problem.dual_gradient(lam).square().sum(-1), rtol=1e-9, atol=1e-9
    )
    torch.testing.assert_close(problem.gap_at(lam), gap, rtol=1e-9, atol=1e-9)
    if isinstance(problem.conjugate, TemplateFamily):
        p = problem.weights(lam)
        torch.testing.assert_close(problem.primal_at(lam), problem.primal(p), rtol=1e-6, atol=1e-6)
        origin = torch.zeros_like(lam)  # the gap of any pair is primal minus dual
        torch.testing.assert_close(problem.gap(p, origin), problem.primal(p) - problem.dual(origin))


@every_family
def test_exact_is_the_maximum_that_scipy_finds(family: Family) -> None:
    problem, found = solved(family.name, "exact")
    assert bool(found.converged.all())
    flat = found.dual.flatten(0, -2)

    def falling(numbers: np.ndarray) -> tuple[float, np.ndarray]:
        lam = torch.from_numpy(numbers).reshape(found.dual.shape)
        return -float(problem.dual(lam).sum()), -problem.dual_gradient(lam).flatten().numpy()

    near = minimize(falling, (0.9 * flat).flatten().numpy(), jac=True, method="BFGS", options={"gtol": 1e-6})
    torch.testing.assert_close(
        torch.from_numpy(near.x).reshape(found.dual.shape), found.dual, rtol=1e-4, atol=1e-5
    )


@every_family
def test_second_order_is_one_step_of_newtons_method(family: Family) -> None:
    several, _ = solved(family.name, "second_order")
    one = InferenceProblem(several.preference, several.evidence, 0.6, several.closeness)
    for problem in (several, one):  # whose queries share a Hessian where they share a preference
        dual = problem.solve("second_order").dual
        bent = problem.conjugate.at(torch.zeros_like(dual)).product(dual)
        torch.testing.assert_close(dual / problem.alpha_column + bent, problem.evidence.expand_as(bent))


@every_family
@every_estimator
def test_every_bound_is_a_bound(family: Family, estimator: str) -> None:
    problem, truth = solved(family.name, "exact", 1e-12)
    found = problem.solve("exact", tol=1e-3) if estimator == "exact" else solved(family.name, estimator)[1]
    slack = 1e-9
    assert bool(((found.mean - truth.mean).norm(dim=-1) <= found.mean_error + truth.mean_error + slack).all())
    assert bool(((found.dual - truth.dual).norm(dim=-1) <= found.dual_error + truth.dual_error + slack).all())
    lost = problem.primal_at(found.dual) - problem.primal_at(truth.dual)
    assert bool((lost <= found.gap + slack).all())
    if found.inferred is not None:
        apart = (found.weights - truth.weights).abs().sum(-1) / 2
        assert bool((apart <= found.total_variation_error + truth.total_variation_error + 1e-7).all())


def readout(estimate: Estimate) -> Tensor:
    """Something that every differentiable part of an estimate enters."""
    found = estimate.mean.sin().sum() + estimate.dual.cos().sum()
    return found if estimate.inferred is None else found + estimate.weights.square().sum()


@cache
def differences(name: str, estimator: str) -> dict[str, tuple[Tensor, float]]:
    """For each part of a problem a direction, and by how much the readout changes along it."""
    family = next(family for family in FAMILIES if family.name == name)
    parts, step = family.draw(seed=3), 1e-5

    def moved(part: str, by: Tensor) -> float:
        problem = family.problem({**parts, part: parts[part] + by})
        return float(readout(problem.solve(estimator, **OPTIONS[estimator])))

    found = {}
    for part, tensor in parts.items():
        direction = drawn(*tensor.shape, seed=len(part))
        rise = moved(part, step * direction) - moved(part, -step * direction)
        found[part] = direction, rise / (2 * step)
    return found


@every_family
@every_estimator
def test_gradients_reach_everything_that_the_problem_is_made_of(family: Family, estimator: str) -> None:
    parts = {name: part.requires_grad_() for name, part in family.draw(seed=3).items()}
    wanted, found = list(parts.values()), family.problem(parts).solve(estimator, **OPTIONS[estimator])
    gradients = torch.autograd.grad(readout(found), wanted, retain_graph=True)
    # What gradient ascent comes to is what exact finds, which is found sooner and tells smaller steps apart.
    ascent = estimator == "gradient_ascent"
    expected = differences(family.name, "exact" if ascent else estimator)
    rough = 1e-2 if ascent else 1e-4
    for (direction, rise), gradient in zip(expected.values(), gradients, strict=True):
        assert float((gradient * direction).sum()) == pytest.approx(rise, rel=rough, abs=rough / 10)
    if estimator == "exact":  # whose distribution carries them too
        of_mean, again = (
            torch.autograd.grad(mean.sin().sum(), wanted, retain_graph=True)
            for mean in (found.mean, found.distribution.mean())
        )
        torch.testing.assert_close(of_mean, again, rtol=1e-7, atol=1e-9)


@every_family
def test_a_solver_called_by_itself_refuses_gradients_that_it_would_drop(family: Family) -> None:
    whole = family.draw()
    for name in whole:
        if name == "evidence" or name.startswith("alpha"):
            continue
        parts = {**whole, name: whole[name].clone().requires_grad_()}
        with pytest.raises(ProblemError, match="require gradients, which a solver called directly"):
            Exact()(family.problem(parts))


@every_family
@every_estimator
def test_blocks_and_rows_change_nothing(family: Family, estimator: str) -> None:
    problem, options = family.problem(family.draw()), ROUGH[estimator]
    if estimator == "gradient_ascent":  # as true of its first steps
        options = {"max_steps": 5, "throw": False}
        whole = problem.solve(estimator, **options)
    else:
        _, whole = solved(family.name, estimator)
    pieces = problem.solve(estimator, memory_budget=1, **options)
    torch.testing.assert_close(pieces.mean, whole.mean, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(pieces.gap, whole.gap, rtol=1e-6, atol=1e-9)
    row = problem.queries(slice(1, 3))
    torch.testing.assert_close(
        row.solve(estimator, **options).mean, whole.mean[..., 1:3, :], rtol=1e-7, atol=1e-9
    )


@every_family
def test_float32_is_float64_rounded(family: Family) -> None:
    narrow = family.problem(family.draw(dtype=torch.float32))
    truth = narrow.to(torch.float64).solve("exact", **OPTIONS["exact"])
    parts = {name: part.requires_grad_() for name, part in family.draw(dtype=torch.float32).items()}
    for estimator, options in {"first_order": {}, "second_order": {}, "exact": {"tol": 1e-4}}.items():
        found = narrow.solve(estimator, **options)
        wide = truth if estimator == "exact" else narrow.to(torch.float64).solve(estimator)
        assert found.mean.dtype == found.gap.dtype == torch.float32
        torch.testing.assert_close(found.mean.double(), wide.mean, rtol=1e-3, atol=1e-4)
        for each in (found, family.problem(parts).solve(estimator, **options)):
            for name in ("mean", "dual"):
                apart = (getattr(each, name).double() - getattr(truth, name)).norm(dim=-1)
                bound = getattr(each, f"{name}_error") + getattr(truth, f"{name}_error")
                assert bool((apart <= bound * (1 + 1e-6)).all()), (estimator, name)
            if each.inferred is None:
                gap = narrow.to(torch.float64).gap_at(each.dual.double())
                assert bool((gap <= each.gap * (1 + 1e-6)).all()), estimator


@every_family
@pytest.mark.parametrize(("dtype", "size"), [(torch.float64, 1.0), (torch.float32, 1e-12)], ids=str)
def test_no_estimate_changes_what_the_problem_is_made_of(
    family: Family, dtype: torch.dtype, size: float
) -> None:
    """Nor with one query in a group, which is not copied to be solved apart from others."""
    parts = family.draw(dtype=dtype)
    parts["evidence"] *= size
    before = in_memory(parts)
    for problem in (family.problem(parts), family.problem(parts).queries(slice(1, 2))):
        for estimator, options in OPTIONS.items():
            iterated = {"tol": 1e-6, "max_steps": 3, "throw": False} if options else {}
            problem.solve(estimator, **iterated)
            assert in_memory(parts) == before, estimator
        dual = problem.solve("first_order").dual
        problem.primal_at(dual)
        problem.gap_at(dual)
        assert in_memory(parts) == before


@every_family
@pytest.mark.parametrize("estimator", ["second_order", "exact"])
def test_checkpointing_changes_neither_values_nor_gradients(family: Family, estimator: str) -> None:
    parts = {name: part.requires_grad_() for name, part in family.draw().items()}

    def function(*values: Tensor) -> Tensor:
        problem = family.problem(dict(zip(parts, values, strict=True)))
        estimate = problem.solve(estimator, **({"tol": 1e-4} if estimator == "exact" else {}))
        return torch.cat([estimate.mean, estimate.dual], -1)

    # Curvatures by torch.func take no hooks of saved tensors, which checkpoints that are not reentrant have.
    by_torch = family.name in ("own functions", "scaled KL", "somebody's cumulant")
    reentrant = (True,) if by_torch else (False, True)
    assert_checkpointed(function, list(parts.values()), reentrant=reentrant)


@every_family
def test_one_query_is_answered_as_the_same_query_repeated(family: Family) -> None:
    for size in (1.0, 1e-6, 1e-12):
        parts = family.draw()
        parts["evidence"] *= size
        one = family.problem(parts).queries(slice(0, 1))
        evidence = one.evidence.expand(*one.shape[:-1], 3, one.evidence.shape[-1])
        three = InferenceProblem(one.preference, evidence, one.alpha, one.closeness)
        # Whoever can reach the tolerance does within eight steps.
        options: dict[str, Any] = {"tol": 1e-6, "max_steps": 9, "throw": False}
        alone, repeated = (problem.solve("exact", **options) for problem in (one, three))
        apart = (alone.dual - repeated.dual).norm(dim=-1)
        assert bool((apart <= alone.dual_error + repeated.dual_error).all())


@every_family
def test_the_constrained_form_reaches_its_radius(family: Family) -> None:
    problem, wanted = solved(family.name, "exact")
    radius = wanted.dual.norm(dim=-1) / problem.alpha
    found = problem.solve("constrained", radius=radius, tol=1e-6)
    torch.testing.assert_close(found.alpha, problem.alpha.expand(problem.shape), rtol=1e-4, atol=0)
    torch.testing.assert_close(found.mean, wanted.mean, rtol=1e-3, atol=1e-4)


@every_family
@every_estimator
def test_the_distribution_is_the_one_of_the_answer(family: Family, estimator: str) -> None:
    problem, found = solved(family.name, estimator)
    distribution = found.distribution
    assert distribution.lead == problem.shape
    torch.testing.assert_close(distribution.mean(), found.mean, rtol=1e-9, atol=1e-9)
    if isinstance(problem.closeness, KL):
        at_rest = torch.zeros_like(found.dual)
        vector = drawn(*found.dual.shape, seed=5)
        torch.testing.assert_close(
            distribution.tilted_covariance(at_rest)(vector), problem.conjugate.at(found.dual).product(vector)
        )
        back = distribution.tilted_mean(-found.dual)
        torch.testing.assert_close(back, problem.conjugate.rest_mean().expand_as(back), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(distribution.tilted(-found.dual).mean(), back, rtol=1e-8, atol=1e-9)
    part = distribution.queries(slice(1, 3))
    torch.testing.assert_close(part.mean(), distribution.mean()[..., 1:3, :])


PROBLEMS = [(family, family.problem(family.draw())) for family in FAMILIES]
WITHOUT_SAMPLES = (toys.Cumulant, toys.Exponential)
SAMPLED = [
    family
    for family, problem in PROBLEMS
    if isinstance(problem.closeness, KL)
    and not (isinstance(problem.preference, WITHOUT_SAMPLES) or family.name.startswith("bumps"))
]
every_sampled = pytest.mark.parametrize("family", SAMPLED, ids=lambda family: family.name)


def sampled(family: Family, parts: dict[str, Tensor], size: float) -> tuple[Any, Tensor]:
    """A distribution, tilted by duals of some size, and samples of it (count, ..., m, d)."""
    problem = family.problem(parts)
    u: Any = problem.preference
    distribution = u.tilted(size * point_in_domain(problem).detach()) if size else u
    return distribution, distribution.sample(40_000, torch.Generator().manual_seed(7))


@every_sampled
def test_samples_have_the_mean_and_covariance_and_carry_gradients(family: Family) -> None:
    parts = {name: part.requires_grad_() for name, part in family.draw().items()}
    for size in (0.5, 0.0):
        distribution, samples = sampled(family, parts, size)
        few = [distribution.sample(3, torch.Generator().manual_seed(1)) for _ in range(2)]
        assert torch.equal(*few)
        mean, origin = distribution.mean().expand(samples.shape[1:]), torch.zeros_like(samples[0])
        eye = torch.eye(origin.shape[-1], dtype=torch.float64)
        rows = [distribution.tilted_covariance(origin)(row.expand_as(origin)) for row in eye]
        offsets, covariance = (samples - mean).detach(), torch.stack(rows, -2)
        torch.testing.assert_close(samples.mean(0), mean, rtol=0, atol=0.03 * float(offsets.std()))
        spread = torch.einsum("k...i,k...j->...ij", offsets, offsets) / len(samples)
        torch.testing.assert_close(
            spread, covariance.detach(), rtol=0.08, atol=0.05 * float(covariance.detach().abs().max())
        )
    if not samples.requires_grad:  # of counts
        return
    # E‖t‖² = ‖μ‖² + tr Σ, through samples; the component that a sample of a mixture is of has no gradient.
    without = ("evidence", "alpha_scale", "log_weights")
    of_parts = [part for name, part in parts.items() if name not in without]
    exactly = mean.square().sum() + covariance.diagonal(dim1=-2, dim2=-1).sum()
    found, expected = (
        torch.autograd.grad(of, of_parts, retain_graph=True, allow_unused=True, materialize_grads=True)
        for of in (samples.square().sum(-1).mean(0).sum(), exactly)
    )
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.1, atol=0.1 * float(other.abs().max()))


@every_sampled
def test_densities_of_tilts_follow_from_the_cumulant(family: Family) -> None:
    parts = family.draw()
    if isinstance(family.preference(parts), Discrete | Continuous1d | Continuous2d):
        pytest.skip("is on templates or places")
    tilted, points = sampled(family, parts, 0.5)
    u, lam, points = family.preference(parts), 0.5 * point_in_domain(family.problem(parts)), points[:2]
    expected = u.log_density(points) + (points * lam).sum(-1) - u.log_mgf(lam)
    torch.testing.assert_close(tilted.log_density(points), expected, rtol=1e-8, atol=1e-8)
    # κ grows by what a second tilt adds.
    torch.testing.assert_close(tilted.log_mgf(-0.3 * lam), u.log_mgf(0.7 * lam) - u.log_mgf(lam))
    torch.testing.assert_close(u.tilted_shift(lam), u.tilted_mean(lam) - u.mean())
    assert not bool(u.tilted_shift(torch.zeros_like(lam)).any())


@every_family
def test_half_types_are_computed_in_float32(family: Family) -> None:
    if family.name.startswith(("somebody's", "exponential", "bumps on a rectangle")):
        pytest.skip("has the dtype that it is given")
    problem = family.problem(family.draw(dtype=torch.bfloat16))
    found = problem.solve("exact", tol=1e-3)
    assert problem.dtype == found.mean.dtype == torch.float32
    assert bool(found.converged.all())
    if isinstance(problem.preference, Discrete):
        assert "computed in torch.float32 (given torch.bfloat16)" in repr(problem)


@every_family
def test_weights_are_there_or_said_not_to_be(family: Family) -> None:
    problem, estimate = solved(family.name, "first_order")
    if isinstance(problem.conjugate, TemplateFamily):
        torch.testing.assert_close(estimate.weights.sum(-1), torch.ones(problem.shape, dtype=torch.float64))
        return
    with pytest.raises(ProblemError, match=r"no list of templates.*estimate\.distribution"):
        _ = estimate.weights
    with pytest.raises(ProblemError, match="primal_at"):
        problem.weights(estimate.dual)
