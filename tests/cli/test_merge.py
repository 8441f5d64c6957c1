"""``fenchel merge`` and ``fenchel report`` give the files that one audit gives."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.auditing.small_audits import files_of
from tests.cli.conftest import plain_run

SMALL = ["--max-length", "12", "--batch-size", "2", "--device", "cpu", "--baseline", "none"]
NUMBERS = ("heads.json", "summary.json", "heads.parquet")


@pytest.fixture(scope="module")
def parts(model, tmp_path_factory) -> Path:
    """Two shards of an audit, each in its folder; not to be changed."""
    folder = tmp_path_factory.mktemp("parts")
    for index in range(2):
        plain_run(folder, "audit", model, *SMALL, "--shard", f"{index}/2")
    return folder / "out"


@pytest.fixture
def shards(parts, tmp_path) -> Path:
    return shutil.copytree(parts, tmp_path / "parts")


@pytest.fixture(scope="module")
def whole(model, tmp_path_factory) -> Path:
    """The audit of both; not to be changed."""
    return plain_run(tmp_path_factory.mktemp("whole"), "audit", model, *SMALL)


def test_merging_gives_the_whole_in_any_order(command, tmp_path, shards, whole):
    done = command("merge", shards)
    assert done.code == 0
    assert f"Report: {shards / 'report.html'}" in done.out
    first, second = shards / "shard-0-of-2", shards / "shard-1-of-2"
    assert command("merge", first, second, "--out", tmp_path / "one").code == 0
    assert command("merge", second, first, "--out", tmp_path / "two").code == 0
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    totals = [
        [(record["layer"], record["head"], record["queries"]) for record in json.loads(path.read_text())]
        for path in (whole / "heads.json", tmp_path / "one" / "heads.json")
    ]
    assert totals[0] == totals[1]
    assert {path.name for path in whole.iterdir()} == {path.name for path in (tmp_path / "one").iterdir()}
    assert command("merge", shards).code == 0


def test_what_cannot_be_merged(command, tmp_path, shards):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert command("merge", empty).code == 3
    missing = command("merge", tmp_path / "nowhere")
    assert missing.code == 3
    assert "nowhere" in missing.line
    twice = command("merge", shards / "shard-0-of-2", shards / "shard-0-of-2", "--out", tmp_path / "out")
    assert twice.code == 3
    assert "count twice" in twice.line
    half = command("merge", shards / "shard-0-of-2", "--out", tmp_path / "out")
    assert half.code == 3
    assert "shards 1/2 are missing" in half.line
    assert command("merge", shards / "shard-0-of-2", "--out", tmp_path / "out", "--partial").code == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["shard"] == "0/2"


def test_merge_keeps_another_audit_unless_told(command, tmp_path, shards, whole):
    out = shutil.copytree(whole, tmp_path / "other")
    before = files_of(out)
    assert command("merge", shards, "--out", out).code == 3
    assert files_of(out) == before
    assert command("merge", shards, "--out", out, "--overwrite").code == 0
    assert files_of(out) != before


def test_report_is_made_again(command, tmp_path, whole):
    out = shutil.copytree(whole, tmp_path / "out")
    before = files_of(out)
    for name in (*NUMBERS, "report.html"):
        (out / name).unlink()
    done = command("report", out)
    assert done.code == 0
    assert f"Report: {out / 'report.html'}" in done.out
    assert files_of(out) == before


def test_there_is_no_report_without_an_audit(command, tmp_path):
    done = command("report", tmp_path)
    assert done.code == 3
    assert str(tmp_path) in done.line
