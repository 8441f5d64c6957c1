"""Relative attention by distance: no templates are written out for it, and its rows are read without an index."""

from typing import Any

import pytest
import torch

from fenchel.functional.relative import distance_index, of_pairs, to_rows
from tests.functional.ops import OPS, infer


def test_first_order_never_writes_templates_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("templates were written out")

    monkeypatch.setattr("fenchel.functional.relative._by_query", refuse)
    output, bounds = infer(
        OPS["relative"], OPS["relative"].call(preference=(5, 7)), "first_order"
    ).certified()
    assert output.shape == (2, 4, 5, 2)
    assert bounds.gap.shape == (2, 4, 5)


@pytest.mark.parametrize("queries", [0, 1, 4])
def test_rows_are_read_and_added_up_as_an_index_says(queries: int) -> None:
    keys, generator = 6, torch.Generator().manual_seed(0)
    rows = queries + keys - 1
    by_row, of_pair = (torch.randn(2, queries, n, generator=generator) for n in (rows, keys))
    index = distance_index(queries, keys, by_row.device)
    torch.testing.assert_close(of_pairs(by_row, None, keys), of_pairs(by_row, index, keys))
    torch.testing.assert_close(to_rows(of_pair, None, rows), to_rows(of_pair, index, rows))
    # Each is the other's transpose.
    torch.testing.assert_close(
        (of_pairs(by_row, None, keys) * of_pair).sum(), (by_row * to_rows(of_pair, None, rows)).sum()
    )
