"""Mixing against its definition: the affine combination with the shortest gradient, and where it leads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fenchel.blocks import QueryBlock
from fenchel.solver.coordinates import AbstractCoordinates, coordinates_over
from fenchel.solver.mixing import DAMPING, Mixed, Mixing, Point, mix
from fenchel.solver.newton import Newton, NewtonState
from fenchel.solver.rows import Rows

COORDINATES = ["gram", "template"]


def block(*, size: float = 1.0, alpha: float = 1.0, r: int = 6, n: int = 9, d: int = 5) -> QueryBlock:
    generator = torch.Generator().manual_seed(5)
    templates = size * torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    log_preference = torch.randn(2, r, n, generator=generator, dtype=torch.float64)
    log_preference[:, 1:, 0] = -torch.inf
    evidence = torch.randn(2, r, d, generator=generator, dtype=torch.float64)
    alphas = torch.full((1, 1, 1), alpha, dtype=torch.float64)
    return QueryBlock(templates, log_preference.log_softmax(-1), evidence, alphas)


def started(given: QueryBlock, name: str) -> tuple[AbstractCoordinates, NewtonState]:
    coordinates = coordinates_over(given.offsets, name)
    return coordinates, Newton(coordinates, tol=1e-6).start(Rows.of(given, coordinates.evidence_of(given)))


def mixed(given: QueryBlock, name: str, *, tol: float = 1e-9, max_steps: int = 50) -> Mixed:
    coordinates, first = started(given, name)
    wanted = torch.ones_like(first.stalled)
    return mix(coordinates, first, low_precision=None, wanted=wanted, tol=tol, max_steps=max_steps)


def gradient(given: QueryBlock, dual: Tensor) -> Tensor:
    return given.evidence - dual / given.alpha - given.shift(dual)


@pytest.mark.parametrize("name", COORDINATES)
@pytest.mark.parametrize("points", [1, 2, 3, 4])
def test_combines_the_last_three_points_as_least_squares_would(name: str, points: int) -> None:
    given = block()
    coordinates, first = started(given, name)
    rows, mixing = first.rows, Mixing(coordinates)
    generator = torch.Generator().manual_seed(8)
    means, gradients = [], []
    for _ in range(points):
        x = first.x + 0.3 * torch.randn(first.x.shape, generator=generator, dtype=torch.float64)
        state = Newton(coordinates, tol=1e-6).start(rows, x)
        mean = coordinates.complement(rows, x)
        potential = coordinates.scaled_potential(rows, state.lifted)
        gradient_there = state.residual, state.lifted_residual, state.square.squeeze(-1)
        mixing.add(Point(mean, potential, *gradient_there))
        means.append(mean)
        gradients.append(state.residual)
    kept = min(points, 3)
    means, gradients = means[::-1][:kept], gradients[::-1][:kept]
    templates = given.offsets
    vectors = [part @ templates if name == "gram" else part for part in gradients]
    expected = means[0] - DAMPING * gradients[0]
    undamped = means[0] - gradients[0]
    if kept > 1:
        differences = torch.stack([vectors[0] - vector for vector in vectors[1:]], -1)
        shares = torch.linalg.lstsq(differences, vectors[0].unsqueeze(-1)).solution
        for number in range(1, kept):
            share = shares[..., number - 1, :]
            image = means[number] - DAMPING * gradients[number]
            expected = expected + share * (image - means[0] + DAMPING * gradients[0])
            undamped = undamped + share * (means[number] - gradients[number] - means[0] + gradients[0])
    # Parallel differences are told apart by a ridge of 1e-5.
    torch.testing.assert_close(mixing.following()[0], expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(mixing.undamped()[0], undamped, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", COORDINATES)
def test_potentials_are_those_of_the_points(name: str) -> None:
    given = block()
    coordinates, first = started(given, name)
    found = mixed(given, name, max_steps=4)
    mean, potential = found.mixing.following()
    dual = given.alpha * coordinates.vectors_of(given, coordinates.complement(first.rows, mean))
    expected = dual @ given.offsets.mT
    difference = given.alpha * potential - expected
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", COORDINATES)
def test_arrives_where_the_gradient_vanishes(name: str) -> None:
    given = block(size=0.5)
    found = mixed(given, name)
    assert found.ended
    assert bool(found.falling.all())
    dual = given.alpha * coordinates_over(given.offsets, name).vectors_of(given, found.x)
    left = gradient(given, dual).norm(dim=-1)
    assert bool((left <= 2e-8 * given.evidence.norm(dim=-1)).all())
    # One damped iteration after the other, not extrapolated, takes more than twice as many.
    damped = given.alpha * given.evidence
    for _ in range(found.steps):
        damped = damped + DAMPING * given.alpha * gradient(given, damped)
    assert bool((gradient(given, damped).norm(dim=-1) > 10 * left).all())


@pytest.mark.parametrize("name", COORDINATES)
def test_says_which_rows_do_not_fall(name: str) -> None:
    found = mixed(block(size=3.0, alpha=30.0), name)
    assert not bool(found.falling.all())
