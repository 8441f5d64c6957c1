"""``fenchel compare`` on folders that ``fenchel audit`` wrote, and on others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.auditing.small_audits import files_of
from tests.cli.conftest import plain_run

SMALL = ["--max-length", "12", "--batch-size", "2", "--device", "cpu", "--baseline", "none"]


@pytest.fixture(scope="module")
def audits(model, tmp_path_factory) -> list[Path]:
    """Two audits of a model that differ in the windows."""
    return [
        plain_run(tmp_path_factory.mktemp("audit"), "audit", model, *SMALL[2:], "--max-length", length)
        for length in ("12", "10")
    ]


def test_two_audits(command, audits, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("compare", *audits)
    assert done.code == 0, done.err
    assert "Total variation" in done.out
    assert done.out.splitlines()[-1] == f"Page: {Path('compare') / 'compare.html'}"
    saved = json.loads((tmp_path / "compare" / "compare.json").read_text())
    assert [audit["name"] for audit in saved["audits"]] == [str(folder) for folder in audits]
    assert "max_length" in saved["differing"]
    assert len(saved["heads"]) == 8
    files = files_of(tmp_path / "compare")
    assert set(files) == {"compare.json", "compare.html"}
    assert command("compare", *audits).code == 0
    assert files_of(tmp_path / "compare") == files
    other = command("compare", *reversed(audits))
    assert other.code == 3
    assert "holds another comparison" in other.line
    assert command("compare", *reversed(audits), "--overwrite").code == 0


def test_three_make_a_trajectory(command, audits, model, tmp_path):
    third = plain_run(tmp_path, "audit", model, *SMALL[2:], "--max-length", "11")
    done = command("compare", *audits, third, "--out", tmp_path / "three")
    assert done.code == 0, done.err
    assert "Total variation by layer, medians" in " ".join(done.out.split())
    assert "A trajectory of 3 audits" in (tmp_path / "three" / "compare.html").read_text()


def test_what_cannot_be_compared(command, audits, model, tmp_path):
    out = ("--out", tmp_path / "nothing")
    one = command("compare", audits[0], *out)
    assert one.code == 2
    assert "expected two or more" in one.line
    assert command("compare", audits[0], audits[1], "--outt", "x").code == 2
    assert command("compare", audits[0], audits[0], *out).code == 3
    missing = command("compare", audits[0], tmp_path / "nowhere", *out)
    assert missing.code == 3
    assert "nowhere is not there" in missing.line
    other = plain_run(tmp_path, "audit", model, *SMALL, "--alpha", "2", "--space", "input")
    refused = command("compare", audits[0], other, *out)
    assert refused.code == 3
    assert f"space: 'key' in {audits[0]}, 'input' in {other}; alpha: 1.0 in" in refused.line
    assert not (tmp_path / "nothing").exists()
