import math
from typing import Any

import pytest
import torch

from fenchel.io.storage import (
    Digest,
    Mismatch,
    Name,
    OpenRecord,
    Place,
    Positive,
    Record,
    Seed,
    TensorSchema,
    Whole,
    check_json,
    check_tensors,
)


class Layer(Record):
    heads: list[Place]


class Layers(Record):
    layers: list[Layer]


class OpenLayer(OpenRecord):
    heads: list[Place]
    twin: str | None = None


@pytest.mark.parametrize(
    ("expected", "good", "bad"),
    [
        (bool, [True, False], [0, 1, None, "true"]),
        (Whole, [0, 2**63 - 1], [-1, 2**63, 1.0, True, None, "1"]),
        (Place, [1, 3], [0, -1, 1.0]),
        (Seed, [-(2**63), 2**64 - 1], [-(2**63) - 1, 2**64, 0.0]),
        (Positive, [1e-300, 2], [0, 0.0, -1, math.nan, math.inf, True, None, "1"]),
        (Name, ["a", "\n"], ["", None, 1]),
        (Digest, ["0a" * 32], ["0A" * 32, "0a" * 31, "0a" * 32 + "\n"]),
        (Layer, [{"heads": []}], [{}, {"heads": [1], "more": 2}, [], None]),
        (
            OpenLayer,
            [{"heads": [1], "more": 2}, {"heads": [], "twin": None}],
            [{"twin": ""}, {"heads": [1.0]}],
        ),
    ],
)
def test_every_type_lets_pass_what_it_says_and_nothing_else(
    expected: Any, good: list[Any], bad: list[Any]
) -> None:
    class Holder(Record):
        here: expected  # pyright: ignore[reportInvalidTypeForm]

    for value in good:
        check_json(Holder, {"here": value})
    for value in bad:
        with pytest.raises(Mismatch, match=r"here.*; expected "):
            check_json(Holder, {"here": value})


def test_a_mismatch_says_where_and_is_short() -> None:
    with pytest.raises(
        Mismatch, match=r"^file\.layers\[1\]\.heads\[2\] is 0; expected greater than or equal to 1$"
    ):
        check_json(Layers, {"layers": [{"heads": []}, {"heads": [1, 2, 0]}]}, "file")
    with pytest.raises(Mismatch) as caught:
        check_json(Layers, {"layers": "x" * 10**6})
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
