"""The value of entropic transport, against POT and against its own dual."""

import itertools
import math
from typing import Any

import ot
import pytest
import torch
from scipy.stats import wasserstein_distance

from fenchel.closeness.coupling import transport_value
from fenchel.errors import ConvergenceError
from tests.pages import page, run_blocks

torch.manual_seed(0)
P = torch.rand(3, 6, dtype=torch.float64).softmax(-1)
U = torch.randn(1, 4, dtype=torch.float64).softmax(-1)
M = torch.rand(6, 4, dtype=torch.float64)


def gamma(value: float) -> torch.Tensor:
    return torch.full((1, 1), value, dtype=torch.float64)


@pytest.mark.parametrize("strength", [0.05, 0.3, 4.0])
def test_the_value_is_that_of_the_plan_that_pot_finds(strength: float) -> None:
    found = transport_value(P, U.log(), M, gamma(strength))
    for p, value in zip(P, found, strict=True):
        plan: Any = ot.sinkhorn(
            p.numpy(),
            U[0].numpy(),
            M.numpy(),
            strength,
            stopThr=1e-13,
            numItermax=200_000,
            method="sinkhorn_log",
        )
        expected = (plan * M.numpy()).sum() + strength * (plan * torch.from_numpy(plan).log().numpy()).sum()
        assert float(value) == pytest.approx(float(expected), abs=1e-9)


def test_weights_that_are_zero_and_costs_that_are_infinite() -> None:
    cost = torch.tensor([[0.0, math.inf], [1.0, math.inf], [math.inf, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.25, 0.0, 0.75]], dtype=torch.float64)
    u = torch.tensor([[0.25, 0.75]], dtype=torch.float64)
    entropy = -(p[p > 0] * p[p > 0].log()).sum()
    assert float(transport_value(p, u.log(), cost, gamma(0.5))) == pytest.approx(
        -0.5 * float(entropy), abs=1e-10
    )


def test_weight_that_cannot_arrive_is_an_error() -> None:
    cost = torch.tensor([[0.0, math.inf], [math.inf, 0.0]], dtype=torch.float64)
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    u = torch.tensor([[0.2, 0.8]], dtype=torch.float64)
    with pytest.raises(ConvergenceError, match=r"off by 6\.0e-01 in a margin after 50 steps"):
        transport_value(p, u.log(), cost, gamma(1.0), max_steps=50)


def test_the_value_becomes_that_of_exact_transport_as_gamma_falls() -> None:
    """W − γ(H(p) + H(u)) ≤ W_γ ≤ W, as 0 ≤ H(X) ≤ H(p) + H(u); W by POT's network simplex."""
    entropy = -(P * P.log()).sum(-1) - (U * U.log()).sum()
    exact = torch.tensor([float(ot.emd2(p.numpy(), U[0].numpy(), M.numpy())) for p in P])
    missing = [exact - transport_value(P, U.log(), M, gamma(10.0**-exponent)) for exponent in range(4)]
    for exponent, one in enumerate(missing):
        assert (one >= -1e-10).all()
        assert (one <= 10.0**-exponent * entropy + 1e-10).all()
    assert all((less < more / 5).all() for more, less in itertools.pairwise(missing))


def test_the_page_prints_what_becomes_the_area_between_distribution_functions(capsys: Any) -> None:
    names = run_blocks("docs/mathematics-transport.md")
    printed = capsys.readouterr().out
    assert f"```text\n{printed}```" in page("docs/mathematics-transport.md")
    positions = names["x"].numpy()
    area = wasserstein_distance(positions, positions, names["p"][0].numpy(), names["u"].numpy())
    assert area == pytest.approx(2.25)
    assert float(printed.split()[-1]) == pytest.approx(area, abs=2e-3)
