"""The discrete preference: moments, cumulant, masks."""

import torch

from fenchel import Discrete

GENERATOR = torch.Generator().manual_seed(0)
T = torch.randn(2, 6, 3, dtype=torch.float64, generator=GENERATOR)
LOG = torch.randn(2, 4, 6, dtype=torch.float64, generator=GENERATOR)


def test_weights_are_normalised() -> None:
    torch.testing.assert_close(Discrete(T, LOG).weights().sum(-1), torch.ones(2, 4, dtype=torch.float64))
    torch.testing.assert_close(Discrete(T).weights(), torch.full((1, 6), 1 / 6, dtype=torch.float64))


def test_one_row_a_query_or_one_for_all() -> None:
    assert Discrete(T, LOG[0, 0]).log_weights.shape == (1, 6)
    assert Discrete(T, LOG[0]).log_weights.shape == (4, 6)
    assert Discrete(T, LOG[:, :1]).log_weights.shape == (2, 1, 6)


def test_weights_far_below_float32_stay_finite() -> None:
    u = Discrete(T.float(), torch.tensor([0.0, -80, -200, 0, 0, 0]))
    assert bool(torch.isfinite(u.mean()).all())
    assert bool(torch.isfinite(u.log_mgf(torch.randn(4, 3))).all())
