"""The command that an audit of the demo encoder prints to run next, run as it stands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.pages import ROOT


def test_the_printed_command_runs_and_goes_beside_the_audit(
    command: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = (ROOT / "src/fenchel/data/text/demo.txt").read_text(encoding="utf-8").splitlines()
    monkeypatch.chdir(tmp_path)
    Path("it's a text.txt").write_text("\n".join(lines[:4]), encoding="utf-8")
    audited = ["audit", str(model), "--text", "it's a text.txt", "--baseline", "none", "--space", "key"]
    done = command(*audited, "--out", "audit")
    assert done.code == 0
    (printed,) = (line.strip() for line in done.out.splitlines() if line.startswith("  fenchel "))
    # A shell takes it apart; nothing of it is changed or added.
    assert command(*shlex.split(printed)[1:]).code == 0
    swap = shlex.split(printed)[-1]
    assert (Path(swap) / "swap.html").exists()
    beside = command(*audited, "--out", "beside", "--swap", swap)
    assert beside.code == 0
    effects = json.loads(Path("beside/patterns.json").read_text())["effects"]
    assert effects["note"] == ""
    heads = printed.split("--heads ")[1].split()[0].split(",")
    assert {str(head["head"]) for head in effects["heads"]} == set(heads)
