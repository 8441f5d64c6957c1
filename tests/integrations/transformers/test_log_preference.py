"""What a model masks or adds is read as the logarithm of a preference, without what says nothing."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fenchel.errors import CaptureError
from fenchel.integrations.masks_and_sinks import (
    FamilyCall,
    LogPreferences,
    call_preference,
    softmax_attention,
)
from fenchel.nn.inference import Problem
from tests.normal import drawn

SHAPE = (2, 4, 3, 6)
QUERY, KEY = torch.zeros(2, 4, 3, 5), torch.zeros(2, 2, 6, 5)
LOWEST = torch.finfo(torch.float32).min
TRIANGLE = torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
Build = Callable[..., Tensor]


def call_of(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    bias: Tensor | None = None,
    is_causal: bool | None = False,
) -> FamilyCall:
    problem = Problem(query, key, key, 1.0, 0.3)
    return FamilyCall("layers.0", nn.Module(), problem, mask, bias, is_causal, {})


@pytest.fixture(params=["backend", "capture"])
def called(request: pytest.FixtureRequest) -> Build:
    """The logarithm of the preference, for every query and key."""

    def called(
        mask: Tensor | None = None, bias: Tensor | None = None, is_causal: bool | None = False
    ) -> Tensor:
        call = call_of(QUERY, KEY, mask, bias, is_causal)
        found = call_preference(call) if request.param == "backend" else LogPreferences()(call).mask_or_bias
        if found is None:
            return torch.zeros(SHAPE)
        allowed = found.dtype == torch.bool
        return (torch.where(found, 0.0, -torch.inf) if allowed else found).expand(SHAPE)

    return called


@pytest.mark.parametrize("masked", [LOWEST, torch.finfo(torch.float16).min, -1e9, -1e4])
def test_families_ways_of_writing_masked_become_minus_infinity(called: Build, masked: float) -> None:
    mask = torch.zeros(2, 1, 3, 6)
    mask[..., 4:] = masked
    mask[..., 0], mask[..., 1] = -100.0, -9999.0
    found = called(mask)
    assert torch.equal(found[..., 4:], torch.full((2, 4, 3, 2), -torch.inf))
    assert torch.equal(found[..., :4], mask[..., :4].expand(2, 4, 3, 4))


def test_a_bias_and_a_mask_that_overflow_together_are_a_mask(called: Build) -> None:
    mask = torch.tensor([0.0, 0.0, 0.0, 0.0, LOWEST, LOWEST]).expand(2, 1, 3, 6)
    bias = drawn(1, 4, 3, 6).float() - 1
    found = called(mask, bias)
    assert torch.equal(found[..., :4], bias[..., :4].expand(2, 4, 3, 4))
    assert (found[..., 4:] == -torch.inf).all()


def test_causal_only_where_no_mask_says_otherwise(called: Build) -> None:
    """As in transformers' own sdpa: CLIP's text model passes both."""
    causal = torch.where(torch.ones(3, 6, dtype=torch.bool).tril(), 0.0, -torch.inf)
    assert torch.equal(called(is_causal=True), causal.expand(SHAPE))
    assert not called(torch.ones(2, 1, 1, 6, dtype=torch.bool), is_causal=True).any()
    with pytest.raises(CaptureError, match=r"layers.0 passes neither a mask nor is_causal"):
        called(is_causal=None)
    one = call_of(QUERY[:, :, :1], KEY, None, None, True)  # at the end of a cache
    assert call_preference(one) is LogPreferences()(one).mask_or_bias is None


@pytest.mark.parametrize(
    ("mask", "got"),
    [
        (torch.ones(2, 6), r"shape \(2, 6\); expected 4 dimensions"),
        (torch.ones(2, 1, 3, 7), r"shape \(2, 1, 3, 7\); expected .*= \(2, 4, 3, 6\)"),
        (torch.ones(2, 1, 3, 6, dtype=torch.long), "dtype torch.int64; expected torch.float32"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error(called: Build, mask: Tensor, got: str) -> None:
    with pytest.raises(CaptureError, match=rf"attention_mask \(layers.0\) has {got}"):
        called(mask)
    with pytest.raises(CaptureError, match=rf"position_bias \(layers.0\) has {got}"):
        called(None, mask)


def test_empty_rows_are_named_and_opened_for_the_kernel() -> None:
    allowed, query = TRIANGLE.clone(), torch.zeros(2, 4, 5, 5)
    allowed[1, :, :, :2] = False
    for mask in (allowed, torch.zeros(2, 1, 5, 5).masked_fill(~allowed, -torch.inf)):
        found = LogPreferences()(call_of(query, query, mask))
        assert found.empty_rows is not None
        assert found.empty_rows.nonzero().tolist() == [[1, 0, 0, 0], [1, 0, 1, 0]]
        assert found.kernel_mask is not None
        assert (found.kernel_mask > -torch.inf if mask is not allowed else found.kernel_mask).any(-1).all()


def test_layers_that_share_a_mask_share_the_work() -> None:
    preferences, mask, query = LogPreferences(), TRIANGLE.clone(), torch.zeros(2, 4, 5, 5)
    first = preferences(call_of(query, query, mask))
    assert preferences(call_of(query, query, mask[:, :, :, :5])) is first
    mask[0, 0, 3, 0] = False  # the same memory says something else now
    assert preferences(call_of(query, query, mask)) is not first


def test_causal_structure_is_recognised() -> None:
    def is_causal(mask: Tensor) -> bool:
        query = torch.zeros(2, 4, 5, 5)
        return LogPreferences()(call_of(query, query, mask)).is_causal(5, 5)

    assert is_causal(TRIANGLE)
    assert not is_causal(torch.ones_like(TRIANGLE).tril(1))
    assert not is_causal(
        torch.ones_like(TRIANGLE) & (torch.arange(5) < 1)
    )  # one real token, the rest padding


@pytest.mark.parametrize("length", [2, 300])
def test_a_causal_mask_needs_no_mask_in_the_kernel(length: int) -> None:
    query, key, value = (drawn(2, 4, length, 8, seed=seed) for seed in range(3))
    triangle = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    found = LogPreferences()(call_of(query, key, triangle, None, True))
    assert found.only_causal
    problem = Problem(query, key, value, 1.0, 0.3)
    outputs = [softmax_attention(problem, one) for one in (found, replace(found, only_causal=False))]
    torch.testing.assert_close(*outputs)
    for row, column in ((0, 1), (length - 1, 0), (length - 1, length - 2)):
        other = triangle.clone()
        other[:, :, row, column] ^= True
        assert not LogPreferences()(call_of(query, key, other, None, True)).only_causal
    bias = drawn(1, 4, length, length)
    assert not LogPreferences()(call_of(query, key, triangle, bias, True)).only_causal
    assert LogPreferences()(call_of(query, key, None, None, True)).only_causal
