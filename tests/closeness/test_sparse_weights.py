"""Sparse weights against the ``entmax`` package, bisection in higher precision, and finite differences."""

from typing import Any

import entmax
import numpy as np
import pytest
import torch
from torch import Tensor, func

from fenchel import ProblemError
from fenchel.closeness import sparse_weights
from tests.normal import drawn

ORDERS = [0.0, 1e-9, 0.02, 0.1, 0.25, 0.5, 0.8, 1.0]
every_order = pytest.mark.parametrize("a", ORDERS)
both_forms = pytest.mark.parametrize("csiszar", [False, True], ids=["bregman", "csiszar"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def log_weights(kind: str, rows: int, n: int, dtype: torch.dtype) -> Tensor | None:
    if kind == "uniform":
        return None
    log_u = drawn(rows, n, seed=7, scale=2.0)
    if kind == "masked":
        log_u = log_u.masked_fill(torch.arange(n) % 3 == 1, -torch.inf)
    return log_u.log_softmax(-1).to(dtype)


def by_bisection(f: np.ndarray, u: np.ndarray, a: float, csiszar: bool) -> np.ndarray:
    """Weights for potentials and u (n) in extended precision; shares nothing with the library."""
    order, kept = np.longdouble(a), u > 0
    g, u = f[kept].astype(np.longdouble), u[kept].astype(np.longdouble)

    def weights(tau: Any) -> Any:
        with np.errstate(over="ignore"):
            if a == 0:
                return u * np.exp(g - tau)
            if csiszar:
                return u * np.maximum(1 + order * (g - tau), 0) ** (1 / order)
            return np.maximum(u**order + order * (g - tau), 0) ** (1 / order)

    reach = 2000 if a == 0 else (np.max(u ** (-order)) if csiszar else 1) / order + 1
    low, high = g.max() - reach, g.max() + reach
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if weights(middle).sum() >= 1 else (low, middle)
    found = np.zeros(f.shape, np.longdouble)
    found[kept] = weights(low)
    return found


@every_order
@both_forms
@both_dtypes
@pytest.mark.parametrize("kind", ["uniform", "any", "masked"])
def test_weights_are_those_of_bisection(a: float, csiszar: bool, dtype: torch.dtype, kind: str) -> None:
    for n, scale, tied in ((31, 1.0, False), (67, 10.0, False), (67, 3.0, True), (66, 1e5, False)):
        log_u = log_weights(kind, 4, n, dtype)
        f = drawn(4, n, scale=scale).to(dtype)
        if tied:
            f = f.round()
        found = sparse_weights(f, log_u, a, csiszar=csiszar)
        # The referee's own powers 1/a lose digits where a is small.
        reference = 1e-9 if 0 < a < 1e-3 else 0.0
        even = np.full((4, n), 1 / np.longdouble(n))
        u = even if log_u is None else np.exp(log_u.double().numpy().astype(np.longdouble))
        rows = zip(f.double().numpy(), u, strict=True)
        expected = np.stack([by_bisection(*row, 0.0 if reference else a, csiszar) for row in rows])
        rounding = 2e-6 if dtype == torch.float32 else 5e-14
        if reference:
            rounding = max(rounding, 1e-9 * 40 * min(scale, 10) ** 2)
        # What rounding makes of a score as large as these, to differences of scores.
        rounding += torch.finfo(dtype).eps * scale * (a > 0) / 4
        np.testing.assert_allclose(found.double().numpy(), expected.astype(np.float64), rtol=0, atol=rounding)
        torch.testing.assert_close(found.sum(-1), torch.ones(4, dtype=dtype))
        assert found.dtype == dtype


@both_dtypes
def test_uniform_weights_are_those_of_entmax(dtype: torch.dtype) -> None:
    f = torch.cat([drawn(40, 100, scale=3), drawn(5, 100, scale=1e5), drawn(5, 100).round()]).to(dtype)
    for a, theirs in ((1.0, entmax.sparsemax), (0.5, entmax.entmax15)):
        torch.testing.assert_close(sparse_weights(f, None, a), theirs(f, dim=-1), rtol=0, atol=1e-6)
    for a in (0.25, 0.75):
        expected = entmax.entmax_bisect(f, alpha=1 + a, dim=-1, n_iter=80)
        torch.testing.assert_close(sparse_weights(f, None, a), expected, rtol=0, atol=1e-6)


@every_order
@both_forms
@pytest.mark.parametrize("kind", ["uniform", "masked"])
def test_a_level_that_all_scores_share_costs_no_digits(kind: str, csiszar: bool, a: float) -> None:
    """Scores are multiples of 1/64, so that adding the level rounds nothing."""
    f = (drawn(6, 21, scale=64).round() / 64).float()
    log_u = log_weights(kind, 6, 21, torch.float32)
    expected = sparse_weights(f, log_u, a, csiszar=csiszar)
    for level in (-33_000.0, 33_000.0):
        found = sparse_weights(f + level, log_u, a, csiszar=csiszar)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@both_forms
@every_order
def test_masked_is_removed_and_a_score_of_minus_infinity_is_masked(a: float, csiszar: bool) -> None:
    f, log_u = drawn(4, 9), drawn(1, 9, seed=3)
    kept = torch.tensor([True, False, True, True, False, True, True, True, False])
    masked = log_u.masked_fill(~kept, -torch.inf).log_softmax(-1)
    found = sparse_weights(f, masked, a, csiszar=csiszar)
    alone = sparse_weights(f[:, kept], masked[:, kept], a, csiszar=csiszar)
    assert bool((found[:, ~kept] == 0).all())
    torch.testing.assert_close(found[:, kept], alone, rtol=1e-12, atol=1e-15)
    # A mask that somebody wrote as a large negative number is one too.
    additive = log_u.masked_fill(~kept, torch.finfo(torch.float32).min).log_softmax(-1)
    torch.testing.assert_close(sparse_weights(f, additive, a, csiszar=csiszar), found, rtol=1e-12, atol=1e-15)
    if a > 0 and not csiszar:
        by_score = sparse_weights(f.masked_fill(~kept, -torch.inf), None, a)
        torch.testing.assert_close(by_score[:, kept], sparse_weights(f[:, kept], None, a))


@both_forms
@pytest.mark.parametrize("a", [0.0, 0.05, 0.3, 0.5, 1.0])
def test_every_gradient_is_that_of_finite_differences(a: float, csiszar: bool) -> None:
    inputs = [drawn(5, 8), drawn(5, 8, seed=1), torch.full((5, 1), a, dtype=torch.float64)]
    direction = drawn(5, 8, seed=2)

    def weighted(f: Tensor, log_u: Tensor, order: Tensor) -> Tensor:
        masked = log_u.masked_fill(torch.arange(8) == 2, -torch.inf).log_softmax(-1)
        return (sparse_weights(f, masked, order, csiszar=csiszar) * direction).sum()

    gradients = func.grad(weighted, (0, 1, 2))(*inputs)
    for at, gradient in enumerate(gradients):
        along, step = drawn(*inputs[at].shape, seed=at + 5), 1e-6
        one_sided = at == 2 and a in (0.0, 1.0)  # orders beyond are refused
        if one_sided:
            along = along.abs() * (1 - 2 * a)
        ends = {}
        for steps in (0, 1, 2) if one_sided else (-1, 1):
            moved = [part + steps * step * along if k == at else part for k, part in enumerate(inputs)]
            ends[steps] = float(weighted(*moved))
        rise = 4 * ends[1] - ends[2] - 3 * ends[0] if one_sided else ends[1] - ends[-1]
        assert float((gradient * along).sum()) == pytest.approx(rise / (2 * step), rel=1e-5, abs=1e-7)


def test_orders_differ_by_row_and_broadcast() -> None:
    f, log_u = drawn(3, 4, 6), drawn(4, 6, seed=1).log_softmax(-1)
    orders = torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64)[:, None, None]
    found = sparse_weights(f, log_u, orders)
    for head in range(3):
        torch.testing.assert_close(found[head], sparse_weights(f[head], log_u, float(orders[head])))
    # What depends on the order alone is stretched too.
    assert sparse_weights(f[0], None, orders).shape == (3, 4, 6)


# torch's own rules of forward mode are scripted when they are first used.
forward_mode = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")


@forward_mode
@both_forms
@pytest.mark.parametrize("a", [0.05, 0.5, 0.7, 1.0])
@pytest.mark.parametrize("kind", ["uniform", "any", "masked"])
def test_forward_mode_agrees_with_backward_mode(kind: str, a: float, csiszar: bool) -> None:
    f, log_u = drawn(3, 6, scale=0.6), log_weights(kind, 3, 6, torch.float64)
    order = torch.tensor(a, dtype=torch.float64)
    given: tuple[Tensor, ...] = (f, order) if log_u is None else (f, order, log_u)

    def weights(f: Tensor, order: Tensor, log_u: Tensor | None = None) -> Tensor:
        normalised = None if log_u is None else log_u.log_softmax(-1)
        return sparse_weights(f, normalised, order, csiszar=csiszar)

    every = tuple(range(len(given)))
    forwards, backwards = func.jacfwd(weights, every)(*given), func.jacrev(weights, every)(*given)
    for one, other in zip(forwards, backwards, strict=True):
        torch.testing.assert_close(one, other.nan_to_num(), rtol=1e-9, atol=1e-12)
        assert bool((one != 0).any())
    along = tuple(drawn(*part.shape, seed=at + 3) for at, part in enumerate(given))
    torch.testing.assert_close(func.jvp(weights, given, along)[0], weights(*given))


@forward_mode
@both_forms
@pytest.mark.parametrize("a", [0.3, 0.5, 1.0])
def test_second_derivatives_in_every_mode(a: float, csiszar: bool) -> None:
    f, log_u = drawn(6, scale=0.6).requires_grad_(), drawn(6, seed=1, scale=0.2).requires_grad_()

    def weights(f: Tensor, log_u: Tensor, *order: Tensor) -> Tensor:
        return sparse_weights(f, log_u.log_softmax(-1), *(order or (a,)), csiszar=csiszar)

    order = [torch.tensor(a, dtype=torch.float64, requires_grad=True)] if a < 1 else []
    assert torch.autograd.gradgradcheck(weights, (f, log_u, *order), check_fwd_over_rev=True)

    def loss(f: Tensor) -> Tensor:
        return (weights(f, log_u.detach()) * f.sin()).sum()

    x = f.detach()
    torch.testing.assert_close(func.jacrev(func.jacfwd(loss))(x), func.hessian(loss)(x))


@forward_mode
def test_a_forward_derivative_of_a_forward_derivative_is_refused() -> None:
    f = drawn(6)
    twice = func.jacfwd(func.jacfwd(lambda f: sparse_weights(f, None, 0.5)))
    with pytest.raises(ProblemError, match=r"torch\.func\.hessian, or jacfwd of grad"):
        twice(f)
    # What is differentiated forwards elsewhere is no concern of theirs.
    mixed = func.jacfwd(lambda f: func.jacrev(lambda f: sparse_weights(f, None, 0.5))(f))
    assert mixed(f).shape == (6, 6, 6)


@pytest.mark.parametrize("a", [0.0, 0.3, 0.5, 1.0])
def test_edges_and_half_types(a: float) -> None:
    f = drawn(2, 5)
    f[0, 1] = torch.inf  # which has no answer in its row alone
    found = sparse_weights(f, None, a)
    assert bool(found[0].isnan().all())
    assert float(found[1].sum()) == pytest.approx(1)
    for shape in ((0, 4), (3, 0)):
        assert sparse_weights(torch.zeros(shape), None, a).shape == shape
    assert sparse_weights(torch.tensor([[3.0]]), None, a).item() == 1
    half = drawn(3, 20).bfloat16()
    expected = sparse_weights(half.float(), None, a).bfloat16()
    torch.testing.assert_close(sparse_weights(half, None, a), expected)
