"""What a model masks or adds is read as the logarithm of a preference, without what says nothing."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.integrations.transformers.log_preference import LogPreference, LogPreferences, softmax_attention

B, H, N = 3, 2, 5
QUERY = torch.zeros(B, H, N, 4)


def build(mask: Tensor | None, bias: Tensor | None = None, is_causal: bool | None = False) -> LogPreference:
    return LogPreferences()("site", QUERY, QUERY, mask, bias, is_causal)


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


@pytest.mark.parametrize("shape", [(B, 1, 1, N), (1, 1, N, N), (B, H, 1, N), (1, H, N, N), (B, H, N, N)])
@pytest.mark.parametrize("expand", [True, False])
def test_constant_dimensions_are_dropped(shape: tuple[int, ...], expand: bool) -> None:
    full = noise(*shape).expand(B, H, N, N)
    full = full if expand else full.contiguous()
    for found in (weights(full), weights(None, full)):
        assert torch.equal(found, noise(*shape))
    allowed = full > 0
    found = weights(allowed)
    assert found.shape == shape
    assert torch.equal(found > -torch.inf, noise(*shape) > 0)


def test_what_says_nothing_is_none() -> None:
    for mask, bias in [
        (None, None),
        (torch.ones(B, 1, N, N, dtype=torch.bool), None),
        (torch.zeros(B, 1, N, N), None),
        (None, torch.zeros(1, H, N, N)),
        (
            torch.ones(B, 1, N, N, dtype=torch.bool),
            noise(1, H, N, 1).expand(1, H, N, N),
        ),  # the same for all keys
    ]:
        found = build(mask, bias)
        assert found.mask_or_bias is None
        assert found.kernel_mask is None
        assert found.empty_rows is None


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
    first = preferences("one", QUERY, QUERY, mask, None, None)
    assert preferences("two", QUERY, QUERY, mask[:, :, :, :N], None, None) is first
    mask[0, 0, 3, 0] = False  # the same memory says something else now
    assert preferences("three", QUERY, QUERY, mask, None, None) is not first


def test_a_mask_of_a_long_context_stays_a_mask() -> None:
    mask = torch.ones(1, 1, N, N, dtype=torch.bool).tril()
    found = build(mask)
    assert found.mask_or_bias is not None
    assert found.mask_or_bias.data_ptr() == mask.data_ptr()


def test_float64_queries_have_a_float64_preference() -> None:
    query = QUERY.double()
    found = LogPreferences()("site", query, query, noise(1, H, N, N).double(), None, None).mask_or_bias
    assert found is not None
    assert found.dtype == torch.float64


def test_causal_structure_is_recognised() -> None:
    tokens = torch.ones(B, 1, N, N, dtype=torch.bool)
    assert build(tokens.tril()).is_causal(N, N)
    assert build(tokens.tril(), noise(1, H, N, N)).is_causal(N, N)
    assert not build(tokens.tril(1)).is_causal(N, N)
    assert not build(tokens).is_causal(N, N)
    assert not build(tokens & (torch.arange(N) < 1)).is_causal(N, N)  # one real token, the rest padding


@pytest.mark.parametrize("length", [2, 5, 300])
def test_a_causal_mask_needs_no_mask_in_the_kernel(length: int) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, length, 8, generator=draw, dtype=torch.float64) for _ in range(3))
    triangle = torch.ones(2, 1, length, length, dtype=torch.bool).tril()
    found = LogPreferences()("site", query, key, triangle, None, True)
    assert found.only_causal
    with_mask = replace(found, only_causal=False)
    outputs = [softmax_attention(query, key, value, 0.3, preference) for preference in (found, with_mask)]
    torch.testing.assert_close(*outputs)
    for row, column in ((0, 1), (length - 1, 0), (length - 1, length - 2)):
        other = triangle.clone()
        other[:, :, row, column] ^= True
        assert not LogPreferences()("site", query, key, other, None, True).only_causal
    padded = triangle.clone()
    padded[1, :, :, 0] = False
    padded[1, :, 0, 0] = True
    assert not LogPreferences()("site", query, key, padded, None, True).only_causal
    bias = torch.randn(1, 4, length, length, generator=draw, dtype=torch.float64)
    assert not LogPreferences()("site", query, key, triangle, bias, True).only_causal
    assert LogPreferences()("site", query, key, None, None, True).only_causal
