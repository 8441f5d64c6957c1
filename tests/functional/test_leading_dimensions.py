"""Leading dimensions and preferences of fewer dimensions broadcast as those of torch's attention do."""

from typing import Any

import pytest
import torch

from fenchel import functional as F
from tests.compiling import compiled_afresh


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
