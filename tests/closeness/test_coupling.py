"""The two-product form against softmaxes over (m, N, n), at ordinary and at hopeless scales, in one part and many."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.closeness.coupling import Coupling, Part


def parts_of(log_tilt: Tensor, log_kernel: Tensor, size: int) -> list[Part]:
    count = log_kernel.shape[-2]
    spans = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    return [Part(s, lambda s=s: (log_tilt[..., s], log_kernel[..., s, :])) for s in spans]


def draw(scale: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    log_tilt = scale * torch.randn(2, 3, 9, generator=generator, dtype=dtype)
    log_kernel = scale * torch.randn(2, 9, 4, generator=generator, dtype=dtype)
    log_u = torch.randn(2, 1, 4, generator=generator, dtype=dtype).log_softmax(-1)
    log_tilt[0, 1, 2] = -torch.inf
    log_kernel[1, 3, 0] = -torch.inf
    return log_tilt, log_kernel, log_u


def conditionals(log_tilt: Tensor, log_kernel: Tensor) -> Tensor:
    """(lead, m, n, N), written out."""
    return (log_tilt.unsqueeze(-2) + log_kernel.mT.unsqueeze(-3)).softmax(-1)


@pytest.mark.parametrize("size", [9, 4, 1])
@pytest.mark.parametrize("scale", [1.0, 40.0, 900.0, 1e5])
def test_all_that_a_coupling_gives(scale: float, size: int) -> None:
    log_tilt, log_kernel, log_u = draw(scale)
    p, u = conditionals(log_tilt, log_kernel), log_u.exp()
    coupling = Coupling(parts_of(log_tilt, log_kernel, size), log_u)
    logits = log_tilt.unsqueeze(-2) + log_kernel.mT.unsqueeze(-3)
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, 9, 5, generator=generator, dtype=torch.float64)
    vector = torch.randn(2, 3, 9, generator=generator, dtype=torch.float64)
    amounts = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64)
    close: dict[str, Any] = {"atol": 1e-12, "rtol": 1e-12}
    weights = torch.einsum("bmi,bmit->bmt", u.expand(2, 3, 4), p)
    torch.testing.assert_close(coupling.log_partition(), logits.logsumexp(-1), **close)
    torch.testing.assert_close(coupling.weights(), weights, **close)
    torch.testing.assert_close(coupling.average(values), weights @ values, **close)
    torch.testing.assert_close(coupling.spread(amounts), torch.einsum("bmi,bmit->bmt", amounts, p), **close)
    torch.testing.assert_close(
        coupling.expectation(vector), torch.einsum("bmt,bmit->bmi", vector, p), **close
    )


@pytest.mark.parametrize("scale", [1.0, 20.0, 60.0, 300.0])
def test_float32_is_right_to_rounding_where_factors_underflow(scale: float) -> None:
    log_tilt, log_kernel, log_u = draw(scale, torch.float32)
    coupling = Coupling(parts_of(log_tilt, log_kernel, 9), log_u)
    wide = conditionals(log_tilt.double(), log_kernel.double())
    weights = torch.einsum("bmi,bmit->bmt", log_u.double().exp().expand(2, 3, 4), wide)
    # A logit of size s is itself only known to s·eps.
    torch.testing.assert_close(
        coupling.weights().double(), weights, atol=2e-7 * max(10.0, 10 * scale), rtol=0
    )
