"""ContinuousAttention against integrals on a fine grid, Bayes' rule, finite differences, and wrong calls."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fenchel import DomainError, Gaussian
from fenchel.nn import ContinuousAttention
from fenchel.nn.continuous import evidence_of, grid_places
from tests.normal import drawn

WIDTH, HEADS, GRID = 12, 3, (5, 7)
CASES = [(1, "content"), (1, "query"), (2, "content"), (2, "query")]


def build(dimensions: int, **options: Any) -> Any:
    torch.manual_seed(0)
    layer = ContinuousAttention(WIDTH, HEADS, dimensions=dimensions, dtype=torch.float64, basis=6, **options)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    return layer


def tokens(queries: int = 4) -> tuple[Tensor, Tensor]:
    return drawn(2, queries, WIDTH, seed=1), drawn(2, 35, WIDTH, seed=2)


def grid_of(layer: ContinuousAttention) -> dict[str, Any]:
    return {"grid": GRID} if layer.dimensions == 2 else {}


def density_of(layer: ContinuousAttention, *given: Tensor, **options: Any) -> Gaussian:
    density: Any = layer(*given, **grid_of(layer), **options)[1]
    return density


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize(("dimensions", "evidence"), CASES)
def test_what_is_read_is_the_integral_of_the_regressed_values(
    dimensions: int, evidence: str, estimator: str
) -> None:
    layer = build(dimensions, evidence=evidence, estimator=estimator, learn_preference=True, learn_alpha=True)
    layer.preference_log_width.data.sub_(1.0)
    if estimator == "second_order":
        layer.log_alpha.data.sub_(3.0)  # or it leaves the domain
    query, signal = tokens()
    output, density = layer(query, signal, **grid_of(layer))
    places = grid_places(GRID if dimensions == 2 else (35,)).double()
    values = layer.value_proj(signal).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    # Ridge regression, written as the stacked least squares that it is.
    bumps, ridge = layer.bumps.at(places), layer.bumps.ridge
    count = bumps.shape[-1]
    stacked = torch.cat([bumps, math.sqrt(ridge) * torch.eye(count).double()])
    right = torch.cat([values, values.new_zeros(2, HEADS, count, values.shape[-1])], 2)
    coefficients = torch.linalg.lstsq(stacked.expand(2, HEADS, -1, -1), right).solution
    fine = torch.linspace(-2, 3, 2001 if dimensions == 1 else 151).double()
    mesh = fine.unsqueeze(-1) if dimensions == 1 else torch.cartesian_prod(fine, fine)
    step = float(fine[1] - fine[0]) ** dimensions
    assert density is not None
    normal = torch.distributions.MultivariateNormal(
        density.mean().unsqueeze(-2), density.covariance().unsqueeze(-3)
    )
    weight = normal.log_prob(mesh).exp() * step
    torch.testing.assert_close(weight.sum(-1), torch.ones_like(weight[..., 0]), rtol=1e-3, atol=1e-3)
    read = weight @ layer.bumps.at(mesh) @ coefficients
    expected = layer.out_proj(read.transpose(1, 2).flatten(2))
    torch.testing.assert_close(output, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dimensions", [1, 2])
def test_first_order_is_bayes_rule(dimensions: int) -> None:
    """Precisions add, and means by precisions: S⁻¹ + αΛ."""
    layer = build(dimensions, evidence="query", learn_preference=True, alpha=0.7)
    layer.reset_parameters()
    assert float(layer.preference_mean.detach().mean()) == 0.5
    query, signal = tokens()
    density = density_of(layer, query, signal)
    centre, precision = layer.evidence(query, signal, torch.empty(0), None)
    own = torch.diag_embed((-2 * layer.preference_log_width).exp()).unsqueeze(1)
    together = own + 0.7 * precision
    torch.testing.assert_close(density.covariance(), together.inverse())
    weighted = own @ layer.preference_mean[:, None, :, None] + 0.7 * precision @ centre.unsqueeze(-1)
    torch.testing.assert_close(density.mean(), torch.linalg.solve(together, weighted).squeeze(-1))


@pytest.mark.parametrize("dimensions", [1, 2])
def test_the_exact_density_solves_its_problem(dimensions: int) -> None:
    layer = build(dimensions, evidence="query", estimator="exact", alpha=2.0, tol=1e-11)
    layer.evidence.map.weight.data.mul_(0.3)
    query, signal = tokens()
    density = density_of(layer, query, signal)
    centre, precision = layer.evidence(query, signal, torch.empty(0), None)
    z = evidence_of(centre, precision)

    def mean_of(places: Gaussian) -> Tensor:
        m, s = places.mean(), places.covariance()
        return torch.cat([m, (s + m.unsqueeze(-1) * m.unsqueeze(-2)).flatten(-2)], -1)

    preference = layer.preference(torch.float64)
    shortfall = mean_of(preference.places) + z - mean_of(density)
    # λ = α(μ + z - h): what tilts u to the density has to be just that.
    again = preference.tilted(2.0 * shortfall).places
    torch.testing.assert_close(again.mean(), density.mean(), rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(again.covariance(), density.covariance(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("dimensions", "evidence"), CASES)
def test_padding_is_as_good_as_absent_on_either_side(dimensions: int, evidence: str) -> None:
    layer = build(dimensions, evidence=evidence)
    query, signal = tokens()
    padding = torch.arange(35).expand(2, -1) >= 21
    output, _ = layer(query, signal, key_padding_mask=padding, **grid_of(layer))
    other = signal.masked_fill(padding.unsqueeze(-1), 1e3)
    torch.testing.assert_close(layer(query, other, key_padding_mask=padding, **grid_of(layer))[0], output)
    if dimensions == 1:  # whose places are those of what is left
        torch.testing.assert_close(layer(query, signal[:, :21])[0], output)
        moved = layer(query, torch.roll(signal, 14, 1), key_padding_mask=torch.roll(padding, 14, -1))[0]
        torch.testing.assert_close(moved, output)


def test_an_image_keeps_its_orientation() -> None:
    """A bright spot at the right of the first row is found there: x near 1, y near 0."""
    layer: Any = ContinuousAttention(2, 1, dimensions=2, width=0.02)
    with torch.no_grad():
        for linear in (layer.evidence.query_proj, layer.evidence.key_proj):
            linear.weight.copy_(40 * torch.eye(2))
            linear.bias.zero_()
    image = torch.zeros(1, 35, 2)
    image[0, GRID[1] - 1] = 1.0
    density = density_of(layer, torch.ones(1, 1, 2), image)
    x, y = density.mean()[0, 0, 0].detach().tolist()
    assert x == pytest.approx(6.5 / 7, abs=0.02)
    assert y == pytest.approx(0.5 / 5, abs=0.02)
    assert float(density.covariance()[0, 0, 0].detach().diagonal().max()) < 1e-3


def test_second_order_says_where_it_leaves_the_domain() -> None:
    layer = build(2, evidence="query", estimator="second_order", learn_preference=True)
    layer.preference_log_width.data.sub_(1.0)
    query, signal = tokens()
    with pytest.raises(DomainError, match=r"second_order puts the dual point of .* largest admissible"):
        layer(query, signal, grid=GRID)
    layer.estimator = "exact"
    assert bool(layer(query, signal, grid=GRID)[0].isfinite().all())
