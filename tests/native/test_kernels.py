"""Every native kernel against its twin in torch: values to rounding, masked rows, sizes of every kind, no numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest
import torch
from torch import Tensor

from fenchel.closeness.response import SoftmaxResponse
from fenchel.native import kernels, switched
from fenchel.solver.certified import CertifiedSolver
from fenchel.solver.coordinates import GramCoordinates, TemplateCoordinates
from fenchel.solver.evaluation import Evaluated, evaluated
from fenchel.solver.mixing import Mixing, NativeMixing, Point, mixing_from
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.rows import Rows
from fenchel.solver.served import served
from tests.native.needed import NATIVE

pytestmark = NATIVE

SIZES = [(1, 3, 1), (1, 1, 2), (2, 5, 17), (1, 7, 64), (3, 4, 130)]
PREFERENCES = ["shared", "of a group", "of a row", "masked", "one left"]


def rows_of(
    g: int, r: int, n: int, preference: str = "shared", scale: float = 1.0, *, seed: int = 0
) -> tuple[GramCoordinates, Rows]:
    """Coordinates and rows in float64."""
    generator = torch.Generator().manual_seed(seed)
    templates = torch.randn(g, n, 6, dtype=torch.float64, generator=generator) * 0.5
    templates = templates - templates.mean(1, keepdim=True)
    shape = {"shared": (1, 1, n), "of a group": (g, 1, n)}.get(preference, (g, r, n))
    log_preference = torch.randn(shape, dtype=torch.float64, generator=generator)
    if preference == "masked":
        log_preference[..., n // 2 + 1 :] = -torch.inf
    if preference == "one left":
        log_preference[..., 1:] = -torch.inf
    response = SoftmaxResponse.to_preference(log_preference.log_softmax(-1))
    evidence = scale * torch.randn(g, r, 6, dtype=torch.float64, generator=generator)
    rows = Rows(
        response,
        response.rest,
        torch.full((1, 1, 1), 0.8, dtype=torch.float64),
        evidence @ templates.mT,
        evidence.square().sum(-1, keepdim=True),
    )
    return GramCoordinates(templates @ templates.mT), rows


def narrow(coordinates: GramCoordinates, rows: Rows) -> tuple[GramCoordinates, Rows]:
    log_preference = rows.response.log_preference.float().log_softmax(-1)  # type: ignore[attr-defined]
    response = SoftmaxResponse.to_preference(log_preference)
    return GramCoordinates(coordinates.operator.float()), Rows(
        response, response.rest, rows.alpha.float(), rows.evidence.float(), rows.evidence_square.float()
    )


def both(compute: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    with torch.no_grad():
        native = compute()
        with switched(False):
            return native, compute()


def close(compute: Callable[[], tuple[Tensor, ...]], *, rtol: float = 2e-5, atol: float = 2e-6) -> None:
    for one, other in zip(*both(compute), strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, equal_nan=True)


def parts_of(record: object, *names: str) -> tuple[Tensor, ...]:
    found = ((part.name, getattr(record, part.name)) for part in fields(record))  # type: ignore[arg-type]
    return tuple(value for name, value in found if isinstance(value, Tensor) and (not names or name in names))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("preference", PREFERENCES)
def test_the_first_order_point(size: tuple[int, int, int], preference: str) -> None:
    coordinates, rows = narrow(*rows_of(*size, preference))
    assert served(coordinates, rows) is not None
    close(lambda: parts_of(Newton(coordinates, tol=1e-4).start(rows)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("low", [False, True])
def test_iterations_of_mixing(size: tuple[int, int, int], preference: str, low: bool) -> None:
    coordinates, rows = narrow(*rows_of(*size, preference, scale=0.3))
    lifting = coordinates.low_precision() if low else coordinates
    # Products in bfloat16 are of rounded numbers, and what is next to a tie may round either way.
    bound = 2e-3 if low else 1e-4

    def mixed() -> tuple[Tensor, ...]:
        mixing = mixing_from(coordinates, Newton(coordinates, tol=1e-4).start(rows))
        assert isinstance(mixing, NativeMixing if kernels.loaded() else Mixing)
        found = [*mixing.following()]
        for _ in range(2):
            mixing.step(rows, lifting)
            found += mixing.following()
        return tuple(found)

    with torch.no_grad():
        native = mixed()
        with switched(False):
            twin = mixed()
    for one, other in zip(native, twin, strict=True):
        allowed = torch.isfinite(other)
        assert float((one - other)[allowed].abs().max()) <= bound * float(1 + other[allowed].abs().max())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("most", [torch.inf, -1.0])
def test_one_point_further(size: tuple[int, int, int], preference: str, most: float) -> None:
    coordinates, rows = narrow(*rows_of(*size, preference, scale=0.3))
    x = 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(1))
    x = x - x.mean(-1, keepdim=True)

    def further() -> tuple[Tensor, ...]:
        method = Newton(coordinates, tol=1e-4)
        mixing = mixing_from(coordinates, method.start(rows))
        state = method.start(rows, x)
        potential = coordinates.scaled_potential(rows, state.lifted)
        mean = coordinates.complement(rows, x)
        point = Point(mean, potential, state.residual, state.lifted_residual, state.square.squeeze(-1))
        return mixing.further(rows, point, torch.full(size[:2], most))

    close(further, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("preference", PREFERENCES)
@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
def test_what_float64_sees(size: tuple[int, int, int], preference: str, scale: float) -> None:
    wide, rows = rows_of(*size, preference, scale)
    working, _ = narrow(wide, rows)
    x = 0.1 * scale * torch.randn(size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def see() -> tuple[Tensor, ...]:
        found = evaluated(working, wide, rows, x)
        return parts_of(found, "potential", "residual", "dual_norm", "error")

    close(see, rtol=2e-6, atol=1e-12)


def test_the_certificate_is_of_float64() -> None:
    """Residuals in float64 agree to its rounding, far below that of what is handed on."""
    wide, rows = rows_of(1, 4, 33)
    x = torch.zeros_like(rows.evidence)
    found: list[Tensor] = []
    for on in (True, False):
        with switched(on), torch.no_grad():
            seen: Evaluated = evaluated(narrow(wide, rows)[0], wide, rows, x)
            found.append(seen.dual_norm)
    torch.testing.assert_close(*found, rtol=1e-13, atol=0)
    with torch.no_grad():
        response = rows.response
        weights = response.at(response.argument(rows.alpha, rows.evidence))
        squares = wide.squares.unsqueeze(1).contiguous()
        assert isinstance(response, SoftmaxResponse)
        lifted = torch.zeros_like(x)
        *_, sums = kernels.seen(
            rows.evidence, x, lifted, response.log_preference, response.rest, squares, float(rows.alpha)
        )
    torch.testing.assert_close(lifted, weights, rtol=1e-13, atol=1e-16)
    torch.testing.assert_close(sums[1], (response.rest - weights).abs().sum(-1), rtol=1e-12, atol=1e-16)
    torch.testing.assert_close(sums[2].sqrt(), wide.spread(weights), rtol=1e-13, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e4, 1e30])
def test_huge_and_tiny_scores(scale: float) -> None:
    coordinates, rows = narrow(*rows_of(1, 5, 19, "masked", scale))
    close(lambda: parts_of(Newton(coordinates, tol=1e-4).start(rows), "weights", "residual"), atol=2e-7)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_no_numbers_stay_in_their_rows(bad: float) -> None:
    coordinates, rows = narrow(*rows_of(1, 4, 21))
    rows.evidence[0, 2, 5] = bad

    def start() -> tuple[Tensor, ...]:
        return parts_of(Newton(coordinates, tol=1e-4).start(rows), "weights", "residual")

    native, twin = both(start)
    for one, other in zip(native, twin, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6, equal_nan=True)
        assert bool(torch.isfinite(one[0, [0, 1, 3]]).all())


def test_a_row_with_nothing_allowed_is_no_number() -> None:
    coordinates, rows = narrow(*rows_of(1, 3, 9, "of a row"))
    response = rows.response
    assert isinstance(response, SoftmaxResponse)
    response.log_preference[0, 1] = -torch.inf
    native, twin = both(lambda: parts_of(Newton(coordinates, tol=1e-4).start(rows), "weights"))
    assert bool(native[0][0, 1].isnan().all())
    torch.testing.assert_close(native[0], twin[0], equal_nan=True)


def test_threads_compute_the_same() -> None:
    wide, rows = rows_of(2, 37, 65, "of a row")
    coordinates, rows = narrow(wide, rows)
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            found.append(Newton(coordinates, tol=1e-4).start(rows).weights)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_bfloat16_rounds_as_torch_does() -> None:
    coordinates, rows = narrow(*rows_of(1, 9, 70))
    with torch.no_grad():
        mixing = mixing_from(coordinates, Newton(coordinates, tol=1e-4).start(rows))
        assert isinstance(mixing, NativeMixing)
        _, _, residual, rounded, _ = mixing.points.mixed(0.8, rounded=True)
    assert rounded is not None
    assert torch.equal(rounded, residual.bfloat16())


def test_the_whole_solve() -> None:
    """Points, errors and steps of a solve that mixes, goes to Newton's method and refines."""
    wide, rows = rows_of(2, 40, 50, "masked", 2.0)
    working, first_rows = narrow(wide, rows)

    def solve() -> tuple[Tensor, ...]:
        solver = CertifiedSolver(working, wide, tol=1e-4, max_steps=50)
        first: NewtonState = solver.start(first_rows)
        found = solver.solve(first, lambda: rows)
        assert bool((found.error <= 1e-4).all())
        return found.x @ wide.operator, found.dual_norm, found.potential, found.mean @ working.operator

    for one, other in zip(*both(solve), strict=True):
        assert float((one - other).abs().max()) <= 1e-3 * float(other.abs().max())


def test_what_is_not_served() -> None:
    coordinates, rows = narrow(*rows_of(1, 3, 8))
    wide, wide_rows = rows_of(1, 3, 8)
    assert served(coordinates, rows) is not None
    assert served(coordinates, wide_rows) is None
    assert served(wide, wide_rows) is None
    assert served(wide, wide_rows, dtype=torch.float64) is not None
    assert served(TemplateCoordinates(torch.randn(1, 8, 4)), rows) is None
    strided = torch.randn(1, 8, 3).mT
    assert served(coordinates, rows, strided) is None
    wanted = torch.randn(1, 3, 8, requires_grad=True)
    assert served(coordinates, rows, wanted) is None
    with torch.no_grad():
        assert served(coordinates, rows, wanted) is not None
    with switched(False):
        assert served(coordinates, rows) is None
