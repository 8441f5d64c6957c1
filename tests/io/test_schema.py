from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from fenchel.io.schema import (
    Check,
    Mismatch,
    TensorSchema,
    check_tensors,
    listing,
    mapping,
    number,
    optional,
    record,
    text,
    truth,
    whole,
)


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (truth(), [True, False], [0, 1, None, "true"]),
        (whole(), [0, 2**63 - 1], [-1, 2**63, 1.0, True, None, "1"]),
        (whole(1, 3), [1, 3], [0, 4]),
        (number(), [0, -1.5, 1e308], [math.nan, math.inf, -math.inf, True, None, "x"]),
        (number(above=0), [1e-300], [0, 0.0, -1]),
        (number(least=0, most=1), [0, 0.5, 1], [-1e-9, 1.0000001]),
        (text(), ["", "a"], [None, 1, ["a"]]),
        (text(among=("a", "b")), ["a"], ["c", ""]),
        (text(pattern="[0-9a-f]{4}", called="hex"), ["0aF".lower() + "1"], ["0a1", "0a11\n", "zzzz"]),
        (optional(whole()), [None, 1], [-1, "x"]),
        (listing(whole(), least=1, most=2), [[1], [1, 2]], [[], [1, 2, 3], [-1], {}, None, "12"]),
        (mapping(whole()), [{}, {"a": 1}], [{"a": -1}, [], None]),
        (record({"a": whole()}, {"b": truth()}), [{"a": 1}, {"a": 1, "b": True}], [{}, {"a": 1, "c": 2}, []]),
        (record({"a": whole()}, others=True), [{"a": 1, "c": 2}], [{"c": 2}]),
    ],
)
def test_every_check_lets_pass_what_it_says_and_nothing_else(
    check: Check, good: list[Any], bad: list[Any]
) -> None:
    for value in good:
        check(value, "here")
    for value in bad:
        with pytest.raises(Mismatch, match=r"here.*; expected "):
            check(value, "here")


def test_a_mismatch_says_where_and_is_short() -> None:
    check = record({"layers": listing(record({"heads": listing(whole(1))}))})
    with pytest.raises(
        Mismatch, match=r"^layers\[1\]\.heads\[2\] is 0; expected a whole number that is at least 1$"
    ):
        check({"layers": [{"heads": []}, {"heads": [1, 2, 0]}]}, "")
    with pytest.raises(Mismatch) as caught:
        check({"layers": "x" * 10**6}, "")
    assert len(str(caught.value)) < 200


SCHEMA = {
    "totals": TensorSchema((torch.int64,), ("rows",), least=0),
    "values": TensorSchema((torch.float32, torch.float64), ("rows", 2), finite=False),
    "places": TensorSchema((torch.int64,), ("filled",), rising=True),
}


def some_tensors(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {"totals": torch.tensor([1, 0]), "values": torch.ones(2, 2), "places": torch.tensor([3, 4, 9])}
    return {**tensors, **changes}


def test_named_dimensions_are_the_same_everywhere() -> None:
    assert check_tensors(some_tensors(), SCHEMA) == {"rows": 2, "filled": 3}
    assert check_tensors(some_tensors(), SCHEMA, {"rows": 2}) == {"rows": 2, "filled": 3}
    with pytest.raises(Mismatch, match=r"tensor totals is of shape \(2,\); expected \(3\)"):
        check_tensors(some_tensors(), SCHEMA, {"rows": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"more": torch.zeros(1)}, "tensor more is there"),
        ({"totals": torch.tensor([1, -1])}, "tensor totals is -1 somewhere; expected at least 0 everywhere"),
        ({"totals": torch.tensor([1.0, 0.0])}, "tensor totals is of float32; expected int64"),
        ({"totals": torch.tensor(1)}, r"tensor totals is of shape \(\); expected \(rows\)"),
        ({"values": torch.ones(3, 2)}, r"tensor values is of shape \(3, 2\); expected \(2, 2\)"),
        ({"values": torch.tensor([[1.0, math.nan]] * 2)}, "tensor values is not a number"),
        ({"places": torch.tensor([3, 3])}, "tensor places is not in rising order"),
    ],
)
def test_what_no_tensor_may_be(changes: dict[str, torch.Tensor], message: str) -> None:
    with pytest.raises(Mismatch, match=message):
        check_tensors(some_tensors(**changes), SCHEMA)


def test_a_dropped_tensor_is_missed_and_infinity_is_refused_where_it_may_not_be() -> None:
    tensors = some_tensors()
    del tensors["places"]
    with pytest.raises(Mismatch, match="tensor places is missing"):
        check_tensors(tensors, SCHEMA)
    infinite = some_tensors(values=torch.full((2, 2), math.inf))
    check_tensors(infinite, SCHEMA)
    strict = {**SCHEMA, "values": TensorSchema((torch.float32,), ("rows", 2))}
    with pytest.raises(Mismatch, match="tensor values is not finite everywhere"):
        check_tensors(infinite, strict)
