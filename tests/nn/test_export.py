"""Layers with every family of preference under ``torch.export``, for any number of tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fenchel.nn import MultiheadAttention
from tests.nn.preferences import EVERY, HEADS, LONGEST, WIDTH, perturbed

FAMILIES = (
    "causal",
    "key padding",
    "window",
    "uniform",
    "relative position",
    "alibi",
    "alibi, learned",
    "quadratic",
    "gaussian",
    "gaussian, both",
    "learned bias",
    "learned bias, shared",
    "context",
    "tempered, learned",
    "additive",
    "location",
    "three, learned",
)


class Padded(nn.Module):
    """Self-attention over padded sequences."""

    def __init__(self, name: str, estimator: str) -> None:
        super().__init__()
        preference = perturbed(EVERY[name]())
        layer = MultiheadAttention(WIDTH, HEADS, batch_first=True, preference=preference, estimator=estimator)
        self.attention = layer.double()

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        return self.attention(x, x, x, key_padding_mask=padding, need_weights=False)[0]


def inputs(batch: int, tokens: int) -> tuple[Tensor, Tensor]:
    padding = torch.zeros(batch, tokens, dtype=torch.bool)
    padding[-1, -1] = True
    return torch.randn(batch, tokens, WIDTH, dtype=torch.float64), padding


def check(name: str, estimator: str, *, strict: bool) -> None:
    torch.manual_seed(0)
    layer = Padded(name, estimator).eval()
    batch, tokens = torch.export.Dim("batch"), torch.export.Dim("tokens", min=2, max=LONGEST)
    sizes = {0: batch, 1: tokens}
    exported = torch.export.export(
        layer, inputs(2, 8), dynamic_shapes={"x": sizes, "padding": sizes}, strict=strict
    )
    for other in ((1, 2), (3, LONGEST), (2, 8)):
        given = inputs(*other)
        torch.testing.assert_close(exported.module()(*given), layer(*given), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_for_any_number_of_tokens(name: str) -> None:
    check(name, "first_order", strict=False)


@pytest.mark.parametrize(
    ("estimator", "strict"),
    [("second_order", False), ("exact", False), ("first_order", True), ("exact", True)],
)
def test_every_estimator_and_both_ways_to_trace(estimator: str, strict: bool) -> None:
    check("three, learned", estimator, strict=strict)
