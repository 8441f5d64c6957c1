"""What cannot be used is refused at the door, by the name that the caller gave it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fenchel import ProblemError
from fenchel import functional as F

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
        ({"query": [[1.0]]}, r"query is a list; expected a tensor"),
        (
            {"query": zeros(5, 3)},
            r"query has shape \(5, 3\); expected 4 dimensions \(batch, heads, tokens, dim\)",
        ),
        ({"key": zeros(2, 4, 7, 3).long()}, r"key has dtype torch.int64"),
        (
            {"value": zeros(2, 4, 7, 3, dtype=torch.float32)},
            r"value has dtype torch.float32, query torch.float64",
        ),
        ({"key": zeros(1, 4, 7, 3)}, r"batch sizes differ: query \(2, 4, 5, 3\), key \(1, 4, 7, 3\)"),
        ({"value": zeros(2, 4, 6, 3)}, r"key and value differ in heads or tokens: .*value \(2, 4, 6, 3\)"),
        ({"query": zeros(2, 4, 5, 2)}, r"query and key differ in their last dimension"),
        (
            {"key": zeros(2, 4, 0, 3), "value": zeros(2, 4, 0, 3)},
            r"nothing to attend to \(no tokens in key\)",
        ),
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
        ({"log_preference": [0.0]}, r"log_preference is a list"),
        ({"log_preference": with_one(NAN, 5, 7)}, r"log_preference contains NaN or \+inf"),
        ({"log_preference": with_one(INF, 5, 7)}, r"log_preference contains NaN or \+inf"),
        ({"alpha": 0.0}, r"alpha is 0.0; expected a finite number above 0"),
        ({"alpha": -1}, r"alpha is -1; expected"),
        ({"alpha": NAN}, r"alpha is nan; expected"),
        ({"alpha": "1"}, r"alpha is '1'; expected"),
        ({"alpha": with_one(-2.0, 4, 1) + 1}, r"alpha holds -1.0; expected a finite number above 0"),
        ({"alpha": with_one(NAN, 4, 1) + 1}, r"alpha holds nan"),
        ({"alpha": torch.ones(4)}, r"alpha has shape \(4,\); .* one a head has shape \(4, 1\)"),
        ({"scale": INF}, r"scale is inf; expected a finite number"),
        ({"scale": torch.ones(2)}, r"scale has shape \(2,\)"),
        (
            {"estimator": "third_order"},
            r"estimator is 'third_order'; expected one of first_order, second_order",
        ),
        ({"dropout_p": 1.0}, r"dropout_p is 1.0; expected a finite number at least 0 and below 1"),
        ({"dropout_p": -0.1}, r"dropout_p is -0.1"),
        ({"estimator": "exact", "tol": 0.0}, r"tol is 0.0; expected"),
        ({"estimator": "exact", "max_steps": 0}, r"max_steps is 0; expected"),
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
