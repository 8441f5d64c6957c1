"""``--resume`` means the same to every command: begin where nothing is, go on, keep, and replace nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli import test_audit, test_swap, test_train
from tests.experiments.small_experiments import StandIn, read_few_images

data = test_train.data
masked = test_swap.masked

COMMANDS = {
    "audit": "report.html",
    "swap": "swap.json",
    "train": "results.json",
    "experiment": "table.md",
}


@pytest.fixture
def arguments(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A small run of a command, with no folder yet."""
    name = request.param
    if name == "audit":
        of = [request.getfixturevalue("model"), "--text", request.getfixturevalue("text")]
        return [name, *of, *test_audit.SMALL, "--max-tokens", "20"]
    if name == "swap":
        of = [request.getfixturevalue("masked"), "--text", request.getfixturevalue("text")]
        return [name, *of, *test_swap.SMALL, "--max-tokens", "20"]
    if name == "train":
        return [name, "--data", request.getfixturevalue("data"), *test_train.SMALL]
    read_few_images(monkeypatch)
    monkeypatch.setattr("fenchel.experiments.run.train", StandIn())
    few = ["--train-images", "20", "--test-images", "10", "--batch-size", "4"]
    return [name, "table2", "--data", "fashion-mnist", *few]


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
    ("arguments", "orphan"),
    [
        ("audit", "heads.json"),
        ("swap", "swap.json"),
        ("train", "results.json"),
        ("experiment", "results.json"),
    ],
    indirect=["arguments"],
)
def test_results_without_their_state_are_not_replaced(command, arguments, orphan, tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    (out / orphan).write_text("somebody's")
    done = command(*arguments, "--out", out, "--resume")
    assert done.code == 3
    assert str(out) in done.line
    assert (out / orphan).read_text() == "somebody's"
