"""``--resume`` means the same to every command: begin where nothing is, go on, keep, and replace nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import test_audit, test_swap

masked = test_swap.masked

COMMANDS = {"audit": "report.html", "swap": "swap.json"}


@pytest.fixture
def arguments(request: pytest.FixtureRequest) -> list[object]:
    """A small run of a command, with no folder yet."""
    name = request.param
    if name == "audit":
        of = [request.getfixturevalue("model"), "--text", request.getfixturevalue("text")]
        return [name, *of, *test_audit.SMALL, "--max-tokens", "20"]
    of = [request.getfixturevalue("masked"), "--text", request.getfixturevalue("text")]
    return [name, *of, *test_swap.SMALL, "--max-tokens", "20"]


@pytest.mark.parametrize("arguments", COMMANDS, indirect=True)
@pytest.mark.parametrize("there", [False, True])
def test_where_nothing_is_a_run_begins_and_a_finished_one_is_kept(command, arguments, there, tmp_path):
    out = tmp_path / "out"
    if there:
        out.mkdir()
    done = command(*arguments, "--out", out, "--resume")
    assert done.code == 0, done.err
    written = out / COMMANDS[arguments[0]]
    before = written.read_bytes()
    again = command(*arguments, "--out", out, "--resume")
    assert again.code == 0, again.err
    assert written.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "orphan"), [("audit", "heads.json"), ("swap", "swap.json")], indirect=["arguments"]
)
def test_results_without_their_state_are_not_replaced(command, arguments, orphan, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / orphan).write_text("somebody's")
    done = command(*arguments, "--out", out, "--resume")
    assert done.code == 3
    assert str(out) in done.line
    assert (out / orphan).read_text() == "somebody's"
