"""What cannot be used is refused at the door, by the name that the caller gave it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel import ProblemError, Tsallis
from fenchel import functional as F
from tests.compiling import compiled_afresh

NAN, INF = float("nan"), float("inf")


def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


def with_one(value: float, *shape: int) -> torch.Tensor:
    tensor = zeros(*shape)
    tensor.view(-1)[1] = value
    return tensor


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"query": zeros(1, 2, 4, 5, 3)},
            r"query has shape \(1, 2, 4, 5, 3\); expected 4 dimensions \(batch, heads, tokens, dim\)",
        ),
        ({"query": zeros(3, 5, 3)}, r"leading dimensions do not broadcast to one shape: query \(3, 5, 3\)"),
        (
            {"value": zeros(2, 4, 7, 3, dtype=torch.float32)},
            r"value has dtype torch.float32, query torch.float64",
        ),
        ({"key": zeros(3, 4, 7, 3)}, r"batch sizes differ: query \(2, 4, 5, 3\), key \(3, 4, 7, 3\)"),
        ({"value": zeros(2, 4, 6, 3)}, r"key and value differ in heads or tokens: .*value \(2, 4, 6, 3\)"),
        ({"query": zeros(2, 4, 5, 2)}, r"query and key differ in their last dimension"),
        (
            {"key": zeros(2, 3, 7, 3), "value": zeros(2, 3, 7, 3)},
            r"4 heads, which 3 heads of key do not divide",
        ),
        ({"key": zeros(2, 2, 7, 3), "value": zeros(2, 2, 7, 3)}, r"pass enable_gqa=True if 2 heads"),
        ({"log_preference": zeros(5, 6)}, r"log_preference has shape \(5, 6\); .* = \(2, 4, 5, 7\)"),
        ({"log_preference": zeros(1, 2, 4, 5, 7)}, r"log_preference has shape \(1, 2, 4, 5, 7\)"),
        (
            {"log_preference": zeros(5, 7).long()},
            r"log_preference has dtype torch.int64; .* bool \(True = attend\)",
        ),
        ({"log_preference": with_one(NAN, 5, 7)}, r"log_preference contains NaN or \+inf"),
        ({"alpha": 0.0}, r"alpha is 0.0; expected a finite number above 0"),
        ({"alpha": with_one(-2.0, 4, 1) + 1}, r"alpha holds -1.0; expected a finite number above 0"),
        ({"alpha": torch.ones(4)}, r"alpha has shape \(4,\); .* one a head has shape \(4, 1\)"),
        ({"scale": INF}, r"scale is inf; expected a finite number"),
        ({"scale": torch.ones(2)}, r"scale has shape \(2,\)"),
        (
            {"estimator": "third_order"},
            r"estimator is 'third_order'; expected one of first_order, second_order",
        ),
        ({"dropout_p": 1.0}, r"dropout_p is 1.0; expected a finite number at least 0 and below 1"),
        ({"estimator": "exact", "query": with_one(NAN, 2, 4, 5, 3)}, r"query contains NaN or infinity"),
        ({"estimator": "exact", "key": with_one(INF, 2, 4, 7, 3)}, r"key contains NaN or infinity"),
    ],
)
def test_refused_by_name(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"query": zeros(2, 4, 5, 3), "key": zeros(2, 4, 7, 3), "value": zeros(2, 4, 7, 3)}
    F.attention(**given)
    with pytest.raises(ProblemError, match=message):
        F.attention(**{**given, **changes})
    with pytest.raises(ProblemError, match=message):
        F.attention_with_certificate(**{**given, **changes})


def test_a_preference_on_another_device() -> None:
    query, key = zeros(1, 1, 5, 3), zeros(1, 1, 7, 3)
    with pytest.raises(ProblemError, match=r"log_preference is on meta, query on cpu"):
        F.attention(query, key, key, log_preference=torch.zeros(7, device="meta"))
    with pytest.raises(ProblemError, match=r"key is on meta, query on cpu"):
        F.attention(query, key.to("meta"), key)
    with pytest.raises(ProblemError, match=r"alpha is on meta, query on cpu"):
        F.attention(query, key, key, alpha=torch.ones(1, 1, device="meta"))


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


def test_ops_that_do_nothing_without_keys_say_so() -> None:
    query, key = zeros(2, 4, 3, 8), zeros(2, 4, 0, 8)
    with pytest.raises(ProblemError, match=r"nothing to attend to \(no tokens in key\)"):
        F.transport_attention(query, key, key, gamma=1.0, cost="squared_euclidean")
    with pytest.raises(ProblemError, match=r"nothing to attend to \(no tokens in key\)"):
        F.hashing_attention(key, key, key, torch.zeros(2, 4, 1, 0, dtype=torch.int64))
    with pytest.raises(ProblemError, match=r"nothing to attend to \(no components in means\)"):
        F.mixture_attention(query, key, key)
