"""A killed audit goes on where it was and ends with the table of one that was not."""

import errno
import multiprocessing
import os
import re
import signal
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from fenchel.auditing import run
from fenchel.auditing.audit_report import AuditReport
from fenchel.auditing.state import STATE_FILE, STATE_FORM
from fenchel.errors import InputError, OutputError
from fenchel.io import storage
from fenchel.io.storage import read_document, write_document
from tests.auditing.small_audits import Interrupting, assert_same_audit, small_audit, some_texts
from tests.damage import Change, field, ill_formed

EVERY_BATCH: dict[str, Any] = {"checkpoint_seconds": 0.0}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of an uninterrupted audit; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    small_audit(directory=folder)
    return folder


def test_being_interrupted_after_every_batch_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "ROWS_IN_A_PART", 200)  # which a few batches fill
    options: dict[str, Any] = {"queries": 4, "baseline": "twin"}
    small_audit(directory=tmp_path / "whole", **options)
    resumed, error, tokens = tmp_path / "resumed", RuntimeError("out of memory"), [0]
    while True:
        observer = Interrupting(1, error)
        try:
            small_audit(directory=resumed, resume=True, observer=observer, **options)
            break
        except RuntimeError:
            pass
        assert observer.calls[-1] == "finished"
        state = AuditReport.read(resumed)
        tokens.append(state.cursor.tokens)
        assert (state.finished, tokens[-1]) == (False, observer.seen[-1].tokens)
        assert tokens[-1] > tokens[-2]
        assert not (resumed / "report.html").exists()
    assert len(tokens) > 6
    assert len(list((tmp_path / "whole" / "queries").iterdir())) > 1
    assert_same_audit(tmp_path / "whole", resumed)


def test_a_batch_that_fails_half_way_is_not_counted(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = tmp_path / "resumed"
    real, calls = run.measure, []

    def failing(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(run, "measure", failing)
    with pytest.raises(KeyboardInterrupt):
        small_audit(directory=resumed, **EVERY_BATCH)
    state = AuditReport.read(resumed)
    found = state.statistics
    assert {found.of(*key)["queries"] for key in found.keys()} == {state.cursor.tokens}  # noqa: SIM118
    monkeypatch.undo()
    small_audit(directory=resumed, resume=True)
    assert_same_audit(whole, resumed)


def test_a_full_disk_loses_nothing_that_was_saved(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed = tmp_path / "resumed"
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*: the disk is full\. Free some space, then run"):
        small_audit(directory=resumed, **EVERY_BATCH)
    monkeypatch.undo()
    assert 0 < AuditReport.read(resumed).cursor.tokens < AuditReport.load(whole).manifest["tokens"]
    small_audit(directory=resumed, resume=True)
    assert_same_audit(whole, resumed)


KILLED_TEXTS = 4


def _audit_until_killed(folder: Path, number: int) -> None:
    """Audit on; end like a killed process before (even numbers) or after (odd ones) a file takes its place."""
    real, count = Path.replace, 0

    def replace(self: Path, target: Any) -> Path:
        nonlocal count
        count += 1
        if 2 * count == number:
            os._exit(signal.SIGKILL)
        found = real(self, target)
        if 2 * count + 1 == number:
            os._exit(signal.SIGKILL)
        return found

    Path.replace = replace
    small_audit(some_texts(KILLED_TEXTS), directory=folder, checkpoint_seconds=0.0, resume=True)


def test_an_audit_killed_at_any_write_ends_like_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    small_audit(some_texts(KILLED_TEXTS), directory=whole)
    # A server that has imported everything and started no thread: each process is a fork of it.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "polars", "transformers.models.bert.modeling_bert"])

    def code(number: int) -> int | None:
        process = context.Process(target=_audit_until_killed, args=(killed, number))
        process.start()
        process.join()
        return process.exitcode

    # Between a part and the state that names it, and elsewhere; then while the last files are written.
    kills = [code(2 + number % 6) for number in range(6)]
    assert kills == [signal.SIGKILL] * 6
    assert not AuditReport.read(killed).finished
    numbers = iter(range(4, 1000))
    while (last := code(next(numbers))) == signal.SIGKILL:
        kills.append(last)
    assert last == 0
    assert len(kills) >= 18
    assert_same_audit(whole, killed)
    assert {*(killed / "queries").iterdir()} == {*AuditReport.read(killed).statistics.table.parts}


WRONG: dict[str, Change] = {
    "a part elsewhere": field("table", "parts", 0, to="../00000-0123456789abcdef.parquet"),
    "a part that is not there": field("table", "parts", 0, to="00000-0123456789abcdef.parquet"),
    "words without an id": field("table", "words", to={"w1": "w1"}),
    "another baseline": field("manifest", "baseline", to="sister"),
    "an empty model": field("manifest", "model", to=""),
    "alpha 0": field("manifest", "alpha", to=0),
    "negative documents": field("manifest", "documents", to=-3),
    "no shard": field("manifest", "shard", to="all of it"),
    "a negative cursor": field("cursor", "window", to=-1),
    "an example at position 0": field("examples", 0, "position", to=0),
    "a negative weight": field("examples", 0, "templates", 0, "exact", to=-0.5),
    "a matrix without a query": field("matrices", 0, "query_positions", to=[]),
    "more": field("more", to=1),
}


def test_what_no_audit_can_have_saved_is_refused_though_it_is_sealed(tmp_path: Path) -> None:
    small_audit(["w1 w2 w3"], directory=tmp_path, baseline="twin")
    saved = read_document(tmp_path / STATE_FILE, STATE_FORM)
    optional = ("embeds", "estimated_seconds", "seconds", "picture", *saved["table"]["words"])
    for _, change in (*WRONG.items(), *ill_formed(saved, *optional)):
        changed = deepcopy(saved)
        change(changed)
        write_document(tmp_path / STATE_FILE, STATE_FORM, changed)
        with pytest.raises(InputError, match=re.escape(str(tmp_path))):
            AuditReport.read(tmp_path)


def test_an_audit_of_the_first_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "state.safetensors").write_bytes(b"counts")
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))} holds an audit of fenchel 0.1"):
        AuditReport.load(tmp_path)
