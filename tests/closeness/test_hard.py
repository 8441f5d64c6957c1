"""The closeness of temperature 0."""

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, Hard, InferenceProblem, ProblemError, Tsallis


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


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


def test_a_tie_survives_what_centring_makes_of_it() -> None:
    t = drawn(6, 3)
    t[1] = t[0] + 0.0
    z = 10 * t[:1]
    for dtype in (torch.float32, torch.float64):
        weights = (
            InferenceProblem(Discrete(t.to(dtype)), z.to(dtype), closeness=Hard())
            .solve("first_order")
            .weights
        )
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


def test_without_evidence_it_is_the_preference() -> None:
    found = InferenceProblem(
        Discrete(drawn(5, 3), LOG_U), torch.zeros(2, 3).double(), closeness=Hard()
    ).solve("first_order")
    torch.testing.assert_close(found.weights, LOG_U.exp().expand(2, 5))
    assert bool((found.mean_error < 1e-12).all())


@pytest.mark.parametrize("estimator", ["second_order", "exact", "gradient_ascent", "constrained"])
def test_other_estimators_say_that_there_is_first_order_only(estimator: str) -> None:
    problem = InferenceProblem(Discrete(drawn(5, 3)), drawn(2, 3, seed=1), closeness=Hard())
    options = {"radius": 1.0} if estimator == "constrained" else {}
    with pytest.raises(
        ProblemError, match=f"no '{estimator}' estimate; expected the estimator 'first_order'"
    ):
        problem.solve(estimator, **options)
    with pytest.raises(ProblemError, match="no curvature"):
        Hard().curvature(drawn(1, 5), LOG_U)


def test_gradients_pass_to_templates_and_preference() -> None:
    t, log_u = drawn(5, 3).requires_grad_(), drawn(5, seed=1).requires_grad_()
    found = InferenceProblem(Discrete(t, log_u), drawn(4, 3, seed=2), closeness=Hard()).solve("first_order")
    found.mean.sum().backward()
    assert t.grad is not None
    # All weight on one template a query: its gradient is that of the mean.
    torch.testing.assert_close(t.grad, found.weights.sum(0).unsqueeze(-1).expand(5, 3))
    assert log_u.grad is not None
    torch.testing.assert_close(log_u.grad, torch.zeros(5, dtype=torch.float64))
