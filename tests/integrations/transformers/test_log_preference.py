"""What a model masks or adds is read as the logarithm of a preference, without what says nothing."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.errors import CaptureError
from fenchel.integrations.masks_and_sinks import (
    FamilyCall,
    LogPreference,
    LogPreferences,
    call_preference,
    softmax_attention,
)
from fenchel.nn.inference import Problem

B, H, N = 3, 2, 5
QUERY = torch.zeros(B, H, N, 4)


def call_of(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    is_causal: bool | None = None,
    site: str = "site",
) -> FamilyCall:
    return FamilyCall(site, torch.nn.Module(), Problem(query, key, key, 1.0, 0.3), mask, bias, is_causal, {})


def build(mask: Tensor | None, bias: Tensor | None = None, is_causal: bool | None = False) -> LogPreference:
    return LogPreferences()(call_of(QUERY, QUERY, mask, bias, is_causal))


def weights(*args: Any, **kwargs: Any) -> Tensor:
    found = build(*args, **kwargs).mask_or_bias
    assert found is not None
    return found if found.dtype != torch.bool else torch.zeros(found.shape).masked_fill(~found, -torch.inf)


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_bias_and_a_mask_that_overflow_together_are_a_mask() -> None:
    lowest = torch.finfo(torch.float32).min
    mask = torch.tensor([0.0, 0.0, 0.0, lowest, lowest]).expand(1, 1, N, N)
    bias = noise(1, H, N, N) - 1
    found = weights(mask, bias)
    assert torch.equal(found[..., :3], bias[..., :3])
    assert (found[..., 3:] == -torch.inf).all()


def test_empty_rows_are_named_and_opened_for_the_kernel() -> None:
    allowed = torch.ones(B, 1, N, N, dtype=torch.bool).tril()
    allowed[1, :, :, :2] = False
    for mask in (allowed, torch.zeros(B, 1, N, N).masked_fill(~allowed, -torch.inf)):
        found = build(mask)
        assert found.empty_rows is not None
        assert found.empty_rows.nonzero().tolist() == [[1, 0, 0, 0], [1, 0, 1, 0]]
        assert torch.equal(weights(mask) > -torch.inf, allowed)
        assert found.kernel_mask is not None
        opened = torch.nn.functional.scaled_dot_product_attention(
            QUERY, QUERY, QUERY, attn_mask=found.kernel_mask
        )
        assert opened.isfinite().all()


def test_layers_that_share_a_mask_share_the_work() -> None:
    preferences = LogPreferences()
    mask = torch.ones(B, 1, N, N, dtype=torch.bool).tril()
    first = preferences(call_of(QUERY, QUERY, mask, site="one"))
    assert preferences(call_of(QUERY, QUERY, mask[:, :, :, :N], site="two")) is first
    mask[0, 0, 3, 0] = False  # the same memory says something else now
    assert preferences(call_of(QUERY, QUERY, mask, site="three")) is not first


def test_causal_structure_is_recognised() -> None:
    tokens = torch.ones(B, 1, N, N, dtype=torch.bool)
    assert build(tokens.tril()).is_causal(N, N)
    assert build(tokens.tril(), noise(1, H, N, N)).is_causal(N, N)
    assert not build(tokens.tril(1)).is_causal(N, N)
    assert not build(tokens & (torch.arange(N) < 1)).is_causal(N, N)  # one real token, the rest padding


@pytest.mark.parametrize("length", [2, 300])
def test_a_causal_mask_needs_no_mask_in_the_kernel(length: int) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, length, 8, generator=draw, dtype=torch.float64) for _ in range(3))
    triangle = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    found = LogPreferences()(call_of(query, key, triangle, None, True))
    assert found.only_causal
    with_mask = replace(found, only_causal=False)
    problem = Problem(query, key, value, 1.0, 0.3)
    outputs = [softmax_attention(problem, preference) for preference in (found, with_mask)]
    torch.testing.assert_close(*outputs)
    for row, column in ((0, 1), (length - 1, 0), (length - 1, length - 2)):
        other = triangle.clone()
        other[:, :, row, column] ^= True
        assert not LogPreferences()(call_of(query, key, other, None, True)).only_causal
    bias = torch.randn(1, 4, length, length, generator=draw, dtype=torch.float64)
    assert not LogPreferences()(call_of(query, key, triangle, bias, True)).only_causal
    assert LogPreferences()(call_of(query, key, None, None, True)).only_causal


SPLIT_QUERY = torch.zeros(2, 4, 3, 5)
KEY = torch.zeros(2, 2, 6, 5)
BUILDERS: dict[str, Callable[..., Tensor | None]] = {
    "backend": call_preference,
    "capture": lambda call: LogPreferences()(call).mask_or_bias,
}
Build = Callable[..., Tensor]


@pytest.fixture(params=BUILDERS)
def called(request: pytest.FixtureRequest) -> Build:
    """The logarithm of the preference, for every query and key."""

    def called(
        mask: Tensor | None = None, bias: Tensor | None = None, is_causal: bool | None = False
    ) -> Tensor:
        found = BUILDERS[request.param](call_of(SPLIT_QUERY, KEY, mask, bias, is_causal, "layers.0"))
        if found is None:
            return torch.zeros(2, 4, 3, 6)
        allowed = found.dtype == torch.bool
        return (torch.where(found, 0.0, -torch.inf) if allowed else found).expand(2, 4, 3, 6)

    return called


@pytest.mark.parametrize(
    "masked", [torch.finfo(torch.float32).min, torch.finfo(torch.float16).min, -1e9, -1e4]
)
def test_families_ways_of_writing_masked_become_minus_infinity(called: Build, masked: float) -> None:
    mask = torch.zeros(2, 1, 3, 6)
    mask[..., 4:] = masked
    mask[..., 0], mask[..., 1] = -100.0, -9999.0
    found = called(mask)
    assert torch.equal(found[..., 4:], torch.full((2, 4, 3, 2), -torch.inf))
    assert torch.equal(found[..., :4], mask[..., :4].expand(2, 4, 3, 4))


def test_causal_only_where_no_mask_says_otherwise(called: Build) -> None:
    """As in transformers' own sdpa: CLIP's text model passes both."""
    causal = torch.where(torch.ones(3, 6, dtype=torch.bool).tril(), 0.0, -torch.inf)
    assert torch.equal(called(is_causal=True), causal.expand(2, 4, 3, 6))
    assert not called(torch.ones(2, 1, 1, 6, dtype=torch.bool), is_causal=True).any()
    with pytest.raises(CaptureError, match=r"layers.0 passes neither a mask nor is_causal"):
        called(is_causal=None)


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (torch.ones(2, 6), r"attention_mask of shape \(2, 6\)"),
        (torch.ones(2, 1, 3, 7), r"attention_mask of shape \(2, 1, 3, 7\)"),
        (torch.ones(2, 1, 3, 6, dtype=torch.long), "dtype torch.int64"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error(called: Build, mask: Tensor, got: str) -> None:
    with pytest.raises(CaptureError, match=f"{got}.*expected.*= \\(2, 4, 3, 6\\)"):
        called(mask)
    with pytest.raises(CaptureError, match="position_bias"):
        called(None, mask)


@pytest.mark.parametrize("name", BUILDERS)
def test_a_single_query_sees_every_key(name: str) -> None:
    """It stands at the end of a cache."""
    assert BUILDERS[name](call_of(SPLIT_QUERY[:, :, :1], KEY, None, None, True)) is None
