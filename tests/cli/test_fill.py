"""``fenchel fill`` and the trainings that it uses, as they are typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.data.test_wikitext2 import written
from tests.train.text.small_texts import write_trec

SMALL = ("--epochs", "1", "--batch-size", "4", "--width", "8", "--heads", "2", "--precision", "float32")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from fenchel.cli import main

    place = tmp_path_factory.mktemp("run")
    data = written(place / "text", 30)
    settings = ("--depth", "2", "--set", "longest=10", "--set", "vocabulary=40", "--set", "masked=places")
    line = (
        "train",
        "--model",
        "cloze",
        "--data",
        str(data),
        "--out",
        str(place / "cloze"),
        *SMALL,
        *settings,
    )
    assert main(list(line)) == 0
    return place / "cloze"


def test_blanks_are_filled_as_lines_and_as_json(command: Command, run: Path, tmp_path: Path) -> None:
    done = command("fill", run, "the [MASK] barks .", "--top", "2")
    assert done.code == 0
    text, blank = done.out.splitlines()
    assert text.endswith(" barks .")
    assert blank.startswith("  blank 1: ")
    assert blank.count(",") == 1
    (tmp_path / "text.txt").write_text("the [MASK] barks .\n[MASK] is [MASK]\n")
    done = command("fill", run, "--text", tmp_path / "text.txt", "--json", "--top", "2")
    answers = json.loads(done.out)
    assert [len(one["blanks"]) for one in answers] == [1, 2]
    assert answers[0]["filled"] == text


def test_what_blanks_attended_to_is_drawn(command: Command, run: Path, tmp_path: Path) -> None:
    done = command("fill", run, "the [MASK] barks .", "--show", "--out", tmp_path / "shown")
    assert done.code == 0
    assert "blanks to words, head 2" in done.out
    assert {path.name for path in (tmp_path / "shown").iterdir()} >= {"attention.html", "attention-1.png"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("the dog barks",), "text 1 is 'the dog barks' and has no [MASK]"),
        ((), "there is no text. Give at least one, or --text FILE"),
        (("[MASK]", "--top", "0"), "top is 0"),
        (("[MASK] " * 11,), "has 11 tokens; expected at most 10"),
    ],
)
def test_what_is_wrong_is_one_line(
    command: Command, run: Path, arguments: tuple[str, ...], said: str
) -> None:
    done = command("fill", run, *arguments)
    assert done.code != 0
    assert said in done.line


def test_a_classifier_begins_with_it(command: Command, run: Path, tmp_path: Path) -> None:
    data = write_trec(tmp_path / "trec")
    line = ("train", "--model", "cloze-classifier", "--data", data, "--epochs", "1", "--batch-size", "8")
    done = command(*line, "--set", f"pretrained={run}", "--out", tmp_path / "a", "--precision", "float32")
    assert done.code == 0
    assert "Test accuracy" in done.out
    assert "pretrained is empty" in command(*line, "--out", tmp_path / "b").line


def test_runs_are_audited_and_swapped(command: Command, run: Path, tmp_path: Path) -> None:
    done = command("audit", run, "--out", tmp_path / "audit", "--baseline", "none")
    assert done.code == 0
    results = json.loads((run / "results.json").read_text())
    done = command("swap", run, "--out", tmp_path / "swap", "--alphas", "0.5", "--bootstrap", "100")
    assert done.code == 0
    from fenchel.swap import SwapReport

    report = SwapReport.load(tmp_path / "swap")
    assert report.arm("model")["score"] is not None
    assert results["test_masked_accuracy"] is not None
