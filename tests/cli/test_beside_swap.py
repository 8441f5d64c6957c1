"""``--swap``: a swap beside an audit, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Command


def test_the_command_line_takes_a_folder(command: Command, model: Path, text: Path, tmp_path: Path) -> None:
    small = ["--max-length", "12", "--baseline", "none", "--space", "input"]
    assert command("audit", model, "--text", text, "--out", tmp_path / "audit", *small).code == 0
    swapping = ["--per-head", "--layers", "1", "--bootstrap", "100", "--alphas", "0.8"]
    assert command("swap", model, "--text", text, "--out", tmp_path / "swap", *swapping).code == 0
    done = command("report", tmp_path / "audit", "--swap", tmp_path / "swap")
    assert done.code == 0
    assert "Audit with --space key" in " ".join(done.out.split())
    other = tmp_path / "other"
    shutil.copytree(model, other)
    early = command("audit", other, "--text", text, "--out", tmp_path / "new", "--swap", tmp_path / "swap")
    assert early.code == 3
    assert f"it is of '{model}', and the audit of '{other}'" in early.line
    assert not (tmp_path / "new").exists()
    missing = command("report", tmp_path / "audit", "--swap", tmp_path / "nothing")
    assert missing.code == 3
    assert "nothing holds no swap (swap.json is not there)" in missing.line
    early = command("audit", model, "--text", text, "--out", tmp_path / "new", "--swap", tmp_path / "nothing")
    assert "swap.json" in early.line
    assert not (tmp_path / "new").exists()
