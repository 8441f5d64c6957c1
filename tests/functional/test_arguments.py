"""What cannot be used is refused at the door, by the name that the caller gave it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel import Tsallis
from fenchel import functional as F
from tests.compiling import compiled_afresh

NAN, INF = float("nan"), float("inf")


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def test_what_can_be_used_is() -> None:
    query, key = torch.randn(2, 4, 5, 3), torch.randn(2, 4, 7, 3)
    plain = F.attention(query, key, key)
    for log_preference in (
        torch.zeros(()),
        torch.ones(1, dtype=torch.bool),
        torch.zeros(7, dtype=torch.float64),
    ):
        torch.testing.assert_close(F.attention(query, key, key, log_preference=log_preference), plain)
    torch.testing.assert_close(F.attention(query, key, key, alpha=1, scale=3**-0.5), plain)
    assert F.attention(query[:, :, :0], key, key).shape == (2, 4, 0, 3)


LEADING = [
    ((4,), (4, 4)),
    ((), ()),
    ((4,), (4,)),
    ((2, 1), (2, 4)),
    ((2, 4), (2, 1)),
    ((1, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (4,)),
]


@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
@pytest.mark.parametrize(("of_query", "of_key"), LEADING)
def test_leading_dimensions_broadcast_as_torchs_do(
    of_query: tuple[int, ...], of_key: tuple[int, ...], estimator: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(*lead, *own, dtype=torch.float64, generator=generator).requires_grad_()
        for lead, own in ((of_query, (3, 8)), (of_key, (6, 8)), (of_key, (6, 5)))
    )
    mask = torch.rand(3, 6, generator=generator) < 0.7
    mask[:, 0] = True
    lead = torch.broadcast_shapes(of_query, of_key)
    options: dict[str, Any] = {"log_preference": mask, "estimator": estimator}
    found = F.attention(query, key, value, **options)
    wide = [
        x.expand(*lead, *x.shape[-2:])[(None,) * (2 - len(lead))].contiguous() for x in (query, key, value)
    ]
    expected = F.attention(*wide, **options)
    if estimator == "first_order":
        sdpa = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        assert found.shape == sdpa.shape
        torch.testing.assert_close(found, sdpa)
    torch.testing.assert_close(found, expected.reshape(*lead, 3, 5))
    weight = torch.randn(*lead, 3, 5, dtype=torch.float64, generator=generator)
    given, wanted = (
        torch.autograd.grad((out.reshape(weight.shape) * weight).sum(), (query, key, value))
        for out in (found, expected)
    )
    torch.testing.assert_close(given, wanted)
    output, certificate = F.attention_with_certificate(query, key, value, **options)
    torch.testing.assert_close(output, found)
    assert all(bound.shape == (*lead, 3) for bound in certificate)
    torch.testing.assert_close(F.attention_weights(query, key, **options) @ value, found)
    if estimator != "exact":
        torch.testing.assert_close(F.gap(query, key, **options).detach(), certificate.gap)


def test_leading_dimensions_broadcast_in_a_graph_with_open_sizes() -> None:
    query, key = torch.randn(2, 4, 5, 8), torch.randn(4, 6, 8)
    with compiled_afresh():
        compiled = torch.compile(F.attention, fullgraph=True, dynamic=True, backend="aot_eager")
        torch.testing.assert_close(compiled(query, key, key), F.attention(query, key, key))


@pytest.mark.parametrize("preference", [None, (3, 0), (2, 1, 1, 1)])
@pytest.mark.parametrize("estimator", ["first_order", "second_order", "exact"])
def test_without_keys_every_query_gets_zeros_as_in_torchs_call(
    estimator: str, preference: tuple[int, ...] | None
) -> None:
    query, key, value = (zeros(2, 4, m, d).add(1).requires_grad_() for m, d in ((3, 8), (0, 8), (0, 5)))
    options: dict[str, Any] = {
        "log_preference": None if preference is None else torch.zeros(preference, dtype=torch.float64),
        "estimator": estimator,
    }
    nothing = torch.nn.functional.scaled_dot_product_attention(query, key, value)
    rows = zeros(1, 4, 2, 8)
    for closeness in (None, Tsallis(1.5)):
        found, certificate = F.attention_with_certificate(query, key, value, closeness=closeness, **options)
        assert torch.equal(found, nothing)
        assert torch.equal(F.attention(query, key, value, closeness=closeness, **options), nothing)
        assert all(torch.equal(bound, zeros(2, 4, 3)) for bound in certificate)
        assert F.attention_weights(query, key, closeness=closeness, **options).shape == (2, 4, 3, 0)
        by_pair, bounds = F.relative_attention_with_certificate(
            query, key, value, rows, closeness=closeness, **options
        )
        assert torch.equal(by_pair, nothing)
        assert all(torch.equal(bound, zeros(2, 4, 3)) for bound in bounds)
    assert torch.equal(F.reference.attention(query, key, value, **options), nothing)
    if estimator != "exact":
        assert torch.equal(F.gap(query, key, **options), zeros(2, 4, 3))
        assert torch.equal(F.relative_gap(query, key, rows, **options), zeros(2, 4, 3))
    gradients = torch.autograd.grad(F.attention(query, key, value, **options).sum(), (query, key, value))
    assert all(not bool(gradient.any()) for gradient in gradients)
