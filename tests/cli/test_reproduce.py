"""``fenchel reproduce`` with a model that is here, and without the papers'."""

from __future__ import annotations

import json

from tests.auditing.small_audits import files_of

SMALL = ("--max-length", "12", "--batch-size", "2", "--device", "cpu")


def test_a_figure_with_a_local_model(command, model, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = command("reproduce", "figure5", "--model", model, "--text", text, *SMALL)
    assert done.code == 0, done.err
    assert done.err == ""
    assert "Figure 5, encoder self-attention" in done.out
    assert "untrained twin" in done.out
    assert done.out.splitlines()[-1].startswith("Table: reproduce")
    written = json.loads((tmp_path / "reproduce" / "figure5.json").read_text())
    assert written["manifest"]["model"] == str(model)
    assert {"figure5.json", "figure5.md", "audit/report.html"} <= set(files_of(tmp_path / "reproduce"))
    again = command("reproduce", "figure5", "--model", model, "--text", text, *SMALL)
    assert again.code == 3
    assert "Keep it and do what is left with --resume" in again.line
    assert command("reproduce", "figure4", "--model", model, "--text", text, *SMALL, "--resume").code == 0
    assert "figure4.md" in files_of(tmp_path / "reproduce")


def test_the_papers_model_is_not_here(command, text, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    done = command("reproduce", "figures6-8", "--text", text, "--out", tmp_path / "out")
    assert done.code == 4
    assert "google-t5/t5-small" in done.line
    assert "'demo' for the bundled encoder" in done.line
    assert not (tmp_path / "out").exists()
