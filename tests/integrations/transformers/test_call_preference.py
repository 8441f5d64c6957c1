"""Masks and biases of a call are the preference of its attention, whichever way a family writes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fenchel.errors import CaptureError
from fenchel.integrations.transformers.call_preference import call_preference

QUERY = torch.zeros(2, 4, 3, 5)
KEY = torch.zeros(2, 2, 6, 5)


def build(mask: Tensor | None = None, bias: Tensor | None = None, is_causal: bool | None = False) -> Any:
    return call_preference("layers.0", QUERY, KEY, mask, bias, is_causal)


def test_nothing_given_is_uniform():
    assert build() is None


@pytest.mark.parametrize(
    "masked", [torch.finfo(torch.float32).min, torch.finfo(torch.float16).min, -1e9, -1e4]
)
def test_families_ways_of_writing_masked_become_minus_infinity(masked):
    mask = torch.zeros(2, 1, 3, 6)
    mask[..., 4:] = masked
    mask[..., 0] = -100.0
    found = build(mask)
    assert torch.equal(found[..., 4:], torch.full((2, 1, 3, 2), -torch.inf))
    assert torch.equal(found[..., :4], mask[..., :4])


def test_a_bool_mask_stays_bool():
    mask = torch.rand(2, 1, 3, 6, generator=torch.Generator().manual_seed(0)) < 0.5
    assert build(mask) is mask


def test_expanded_dimensions_are_reduced_and_equal_values_are_not_looked_for():
    assert build(torch.ones(2, 1, 1, 6).expand(2, 4, 3, 6)).shape == (2, 1, 1, 6)
    assert build(torch.ones(2, 1, 1, 6, dtype=torch.bool).expand(2, 1, 3, 6)).shape == (2, 1, 1, 6)
    assert build(torch.ones(2, 1, 3, 6)).shape == (2, 1, 3, 6)


@pytest.mark.parametrize("as_bool", [True, False])
def test_bias_and_mask_add_and_the_bias_gets_its_gradient(as_bool):
    allowed = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    allowed[1, ..., 3:] = False
    mask = allowed if as_bool else torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    bias = torch.randn(1, 4, 3, 6, requires_grad=True)
    found = build(mask, bias)
    assert torch.equal(found, torch.where(allowed, bias, -torch.inf).expand_as(found))
    found.exp().sum().backward()
    assert bias.grad is not None
    assert torch.equal(bias.grad, bias.exp().detach() * torch.where(allowed, 1, 0).sum(0))


def test_a_bias_alone_is_the_preference():
    bias = torch.randn(1, 4, 3, 6)
    assert torch.equal(build(bias=bias), bias)


def test_causal_only_where_no_mask_says_otherwise():
    causal = torch.ones(3, 6, dtype=torch.bool).tril()
    found = build(is_causal=True)
    assert torch.equal(found[0, 0], causal)
    mask = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    assert build(mask, is_causal=True).all()
    bias = torch.randn(1, 4, 3, 6)
    assert torch.equal(build(bias=bias, is_causal=True), torch.where(causal, bias, -torch.inf))


def test_a_single_query_sees_every_key():
    assert call_preference("layers.0", QUERY[:, :, :1], KEY, None, None, True) is None


def test_causality_in_doubt_is_an_error():
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
def test_a_mask_that_does_not_fit_is_an_error(mask, got):
    with pytest.raises(CaptureError, match=f"{got}.*expected.*= \\(2, 4, 3, 6\\)"):
        build(mask)
