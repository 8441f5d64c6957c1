"""The table of ``docs/works-with.md`` is what happens."""

import pytest

from tests.works_with import SUBJECTS, TOOLS, outcome, recorded

TABLE = recorded()


def test_the_table_has_every_cell() -> None:
    assert set(TABLE) == {(subject, tool) for subject in SUBJECTS for tool in TOOLS}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_cell_is_what_happens(subject: str, tool: str) -> None:
    assert outcome(subject, tool) == TABLE[subject, tool]
