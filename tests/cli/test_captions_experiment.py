"""The experiment on captions runs as it stands, on a handful of images."""

from __future__ import annotations

import json

from fenchel.data import CaptionedImages
from fenchel.train.captions import Captioning
from tests.cli.conftest import Command
from tests.train.captions.small_captions import captions


def test_captions_by_heart_and_held_out(command: Command, tmp_path, monkeypatch):
    def few(cls: object, name: str) -> CaptionedImages:
        return captions()

    monkeypatch.setattr(Captioning, "read", classmethod(few))
    monkeypatch.setattr("fenchel.experiments.report.write_curves", lambda results, path: None)
    line = (
        "--seeds",
        1,
        "--arms",
        "mean,hard",
        "--set",
        "image_size=8",
        "--set",
        "depth=1",
        "--set",
        "width=8",
    )
    done = command(
        "experiment", "captions", "--out", tmp_path / "out", *line, "--records", tmp_path / "records"
    )
    assert done.code == 0, done.err
    assert "Captions by heart" in done.out
    assert f"All tables: {tmp_path / 'out' / 'table.md'}" in done.out
    table = (tmp_path / "out" / "table.md").read_text()
    assert "how well they are learned by heart, and nothing else" in table
    assert "Test BLEU" in table
    assert table.count("Hard, REINFORCE |") == 2
    for part in ("captions-by-heart", "captions-held-out"):
        written = json.loads((tmp_path / "out" / part / "results.json").read_text())
        assert written["finished"] == 2
        place = tmp_path / "out" / part / "coco-mini" / "hard" / "lr-0.002" / "seed-0"
        trained = json.loads((place / "results.json").read_text())
        assert trained["data"]["train_captions"] == 40  # two of each of 20 images
        assert (trained["options"]["gradient"], trained["options"]["depth"]) == ("reinforce", 1)
    assert len(list((tmp_path / "records").rglob("*.json"))) == 4
    again = command("experiment", "captions", "--out", tmp_path / "out", *line)
    assert again.err.count("finished before") == 4
    only = command("experiment", "captions", "--out", tmp_path / "out", "--report-only")
    assert only.code == 0
    wrong = command("experiment", "captions", "--out", tmp_path / "other", "--set", "colour=red")
    assert "expected KEY=VALUE with a KEY of" in wrong.line
