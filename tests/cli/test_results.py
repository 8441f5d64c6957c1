"""What commands make of finished runs: merged shards, reports, swaps beside audits, comparisons, reproductions."""

import json
import shutil
from pathlib import Path

import pytest

from fenchel.catalogue import ENTRIES, difference, entry
from tests.auditing.small_audits import files_of
from tests.cli.conftest import SMALL, Command, plain_run


@pytest.fixture(scope="module")
def audits(model, tmp_path_factory) -> list[Path]:
    """Audits of a model that differ in the windows; not to be changed."""
    folders = {length: tmp_path_factory.mktemp("audit") for length in ("12", "10")}
    return [plain_run(folder, "audit", model, "--max-length", one) for one, folder in folders.items()]


def test_merging_writes_a_report_and_says_what_is_missing(command, tmp_path, model):
    """In any order the same bytes: tests/auditing/test_merge.py."""
    for index in range(2):
        plain_run(tmp_path, "audit", model, "--shard", f"{index}/2")
    shards = tmp_path / "out"
    done = command("merge", shards)
    assert done.code == 0
    assert f"Report: {shards / 'report.html'}" in done.out
    assert command("merge", shards).code == 0
    first, second, out = shards / "shard-0-of-2", shards / "shard-1-of-2", tmp_path / "merged"
    half = command("merge", first, "--out", out)
    assert half.code == 3
    assert "--partial" in half.line
    assert command("merge", first, "--out", out, "--partial").code == 0
    assert json.loads((out / "manifest.json").read_text())["shard"] == "0/2"
    assert command("merge", second, first, "--out", out, "--overwrite").code == 0
    assert json.loads((out / "manifest.json").read_text())["shard"] == "0/1"


def test_a_swap_is_shown_beside_an_audit_of_its_model(run, command, model, tmp_path):
    assert run("audit", "--space", "input", of=model, out="audit").code == 0
    assert run("swap", "--per-head", "--layers", "1", of=model, out="swap").code == 0
    done = command("report", tmp_path / "audit", "--swap", tmp_path / "swap")
    assert done.code == 0
    assert "Audit with --space key" in done.words
    other = shutil.copytree(model, tmp_path / "other")
    early = run("audit", "--swap", tmp_path / "swap", of=other, out="new")
    assert early.code == 3
    assert f"differ in model: '{other}' in the audit, '{model}' in the swap" in early.line
    for done in (
        command("report", tmp_path / "audit", "--swap", tmp_path / "nothing"),
        run("audit", "--swap", tmp_path / "nothing", out="new"),
    ):
        assert done.code == 3
        assert "nothing holds no swap (swap.json is missing)" in done.line
    assert not (tmp_path / "new").exists()


def test_two_audits_are_compared(command, audits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out, (one, other) = tmp_path / "compare", audits
    done = command("compare", one, other)
    assert done.code == 0, done.err
    assert "the heads that moved most, by the smallest change within the interval" in done.words
    assert done.out.splitlines()[-1] == f"Page: {Path('compare') / 'compare.html'}"
    names = [audit["name"] for audit in json.loads((out / "compare.json").read_text())["audits"]]
    assert names == [str(one), str(other)]
    assert "holds another comparison" in command("compare", other, one).line
    assert command("compare", other, one, "--overwrite").code == 0


def test_a_figure_is_reproduced_with_a_local_model(command, model, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = ["--model", model, "--text", text, *SMALL["reproduce"].split()]
    done = command("reproduce", "figure5", *given)
    assert (done.code, done.err) == (0, "")
    assert "Figure 5, encoder self-attention" in done.out
    assert done.out.splitlines()[-1].startswith("Table: reproduce")
    written = json.loads((tmp_path / "reproduce" / "figure5.json").read_text())
    assert written["manifest"]["model"] == str(model)
    again = command("reproduce", "figure5", *given)
    assert again.code == 3
    assert "Continue it with --resume" in again.line
    assert command("reproduce", "figure4", *given, "--resume").code == 0
    assert "figure4.md" in files_of(tmp_path / "reproduce")


def test_reports_are_made_again_and_folders_that_hold_no_audit_named(command, tmp_path, audits):
    out = shutil.copytree(audits[0], tmp_path / "out")
    before = files_of(out)
    for name in ("heads.json", "report.html"):
        (out / name).unlink()
    assert f"Report: {out / 'report.html'}" in command("report", out).out
    assert files_of(out) == before
    for given in (["report", tmp_path], ["merge", tmp_path / "no"], ["compare", tmp_path, tmp_path / "no"]):
        done = command(*given)
        assert done.code == 3
        assert str(given[-1]) in done.line or str(tmp_path) in done.line


def test_the_catalogue_lists_and_measures_and_names_what_is_near(command: Command, monkeypatch):
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        done = command("catalogue")
        # Names are in one piece however narrow.
        assert {line.split()[0] for line in done.out.splitlines() if line.strip()} >= set(ENTRIES)
        assert ("from 120 columns on" in done.out, "…" in done.out) == (columns == "60", False)
    monkeypatch.setenv("COLUMNS", "40")
    assert "…" not in command("catalogue", "convolution").out
    monkeypatch.delenv("COLUMNS")
    lines = [" ".join(line.split()) for line in command("catalogue").out.splitlines()]
    for one in ENTRIES.values():
        row = (one.name, one.title, one.preference, one.evidence, one.verdict.value)
        assert " ".join(row) in lines
    text = command("catalogue", "scaled-dot").out
    for said in ("Vaswani et al. 2017", "k_j/√d", f"{difference(entry('scaled-dot')).gap:.3f}"):
        assert said in text
    assert [one["name"] for one in json.loads(command("catalogue", "--json").out)] == list(ENTRIES)
    asked = ["catalogue", "scaled-dot", "--json", "--closeness", "sparsemax", "--seed", 2]
    expected = difference(entry("scaled-dot"), closeness="sparsemax", seed=2)
    assert json.loads(command(*asked).out)["measured"]["estimators"][0]["gap"] == expected.gap
    for wrong, code, said in (
        (["scaled-dott"], 3, "nearest: scaled-dot"),
        (["Scaled_Dot"], 3, "nearest: scaled-dot"),
        (["scaled-dot", "--closeness", "tsalis:2"], 3, "tsalis:2"),
        (["scaled-dot", "--seed", -1], 3, "seed is -1; expected a whole number from 0"),
        (["--seed", 3], 2, "give NAME too"),
    ):
        done = command("catalogue", *wrong)
        assert done.code == code
        assert said in done.line
