"""The same audit of a layer in native kernels and in torch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fenchel.auditing.measure import Measures, measure
from fenchel.native import switched
from tests.auditing.test_measure import call
from tests.native.needed import NATIVE

pytestmark = NATIVE


@pytest.mark.parametrize("space", ["input", "key"])
@pytest.mark.parametrize("preference", ["padding", "causal padding", "bias"])
@pytest.mark.parametrize("n", [9, 70])
def test_statistics_are_those_of_torch(space: str, preference: str, n: int) -> None:
    """Means over the counted queries of every head, to ten times the tolerance that both answers are solved to."""
    wide = call(preference, n=n, d_h=16, width=64)
    given = {
        name: value.float() / 2 if name in ("query", "inputs") else value.float()
        for name, value in vars(wide).items()
        if isinstance(value, Tensor) and value.dtype == torch.float64
    }
    asked = replace(wide, **given)
    found: list[Measures] = []
    for on in (True, False):
        with switched(on):
            found.append(measure(asked, space=space, tol=1e-6))
    native, twin = found
    counted = asked.counted.unsqueeze(1)
    assert torch.equal(native.converged, twin.converged)
    assert native.farthest is not None
    assert twin.farthest is not None
    for name, value in native.values.items():
        kept = counted & torch.isfinite(twin.values[name])
        one, other = ((part * kept).nan_to_num().double().sum((0, 2)) for part in (value, twin.values[name]))
        torch.testing.assert_close(
            one, other, rtol=1e-5, atol=1e-7, msg=lambda said, name=name: f"{name}: {said}"
        )
    torch.testing.assert_close(native.farthest.exact, twin.farthest.exact, rtol=1e-3, atol=1e-5)
