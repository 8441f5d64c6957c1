"""Numbers as pages and tables write them, and as they are read back."""

from __future__ import annotations

import math

import pytest

from fenchel.drawing import count, decimal, percent, reading, short


@pytest.mark.parametrize("write", [decimal, short, percent])
def test_numbers_that_are_none_are_written(write) -> None:
    assert [write(value) for value in (math.inf, -math.inf, math.nan, None)] == ["∞", "−∞", "–", "–"]


def test_numbers_are_read_from_whatever_json_makes_of_them() -> None:
    assert [reading(v) for v in (1, 2.5, "inf", "-Infinity")] == [1.0, 2.5, math.inf, -math.inf]
    assert [reading(v) for v in (None, math.nan, "nan", "no number", [], {})] == [None] * 6
    assert count(None) == "–"
