"""The table of ``docs/works-with.md`` is what happens."""

import pytest

from tests.works_with import TOOLS, cells, recorded


def test_the_table_has_every_tool() -> None:
    assert recorded().keys() == TOOLS.keys()


@pytest.mark.parametrize("tool", TOOLS)
def test_the_row_is_what_happens(tool: str) -> None:
    assert cells(tool) == recorded()[tool]
