"""Queries of padding, and those that see nothing, are not real."""

from __future__ import annotations

import pytest
import torch

from fenchel.errors import CaptureError, InputError
from fenchel.integrations.transformers.real_queries import RealQueries

MASK = torch.tensor([[1, 1, 1, 0], [0, 1, 1, 1]])
QUERY = torch.zeros(2, 3, 4, 5)


def test_padding_is_not_real() -> None:
    real = RealQueries({"attention_mask": MASK}, None, None)
    assert torch.equal(real("site", QUERY, None, decoder=False), MASK == 1)
    assert real("site", QUERY, None, decoder=True).all()


def test_restrictions_intersect_with_padding() -> None:
    keep = torch.tensor([[True, False, True, True], [True, True, True, False]])
    real = RealQueries({"attention_mask": MASK, "decoder_attention_mask": MASK.flip(1)}, keep, ~keep)
    assert torch.equal(real("site", QUERY, None, decoder=False), keep & (MASK == 1))
    assert torch.equal(real("site", QUERY, None, decoder=True), ~keep & (MASK.flip(1) == 1))
    assert torch.equal(RealQueries({}, keep, None)("site", QUERY, None, decoder=False), keep)


def test_queries_that_see_nothing_in_some_head_are_left_out() -> None:
    empty = torch.zeros(1, 3, 4, 1, dtype=torch.bool)
    empty[0, 1, 2] = True
    real = RealQueries({}, None, None)("site", QUERY, empty, decoder=False)
    assert real.tolist() == [[True, True, False, True]] * 2


def test_a_mask_given_in_full_is_not_padding() -> None:
    real = RealQueries({"attention_mask": torch.zeros(2, 1, 4, 4)}, None, None)
    assert real("site", QUERY, None, decoder=False).all()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match=r"counted has shape \(2, 3\), but attention_mask has \(2, 4\)"):
        RealQueries({"attention_mask": MASK}, torch.ones(2, 3, dtype=torch.bool), None)
    with pytest.raises(InputError, match=r"counted_decoder has dtype torch.float32"):
        RealQueries({}, None, torch.ones(2, 3))
    real = RealQueries({"attention_mask": MASK}, None, None)
    with pytest.raises(CaptureError, match=r"site has queries of shape \(2, 9\).*is \(2, 4\)"):
        real("site", torch.zeros(2, 3, 9, 5), None, decoder=False)
