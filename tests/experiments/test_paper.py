"""The paper's numbers, as its two tables print them."""

from __future__ import annotations

import pytest

from fenchel.experiments.paper import reported

TABLE_1 = """
| LR | 3e-3 | 3e-4 | 3e-5 |
| vit | 0.228 | 0.463 | 0.452 |
| ot-vit | 0.175 | 0.491 | 0.412 |
"""
TABLE_2 = """
| | fashion-mnist | cifar10 | cifar100 |
| vit | 0.928 | 0.751 | 0.463 |
| ot-vit | 0.937 | 0.772 | 0.491 |
"""


def rows(table: str) -> list[tuple[str, str, float]]:
    head, *lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()
    ]
    return [
        (line[0], column, float(cell))
        for line in lines
        for column, cell in zip(head[1:], line[1:], strict=True)
    ]


@pytest.mark.parametrize(("arm", "rate", "accuracy"), rows(TABLE_1))
def test_table_1(arm, rate, accuracy):
    found = reported("cifar100", float(rate), arm)
    assert found is not None
    assert (found.accuracy, found.half_width) == (accuracy, 0.01)
    assert "1" in found.table


@pytest.mark.parametrize(("arm", "data", "accuracy"), rows(TABLE_2))
def test_table_2(arm, data, accuracy):
    found = reported(data, 3e-4, arm)
    assert found is not None
    assert found.accuracy == accuracy
    assert found.half_width == (0.02 if (arm, data) == ("ot-vit", "cifar10") else 0.01)
    assert "2" in found.table


def test_both_readings_have_the_one_number_and_controls_none():
    assert reported("cifar10", 3e-4, "ot-vit-shared") == reported("cifar10", 3e-4, "ot-vit")
    assert reported("cifar10", 3e-4, "ot-vit-alone") is None
    assert reported("cifar10", 3e-4, "vit-extra") is None


@pytest.mark.parametrize(("data", "rate"), [("fashion-mnist", 3e-3), ("cifar100", 1e-4), ("svhn", 3e-4)])
def test_what_was_not_reported_is_none(data, rate):
    assert reported(data, rate, "vit") is None
