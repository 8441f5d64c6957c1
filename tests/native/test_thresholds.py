"""Native thresholds against their twin in torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fenchel import Discrete, InferenceProblem, Tsallis
from fenchel.closeness import sparse_weights
from fenchel.closeness.threshold import threshold_weights
from fenchel.layout import layout_of
from fenchel.native import switched
from fenchel.solver.coordinates import coordinates_for
from fenchel.solver.mixing import Mixing, PartlyNativeMixing, mixing_from
from fenchel.solver.newton import Newton
from fenchel.solver.rows import Rows
from tests.native.needed import NATIVE

pytestmark = NATIVE

both_forms = pytest.mark.parametrize("csiszar", [False, True], ids=["bregman", "csiszar"])
both_dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)


def drawn(*shape: int, seed: int = 0, scale: float = 3.0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (scale * torch.randn(shape, dtype=torch.float64, generator=generator)).to(dtype)


@both_forms
@both_dtypes
@pytest.mark.parametrize("a", [0.1, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("n", [1, 7, 65])
@pytest.mark.parametrize("of", [None, (1, 1), (2, 1), (2, 6)], ids=str)
def test_both_find_the_same_weights(
    csiszar: bool, dtype: torch.dtype, a: float, n: int, of: tuple[int, int] | None
) -> None:
    f = drawn(2, 6, n, dtype=dtype)
    log_u = None if of is None else drawn(*of, n, seed=1, scale=1.0, dtype=dtype)
    if log_u is not None:
        if n > 2:
            log_u[..., 1::3] = -torch.inf
        log_u = log_u.log_softmax(-1)
    native = threshold_weights(f, log_u, a, csiszar=csiszar)
    with switched(False):
        by_torch = threshold_weights(f, log_u, a, csiszar=csiszar)
    tolerance = 2e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(native, by_torch, rtol=10 * tolerance, atol=tolerance)
    torch.testing.assert_close(native.sum(-1), torch.ones(2, 6, dtype=dtype))


@both_forms
@both_dtypes
@pytest.mark.parametrize("of", [(1, 1), (1, 6), (2, 1), (2, 6)], ids=str)
@pytest.mark.parametrize("preferred", [None, (1, 1), (2, 1), (2, 6), (1, 6)], ids=str)
def test_orders_of_rows_are_theirs(
    csiszar: bool, dtype: torch.dtype, of: tuple[int, int], preferred: tuple[int, int] | None
) -> None:
    f, orders = drawn(2, 6, 21, dtype=dtype), drawn(*of, 1, seed=2).sigmoid() * 0.9 + 0.1
    log_u = None if preferred is None else drawn(*preferred, 21, seed=1, dtype=dtype).log_softmax(-1)
    found = threshold_weights(f, log_u, orders.to(dtype), csiszar=csiszar)
    one = threshold_weights(
        f.reshape(2, 6, 1, 21),
        None if log_u is None else log_u.unsqueeze(2),
        orders.to(dtype).unsqueeze(2),
        csiszar=csiszar,
    )
    torch.testing.assert_close(one.squeeze(2), found)
    for group in range(2):
        for row in range(6):
            a = float(orders.to(dtype).expand(2, 6, 1)[group, row])
            u = None if log_u is None else log_u.expand(2, 6, 21)[group, row]
            torch.testing.assert_close(
                found[group, row], threshold_weights(f[group, row], u, a, csiszar=csiszar)
            )


@both_forms
@pytest.mark.parametrize("a", [0.3, 0.5, 1.0])
def test_what_is_no_number_stays_none_and_rows_do_not_see_each_other(csiszar: bool, a: float) -> None:
    f = drawn(4, 40)
    expected = threshold_weights(f, None, a, csiszar=csiszar)
    f[1, 3], f[2] = torch.nan, -torch.inf
    for on in (True, False):
        with switched(on):
            found = threshold_weights(f, None, a, csiszar=csiszar)
        assert bool(found[1:3].isnan().all(-1).all())
        torch.testing.assert_close(found[[0, 3]], expected[[0, 3]])


@both_dtypes
@pytest.mark.parametrize("a", [0.5, 1.0])
def test_both_find_the_same_gradient(dtype: torch.dtype, a: float) -> None:
    f, direction = drawn(5, 6, 33, dtype=dtype).requires_grad_(), drawn(5, 6, 33, seed=1, dtype=dtype)
    (native,) = torch.autograd.grad((sparse_weights(f, None, a) * direction).sum(), f)
    with switched(False):
        (by_torch,) = torch.autograd.grad((sparse_weights(f, None, a) * direction).sum(), f)
    torch.testing.assert_close(native, by_torch)
    (recorded,) = torch.autograd.grad((sparse_weights(f, None, a) * direction).sum(), f, create_graph=True)
    # At a = 1 it is a constant between kinks.
    assert recorded.requires_grad == (a < 1)
    torch.testing.assert_close(recorded, by_torch)


def test_mixing_that_is_partly_native_goes_where_torch_does() -> None:
    u, z = Discrete(drawn(30, 20, scale=0.3).float()), drawn(2, 15, 20, seed=1, scale=1.0).float()
    order = torch.tensor([[1.5], [2.0]])
    problem = InferenceProblem(u, z, closeness=Tsallis(order))
    (_, _, block) = next(iter(layout_of(problem).blocks(2**20, 24, 4)))
    coordinates = coordinates_for(block)
    rows = Rows.of(block, coordinates.evidence_of(block))
    newton = Newton(coordinates, tol=1e-4)
    points: list[Tensor] = []
    for on, kind in ((True, PartlyNativeMixing), (False, Mixing)):
        with switched(on):
            mixing = mixing_from(coordinates, newton.start(rows))
            assert type(mixing) is kind
            squares = [mixing.step(rows, coordinates) for _ in range(4)]
            points.append(mixing.following()[1])
        assert bool((squares[-1] < squares[0]).all())
    torch.testing.assert_close(points[0], points[1], rtol=1e-4, atol=1e-4)


def test_threads_change_nothing() -> None:
    f, before = drawn(37, 50), torch.get_num_threads()
    alone = threshold_weights(f, None, 0.3, csiszar=False)
    try:
        torch.set_num_threads(3)
        torch.testing.assert_close(threshold_weights(f, None, 0.3, csiszar=False), alone, rtol=0, atol=0)
    finally:
        torch.set_num_threads(before)
