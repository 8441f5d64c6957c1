"""Masks and biases of a call are the preference of its attention, whichever way a family writes them.

For a backend and for a capture alike; what only a capture makes of them: ``test_log_preference.py``.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.errors import CaptureError
from fenchel.integrations.transformers.log_preference import LogPreferences, call_preference

QUERY = torch.zeros(2, 4, 3, 5)
KEY = torch.zeros(2, 2, 6, 5)
BUILDERS: dict[str, Callable[..., Tensor | None]] = {
    "backend": call_preference,
    "capture": lambda *given: LogPreferences()(*given).mask_or_bias,
}
Build = Callable[..., Tensor]


@pytest.fixture(params=BUILDERS)
def build(request: pytest.FixtureRequest) -> Build:
    """The logarithm of the preference, for every query and key."""

    def build(
        mask: Tensor | None = None, bias: Tensor | None = None, is_causal: bool | None = False
    ) -> Tensor:
        found = BUILDERS[request.param]("layers.0", QUERY, KEY, mask, bias, is_causal)
        if found is None:
            return torch.zeros(2, 4, 3, 6)
        allowed = found.dtype == torch.bool
        return (torch.where(found, 0.0, -torch.inf) if allowed else found).expand(2, 4, 3, 6)

    return build


def test_nothing_given_is_uniform(build: Build) -> None:
    assert not build().any()


@pytest.mark.parametrize(
    "masked", [torch.finfo(torch.float32).min, torch.finfo(torch.float16).min, -1e9, -1e4]
)
def test_families_ways_of_writing_masked_become_minus_infinity(build: Build, masked: float) -> None:
    mask = torch.zeros(2, 1, 3, 6)
    mask[..., 4:] = masked
    mask[..., 0], mask[..., 1] = -100.0, -9999.0
    found = build(mask)
    assert torch.equal(found[..., 4:], torch.full((2, 4, 3, 2), -torch.inf))
    assert torch.equal(found[..., :4], mask[..., :4].expand(2, 4, 3, 4))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.float16, torch.bfloat16])
def test_bias_and_mask_add(build: Build, dtype: torch.dtype) -> None:
    allowed = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    allowed[1, ..., 3:] = False
    lowest = None if dtype == torch.bool else torch.finfo(dtype).min
    mask = allowed if lowest is None else torch.zeros(2, 1, 1, 6, dtype=dtype).masked_fill(~allowed, lowest)
    bias = torch.randn(1, 4, 3, 6, generator=torch.Generator().manual_seed(0))
    assert torch.equal(build(mask), torch.where(allowed, 0.0, -torch.inf).expand(2, 4, 3, 6))
    assert torch.equal(build(bias=bias), bias.expand(2, 4, 3, 6))
    assert torch.equal(build(mask, bias), torch.where(allowed, bias, -torch.inf))


def test_causal_only_where_no_mask_says_otherwise(build: Build) -> None:
    """As in transformers' own sdpa: CLIP's text model passes both."""
    causal = torch.where(torch.ones(3, 6, dtype=torch.bool).tril(), 0.0, -torch.inf)
    assert torch.equal(build(is_causal=True), causal.expand(2, 4, 3, 6))
    assert not build(torch.ones(2, 1, 1, 6, dtype=torch.bool), is_causal=True).any()
    with pytest.raises(CaptureError, match=r"layers.0 passes neither a mask nor is_causal"):
        build(is_causal=None)


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (torch.ones(2, 6), r"attention_mask of shape \(2, 6\)"),
        (torch.ones(2, 1, 3, 7), r"attention_mask of shape \(2, 1, 3, 7\)"),
        (torch.ones(2, 1, 3, 6, dtype=torch.long), "dtype torch.int64"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error(build: Build, mask: Tensor, got: str) -> None:
    with pytest.raises(CaptureError, match=f"{got}.*expected.*= \\(2, 4, 3, 6\\)"):
        build(mask)
    with pytest.raises(CaptureError, match="position_bias"):
        build(None, mask)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_single_query_sees_every_key(name: str) -> None:
    """It stands at the end of a cache."""
    assert BUILDERS[name]("layers.0", QUERY[:, :, :1], KEY, None, None, True) is None


def of_backend(mask: Tensor | None = None, bias: Tensor | None = None, is_causal: bool = False) -> Any:
    return call_preference("layers.0", QUERY, KEY, mask, bias, is_causal)


def test_a_backend_keeps_types_and_reduces_expanded_dimensions() -> None:
    mask = torch.rand(2, 1, 3, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    assert of_backend(mask) is mask
    assert of_backend(torch.ones(2, 1, 1, 6).expand(2, 4, 3, 6)).shape == (2, 1, 1, 6)
    assert of_backend(torch.ones(2, 1, 1, 6, dtype=torch.bool).expand(2, 1, 3, 6)).shape == (2, 1, 1, 6)
    assert of_backend(torch.ones(2, 1, 3, 6)).shape == (2, 1, 3, 6)


def test_a_bias_in_a_backend_gets_its_gradient() -> None:
    allowed = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    allowed[1, ..., 3:] = False
    bias = torch.randn(1, 4, 3, 6, requires_grad=True)
    of_backend(allowed, bias).exp().sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, bias.exp().detach() * torch.where(allowed, 1, 0).sum(0))
    causal = torch.ones(3, 6, dtype=torch.bool).tril()
    assert torch.equal(of_backend(bias=bias, is_causal=True), torch.where(causal, bias, -torch.inf))
