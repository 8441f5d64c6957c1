"""Sweeps: which cells are run, how arms are compared, and what a cell that fails does."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

import sweep
from fenchel.errors import InputError

SCRIPT = """
import json, sys
from pathlib import Path
assert sys.argv[1] == "train"
told = dict(zip(sys.argv[2::2], sys.argv[3::2]))
seed, gain = int(told["--seed"]), float(told["--gain"])
out = Path(told["--out"])
with (out / "calls").open("a") as calls:
    calls.write(sys.argv[-1] + "\\n")
if seed == int(told.get("--fails", -1)):
    (out / "checkpoint-0-1").mkdir(exist_ok=True)
    sys.exit("the loss is nan. Lower --learning_rate.")
test = {"accuracy": 0.5 + gain + 0.01 * seed ** 2 - gain * 0.1 * seed, "loss": 1.0 - gain}
(out / "metrics.json").write_text(json.dumps({"test": test, "parameters": 1234, "train_seconds": 2.5}))
"""


@pytest.fixture
def script(tmp_path) -> str:
    path = tmp_path / "quick.py"
    path.write_text(SCRIPT)
    return str(path)


def result(folder: Path) -> dict[str, Any]:
    return json.loads((folder / sweep.RESULTS).read_text())


def calls(folder: Path) -> dict[str, list[str]]:
    """The last word of each command of each cell."""
    return {str(file.parent.relative_to(folder)): file.read_text().split() for file in folder.rglob("calls")}


def test_arms_are_compared_by_paired_intervals(tmp_path, script, capsys):
    out = tmp_path / "out"
    arms = ["--arm", "plain", "--gain 0", "--arm", "better", "--gain 0.1"]
    assert sweep.main([script, "--out", str(out), "--seeds", "4", "--jobs", "2", *arms]) == 0
    found = result(out)["arms"]
    values = {arm: [*row["metrics"]["accuracy"]["by_seed"].values()] for arm, row in found.items()}
    assert values["plain"] == pytest.approx([0.5 + 0.01 * seed**2 for seed in range(4)])
    paired = stats.ttest_rel(values["better"], values["plain"]).confidence_interval(0.95)
    difference = found["better"]["metrics"]["accuracy"]["difference"]
    assert difference["mean"] - difference["half_width"] == pytest.approx(paired.low)
    assert difference["mean"] + difference["half_width"] == pytest.approx(paired.high)
    text = (out / sweep.TABLE).read_text()
    assert "| better | 4 of 4 | 0.62 ± 0.0" in text
    assert "| +0.085 ± 0.02054 | 0.9 ± 0 | −0.1 ± 0 | 1,234 | 2.5 |" in text
    assert text in capsys.readouterr().out
    assert (out / sweep.FIGURE).read_bytes().startswith(b"\x89PNG")


def test_what_has_finished_is_not_run_again_and_more_can_be_added(tmp_path, script):
    out = tmp_path / "out"
    begun = [script, "--out", str(out), "--arm", "a", "--gain 0"]
    sweep.main([*begun, "--seeds", "1"])
    sweep.main([*begun, "--seeds", "2", "--arm", "b", "--gain 0.2"])
    once = {cell: ["--quiet"] for cell in ("a/seed-0", "a/seed-1", "b/seed-0", "b/seed-1")}
    assert calls(out) == once
    with pytest.raises(InputError, match=r"holds a sweep with arm a \['--gain', '0'\], and now it is"):
        sweep.main([script, "--out", str(out), "--arm", "a", "--gain 1"])
    assert calls(out) == once


def test_a_cell_that_fails_is_shown_and_resumed_and_the_others_go_on(tmp_path, script, capsys):
    out = tmp_path / "out"
    arms = ["--arm", "a", "--gain 0", "--arm", "b", "--gain 0.1 --fails 1"]
    given = [script, "--out", str(out), *arms, "--seeds", "3"]
    assert sweep.main(given) == 1
    said = capsys.readouterr()
    line = "the loss is nan. Lower --learning_rate."
    assert f"b, seed 1: failed with exit code 1: {line} (all of it: " in said.out
    assert said.err == "1 of 6 cells failed: b, seed 1\n"
    found = result(out)
    assert found["failed"] == {"b, seed 1": line}
    assert found["arms"]["b"]["finished"] == [0, 2]
    assert found["arms"]["b"]["metrics"]["loss"]["difference"]["seeds"] == 2
    assert "| b | 2 of 3 |" in (out / sweep.TABLE).read_text()
    assert sweep.main(given) == 1
    assert calls(out)["b/seed-1"] == ["--quiet", "--resume"]
    assert calls(out)["a/seed-1"] == ["--quiet"]


def test_a_file_says_the_same_as_the_command(tmp_path, script):
    arms = ["--arm", "a", "--gain 0", "--arm", "b", "--gain 0.1"]
    assert (
        sweep.main([script, "--seeds", "2", *arms, "--out", str(tmp_path / "told"), "--", "--more", "1"]) == 0
    )
    plan = {
        "script": script,
        "seeds": 2,
        "options": "--more 1",
        "arms": {"a": "--gain 0", "b": {"gain": 0.1}},
    }
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    assert sweep.main(["--file", str(file), "--out", str(tmp_path / "read")]) == 0
    assert result(tmp_path / "read") == result(tmp_path / "told")


def test_what_cannot_be_run_is_refused_in_one_line(tmp_path):
    for given, said in (
        (["nowhere.py", "--arm", "a", ""], r"there is no nowhere\.py, neither here nor in"),
        (["reading.py", "--arm", "a", "", "--arm", "a", ""], "there are two arms a"),
    ):
        with pytest.raises(InputError, match=said):
            sweep.main(["--out", str(tmp_path / "out"), *given])
