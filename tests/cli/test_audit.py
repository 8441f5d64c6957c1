"""``fenchel audit``: every option changes something, bad input is one line, and nothing written is lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.auditing.small_audits import assert_same_audit, files_of
from tests.cli.conftest import plain_run

# Small enough that an audit takes about a second.
SMALL = ["--max-length", "12", "--stride", "8", "--batch-size", "2", "--device", "cpu", "--baseline", "none"]


def heads(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "heads.json").read_text())


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "manifest.json").read_text())


def test_an_audit_writes_its_files_and_says_where(command, model, text, tmp_path):
    out = tmp_path / "out"
    done = command("audit", model, "--text", text, "--out", out, *SMALL)
    assert done.code == 0
    assert done.err == ""
    assert f"Report: {out / 'report.html'}" in done.out
    assert {"heads.json", "heads.parquet", "summary.json", "manifest.json", "report.html"} <= set(
        files_of(out)
    )
    records = heads(out)
    assert [(record["layer"], record["head"]) for record in records] == [
        (layer, head) for layer in (1, 2) for head in (1, 2, 3, 4)
    ]
    assert manifest(out)["documents"] == 7
    assert all(record["queries"] == manifest(out)["tokens"] for record in records)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, model):
    """The records of an audit with no option but those that make it small."""
    return plain_run(tmp_path_factory.mktemp("plain"), "audit", model, *SMALL)


@pytest.mark.parametrize(
    ("option", "in_manifest"),
    [
        (["--whole-file"], {"whole_file": True}),
        (["--max-tokens", "20"], {"max_tokens": 20}),
        (["--queries", "3"], {"queries": 3}),
        (["--max-length", "10"], {"max_length": 10}),
        (["--stride", "5"], {"stride": 5}),
        (["--layers", "2"], {"layers": [2]}),
        (["--heads", "1,3-4"], {"heads": [1, 3, 4]}),
        (["--space", "input"], {"space": "input"}),
        (["--alpha", "3"], {"alpha": 3.0}),
        (["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
    ],
)
def test_each_option_changes_the_numbers(command, model, text, tmp_path, plain, option, in_manifest):
    done = command("audit", model, "--text", text, "--out", tmp_path / "out", *SMALL, *option)
    assert done.code == 0, done.err
    assert heads(tmp_path / "out") != heads(plain)
    written = manifest(tmp_path / "out")
    assert {key: written[key] for key in in_manifest} == in_manifest


@pytest.mark.parametrize(
    ("option", "in_manifest"),
    [
        (["--batch-size", "5"], {"batch_size": 5}),
        (["--seed", "7"], {"seed": 7}),
        (["--tol", "1e-6"], {"tol": 1e-6}),
    ],
)
def test_options_that_change_little_are_recorded(command, model, text, tmp_path, plain, option, in_manifest):
    assert command("audit", model, "--text", text, "--out", tmp_path / "out", *SMALL, *option).code == 0
    written = manifest(tmp_path / "out")
    assert {key: written[key] for key in in_manifest} == in_manifest
    for ours, theirs in zip(heads(tmp_path / "out"), heads(plain), strict=True):
        assert ours["queries"] == theirs["queries"]
        assert ours["relative_deviation_mean"] == pytest.approx(theirs["relative_deviation_mean"], rel=1e-2)


def test_columns_choose_the_text_and_the_target(command, translator, tmp_path):
    rows = [
        {"text": "w1 w2 w3", "en": "w4 w5", "de": "w6 w7 w8 w9"},
        {"text": "w9", "en": "w8 w1", "de": "w2"},
    ]
    table = tmp_path / "pairs.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    found = {}
    for name, options in {
        "text": [],
        "en": ["--text-column", "en"],
        "pair": ["--text-column", "en", "--target-column", "de"],
    }.items():
        arguments = ["--text", table, "--out", tmp_path / name, "--space", "key", *SMALL]
        assert command("audit", translator, *arguments, *options).code == 0
        found[name] = heads(tmp_path / name)
    assert found["text"] != found["en"] != found["pair"]
    assert {record["kind"] for record in found["pair"]} == {"encoder_self", "decoder_self", "cross"}
    queries = {record["kind"]: record["queries"] for record in found["pair"]}
    assert queries["decoder_self"] == queries["cross"] == 5 + 4


def test_a_folder_with_an_audit_asks_what_to_do(command, model, text, tmp_path):
    arguments = ["audit", model, "--text", text, "--out", tmp_path / "out", *SMALL]
    assert command(*arguments).code == 0
    before = files_of(tmp_path / "out")
    again = command(*arguments)
    assert again.code == 3
    assert "--resume" in again.line
    assert "--overwrite" in again.line
    assert files_of(tmp_path / "out") == before
    assert command(*arguments, "--resume").code == 0
    assert files_of(tmp_path / "out") == before
    other = command(*arguments, "--alpha", "2", "--resume")
    assert other.code == 3
    assert "alpha" in other.line
    assert command(*arguments, "--alpha", "2", "--overwrite").code == 0
    assert manifest(tmp_path / "out")["alpha"] == 2.0
    contradiction = command(*arguments, "--resume", "--overwrite")
    assert contradiction.code == 3
    assert "contradict each other" in contradiction.line


def test_shards_by_option_and_by_environment(command, model, text, tmp_path, monkeypatch):
    arguments = ["audit", model, "--text", text, "--out", tmp_path / "out", *SMALL]
    first = command(*arguments, "--shard", "0/2")
    assert first.code == 0
    assert f"fenchel merge {tmp_path / 'out'}" in first.out
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command(*arguments).code == 0
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"shard-0-of-2", "shard-1-of-2"}


@pytest.mark.parametrize("name", ["./no/such/folder", "a model with blanks"])
def test_unknown_model(command, text, tmp_path, name):
    done = command("audit", name, "--text", text, "--out", tmp_path / "out")
    assert done.code == 4
    assert f"no model '{name}'" in done.line


@contextlib.contextmanager
def small_disk(folder: Path, size: str):
    """A file system of a few kilobytes; None where this user may not make one."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("only root may mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_fills_up_while_writing(command, model, text, tmp_path, monkeypatch):
    plenty = SimpleNamespace(free=1 << 40)
    with small_disk(tmp_path / "disk", "400k") as disk:
        monkeypatch.setattr("shutil.disk_usage", lambda path: plenty)
        arguments = ["audit", model, "--text", text, "--out", disk / "out", *SMALL]
        done = command(*arguments)
        assert done.code == 6
        assert "the disk is full" in done.line
        left = {name: (disk / "out" / name).stat().st_size for name in files_of(disk / "out")}
        assert "state.json" in left
        assert "report.html" not in left
        assert all(left.values())
        assert not any(name.startswith(".") for name in left)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        assert command(*arguments, "--resume").code == 0
        assert (disk / "out" / "report.html").stat().st_size > 0


def test_a_disk_that_is_full_before(command, model, text, tmp_path):
    with small_disk(tmp_path / "disk", "200k") as disk:
        done = command("audit", model, "--text", text, "--out", disk / "out", *SMALL)
        assert done.code == 6
        assert "bytes free" in done.line


def started(arguments: list[object]) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return subprocess.Popen(
        [sys.executable, "-m", "fenchel", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture(scope="module")
def long(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text whose audit takes a while, and in ``whole`` its audit that nothing stopped."""
    from fenchel.cli import main
    from tests.auditing.small_audits import some_texts

    folder = tmp_path_factory.mktemp("long")
    (folder / "text.txt").write_text("\n".join(some_texts(count=40)))
    with contextlib.chdir(folder):
        assert main([*map(str, stoppable(model)), "--out", "whole"]) == 0
    return folder


def stoppable(model: Path) -> list[object]:
    return ["audit", model, "--text", "text.txt", *SMALL]


def test_a_stopped_audit_goes_on_to_the_same_files(command, model, long, tmp_path, monkeypatch):
    """One that is killed instead: tests/auditing/test_checkpoint.py."""
    (tmp_path / "text.txt").write_text((long / "text.txt").read_text())
    arguments = stoppable(model)
    monkeypatch.chdir(tmp_path)
    process = started([*arguments, "--out", "stopped", "--checkpoint-seconds", "0.05"])
    try:
        wait_for(tmp_path / "stopped" / "state.json", process)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert not (tmp_path / "stopped" / "report.html").exists()
    assert process.returncode == 130
    assert err.count("\n") == 1
    assert err.startswith("fenchel: interrupted; ")
    assert "tokens are saved in stopped. Go on with: fenchel audit " in err
    assert err.rstrip().endswith("--resume")
    assert out == ""
    assert command(*arguments, "--out", "stopped", "--resume").code == 0
    assert_same_audit(tmp_path / "stopped", long / "whole")
