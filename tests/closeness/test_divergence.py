"""A divergence of one's own, and what catches one that contradicts itself."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel import (
    KL,
    Discrete,
    Divergence,
    Hard,
    InferenceProblem,
    OptimalTransport,
    ProblemError,
    Tsallis,
    check_closeness,
)
from fenchel import functional as F
from fenchel.closeness import AbstractCloseness, sparse_weights
from fenchel.closeness.tsallis import closeness_of
from fenchel.nn import ContinuousAttention, MultiheadAttention
from tests.conformance.toys import Few
from tests.normal import drawn

HOT = 1.7

RIGHT: dict[str, Any] = {
    "value": lambda p, log_u: HOT * KL().value(p, log_u),
    "conjugate": lambda f, log_u: HOT * KL().conjugate(f / HOT, log_u),
    "weights": lambda f, log_u: KL().weights(f / HOT, log_u),
    "modulus": HOT,
}


def curvature(f: Tensor, log_u: Tensor) -> Callable[[Tensor], Tensor]:
    product = KL().curvature(f / HOT, log_u)
    return lambda vector: product(vector) / HOT


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        (
            "weights",
            lambda f, u: KL().weights(1.02 * f / HOT, u),
            "weights are not the gradient of conjugate",
        ),
        ("weights", lambda f, u: 0.5 * KL().weights(f / HOT, u), "weights do not sum to 1"),
        ("weights", lambda f, u: 2 * KL().weights(f, u) - KL().weights(-f, u), "weights are not above 0"),
        ("weights", lambda f, u: KL().weights(f / HOT, u).sum(-1), r"weights gave shape \(8, 1\)"),
        ("weights", lambda f, u: KL().weights(f / HOT, u) * torch.nan, "weights are not above 0|do not sum"),
        ("conjugate", lambda f, u: 1.01 * RIGHT["conjugate"](f, u), "not the gradient of conjugate"),
        ("conjugate", lambda f, u: RIGHT["conjugate"](f, u) - 0.1, "equality"),
        ("value", lambda p, u: RIGHT["value"](p, u) + 0.01, "equality"),
        ("value", lambda p, u: 3, "value gave a int"),
        ("curvature", lambda f, u: lambda v: v * KL().weights(f / HOT, u), "not the derivative of weights"),
        ("curvature", lambda f, u: lambda v: v.roll(1, -1), "curvature is not symmetric"),
        ("curvature", lambda f, u: lambda v: -curvature(f, u)(v), "curvature is not positive"),
        ("modulus", 2.5, "modulus is too large"),
    ],
)
def test_what_contradicts_itself_is_caught_where_it_meets_a_preference(
    name: str, wrong: Any, message: str
) -> None:
    parts = {**RIGHT, "curvature": curvature, name: wrong}
    with pytest.raises(ProblemError, match=message):
        InferenceProblem(Discrete(drawn(6, 3)), drawn(2, 3), closeness=Divergence(**parts))
    with pytest.raises(ProblemError, match="check_closeness"):
        check_closeness(Divergence(**parts))
    if name in ("modulus", "value", "curvature") and wrong != 3 and "int" not in message:
        unchecked = Divergence(**parts, check=False)
        assert InferenceProblem(Discrete(drawn(6, 3)), drawn(2, 3), closeness=unchecked).shape == (2,)


def test_a_class_of_ones_own_that_contradicts_itself_is_caught_at_first_use() -> None:
    class Wrong(Few):
        def value(self, weights: Tensor, log_preference: Tensor) -> Tensor:
            return KL().value(weights, log_preference)

    x, u, own = drawn(1, 1, 6, 3), Discrete(drawn(6, 3)), Wrong(torch.tensor(HOT, dtype=torch.float64))
    for use in (
        lambda: InferenceProblem(u, x[0, 0], closeness=own),
        lambda: F.attention(x, x, x, closeness=own),
    ):
        with pytest.raises(ProblemError, match=r"Wrong\(\.\.\.\) fails check_closeness"):
            use()


def test_weight_on_masked_templates_is_refused() -> None:
    def weights(f: Tensor, log_u: Tensor) -> Tensor:
        return sparse_weights(f / 3 + log_u.exp(), None, 1.0)

    def conjugate(f: Tensor, log_u: Tensor) -> Tensor:
        p = weights(f, log_u)
        return (p * f).sum(-1) - value(p, log_u)

    def value(p: Tensor, log_u: Tensor) -> Tensor:
        return 1.5 * (p - log_u.exp()).square().sum(-1)

    own, u = Divergence(value, conjugate, weights, modulus=0.5), Discrete(drawn(6, 3))
    InferenceProblem(u, drawn(2, 3), closeness=own).solve("exact")
    x = drawn(1, 1, 6, 4)
    with pytest.raises(ProblemError, match="masked"):
        F.attention(x, x, x, log_preference=torch.ones(6, 6, dtype=torch.bool).tril(), closeness=own)
    with pytest.raises(ProblemError, match="masked"):
        check_closeness(own)


@pytest.mark.parametrize(
    "closeness",
    [
        KL(),
        Tsallis(1),
        Tsallis(1.5),
        Tsallis(2, "csiszar", 0.3),
        Tsallis(1 + torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))),
        Hard(),
        OptimalTransport("squared_euclidean", 0.5, warn=False),
    ],
    ids=repr,
)
def test_the_librarys_own_pass(closeness: AbstractCloseness) -> None:
    report = check_closeness(closeness)
    assert max(report.worst.values()) < 1e-6
    assert repr(closeness) in repr(report)
    assert ("curvature" in report.worst) == closeness.curved
    masked = Discrete(drawn(5, 2), torch.tensor([0.0, 1.0, -torch.inf, 0.3, -2.0]).double())
    check_closeness(closeness, masked, points=6, seed=3)


def test_sparse_weights_of_ones_own_are_solved_for_where_templates_are_large() -> None:
    """Seen through φ alone, with kinks that nothing tells the solver of."""
    n = 9
    own = Divergence(
        lambda p, log_u: (p - log_u.exp()).square().sum(-1) / 2,
        Tsallis(2).conjugate,
        lambda f, log_u: sparse_weights(f, log_u, 1.0),
        modulus=1 / n,
    )
    templates, z = drawn(50, n, 16, scale=10), drawn(50, 1, 16, seed=1)
    found = InferenceProblem(Discrete(templates), z, closeness=own).solve("exact", tol=1e-6)
    expected = InferenceProblem(Discrete(templates), z, closeness=Tsallis(2)).solve("exact", tol=1e-8)
    torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-5)


LOG_U = torch.tensor([[0.1, 0.3, 0.2, 0.4, 0.0]], dtype=torch.float64).log()


@pytest.mark.parametrize("order", [1.0, 1.4, 2.0])
def test_it_is_the_limit_of_temperature_zero(order: float) -> None:
    f = torch.cat([drawn(6, 5), torch.tensor([[1.0, 1.0, 0.0, 1.0, 3.0], [0.0] * 5], dtype=torch.float64)])
    cold = Tsallis(order, "csiszar", 1e-6)
    torch.testing.assert_close(Hard().weights(f, LOG_U), cold.weights(f, LOG_U), rtol=0, atol=1e-9)
    torch.testing.assert_close(Hard().conjugate(f, LOG_U), cold.conjugate(f, LOG_U), rtol=0, atol=1e-4)


def test_scores_that_are_the_same_share_by_preference_and_masks_stay() -> None:
    f = torch.tensor([[2.0, 2.0, 2.0, -1.0, 7.0]], dtype=torch.float64)
    expected = torch.tensor([[1 / 6, 3 / 6, 2 / 6, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(Hard().weights(f, LOG_U), expected)
    even = torch.zeros(1, 5, dtype=torch.float64).log_softmax(-1)
    assert float(Hard().weights(f[..., :3], even[..., :3])[0, 0]) == pytest.approx(1 / 3)
    assert bool(Hard().value(torch.full((1, 5), 0.2, dtype=torch.float64), LOG_U).isinf().all())
    with pytest.raises(ProblemError, match="no curvature"):
        Hard().curvature(f, LOG_U)


def test_a_tie_survives_what_centring_makes_of_it() -> None:
    t = drawn(6, 3)
    t[1] = t[0]
    for dtype in (torch.float32, torch.float64):
        problem = InferenceProblem(Discrete(t.to(dtype)), 10 * t[:1].to(dtype), closeness=Hard())
        weights = problem.solve("first_order").weights
        assert weights[0, 0] == weights[0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_its_bounds_are_bounds(dtype: torch.dtype) -> None:
    """Against the problem of a tiny temperature, whose answer is nearly that of none."""
    u, z = Discrete(drawn(7, 3).to(dtype), drawn(7, seed=1).to(dtype)), drawn(20, 3, seed=2).to(dtype)
    found = InferenceProblem(u, z, 0.7, Hard()).solve("first_order")
    cold = InferenceProblem(u, z, 0.7, Tsallis(2, temperature=1e-5)).to(torch.float64)
    truth = cold.solve("exact", tol=1e-9, throw=False)
    # A divergence of at most 1e-5 moves the least objective by no more, and the mean by the root of that.
    slack = 2 * (2 * 1e-5 * 7 / 0.7) ** 0.5
    assert bool(((found.mean - truth.mean).norm(dim=-1) <= found.mean_error + slack).all())
    assert bool(((found.dual - truth.dual).norm(dim=-1) <= found.dual_error + slack).all())
    assert bool((found.total_variation_error >= 1).all())
    problem = InferenceProblem(u, z, 0.7, Hard())
    gap = problem.primal(found.weights) - problem.dual(found.dual)
    assert bool((gap <= found.gap * (1 + 1e-6)).all())
    torch.testing.assert_close(gap, problem.gap_at(found.dual), rtol=1e-5, atol=1e-6)


def test_gradients_pass_to_templates_and_preference() -> None:
    t, log_u = drawn(5, 3).requires_grad_(), drawn(5, seed=1).requires_grad_()
    z = torch.cat([drawn(4, 3, seed=2), torch.zeros(1, 3).double()])
    found = InferenceProblem(Discrete(t, log_u), z, closeness=Hard()).solve("first_order")
    torch.testing.assert_close(found.weights[-1], log_u.softmax(-1))  # without evidence
    assert float(found.mean_error[-1].detach()) < 1e-12
    of_t, of_u = torch.autograd.grad(found.mean[:-1].sum(), (t, log_u))
    # All weight on one template a query: its gradient is that of the mean.
    torch.testing.assert_close(of_t, found.weights[:-1].sum(0).unsqueeze(-1).expand(5, 3))
    torch.testing.assert_close(of_u, torch.zeros_like(of_u))


NAMES: dict[str, AbstractCloseness] = {
    "sparsemax": Tsallis(2),
    "entmax15": Tsallis(1.5),
    "tsallis:1.25:csiszar:temperature=0.5": Tsallis(1.25, "csiszar", 0.5),
    "softmax": KL(),
    "kl": KL(),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_what_it_stands_for(name: str) -> None:
    closeness, (q, k, v) = NAMES[name], drawn(3, 1, 2, 5, 4)
    assert repr(closeness_of(name)) == repr(closeness)
    problems = [InferenceProblem(Discrete(drawn(6, 3)), drawn(4, 3), closeness=c) for c in (name, closeness)]
    assert torch.equal(*(problem.solve("exact").weights for problem in problems))
    for variant in (None, F.Relative(drawn(1, 2, 9, 4))):
        found = (F.infer(q, k, v, variant=variant, closeness=c).output for c in (name, closeness))
        assert torch.equal(*found)
    if isinstance(closeness, KL):
        assert torch.equal(F.attention(q, k, v, closeness=closeness), F.attention(q, k, v))
    layer = MultiheadAttention(8, 2, batch_first=True, closeness=name, dtype=torch.float64)
    x = drawn(2, 5, 8)
    named = layer(x, x, x)[0]
    for given in (closeness, name):
        layer.closeness = given
        assert torch.equal(named, layer(x, x, x)[0])
    if isinstance(closeness, KL):
        ContinuousAttention(8, 2, closeness=name)


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_numbers_of_ones_own_may_differ_by_query(estimator: str) -> None:
    temperature = 1 + torch.rand(5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own, theirs = Few(temperature), Tsallis(1, temperature=temperature)
    assert max(check_closeness(own).worst.values()) < 1e-6
    assert own.query_shapes() == {"temperature": (5,)}
    assert repr(own) == "Few(...)"
    assert own.to(torch.float32).temperature.dtype == torch.float32
    u, z = Discrete(drawn(6, 3)), drawn(5, 3, seed=1)
    whole, expected = (InferenceProblem(u, z, closeness=c) for c in (own, theirs))
    weights = expected.solve(estimator).weights
    for found, rows in ((whole, slice(None)), (whole.queries(slice(1, 3)), slice(1, 3))):
        torch.testing.assert_close(found.solve(estimator).weights, weights[rows], rtol=1e-6, atol=1e-8)
