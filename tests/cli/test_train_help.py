"""The help of ``fenchel train`` says of each model which options it takes and what they are by default."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fenchel.train.registry import TASKS, task_of_model
from fenchel.train.settings import settings_of

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
OF_THE_PAPERS = ("translator", "classifier", "pairs", "cloze", "captioner")
MODELS = [model for task in TASKS.values() for model in task.models]


def flags_in(text: str) -> set[str]:
    return set(re.findall(r"^ {2}--([a-z-]+)", text, flags=re.MULTILINE))


@pytest.mark.parametrize("model", MODELS)
def test_the_help_of_a_model_has_its_options_and_no_others(command, model):
    done = command("train", "--model", model, "--help")
    assert (done.code, done.err) == (0, "")
    everything = flags_in(command("train", "--help").out)
    known = settings_of(task_of_model(model).options_type, model=model)
    flags = flags_in(done.out.split("Options of the model")[1].split("--set for")[0])
    of_the_run = {"data", "out", "model", "set", "device", "resume", "overwrite", "checkpoint-seconds"}
    own = {name for name in known if name.replace("_", "-") in everything}
    assert flags == of_the_run | {name.replace("_", "-") for name in own}
    words = " ".join(done.out.split())
    for name, setting in known.items():
        if name not in ("data", "model"):
            assert " ".join(setting.help.split()) in words
        if name not in own | {"data", "model"}:
            assert f"{name}=... " in words
    assert re.findall("--set for (.+):", done.out) in ([], [model])


@pytest.mark.parametrize("model", OF_THE_PAPERS)
def test_defaults_are_what_a_training_is_given_that_says_nothing(model):
    kind = task_of_model(model).options_type
    resolved = kind(data="somewhere").resolved()
    known = settings_of(kind, model=model)
    assert {name: one.default for name, one in known.items() if name != "data"} == {
        name: value for name, value in resolved.to_json().items() if name != "data"
    }


def test_a_number_by_hand(command):
    words = " ".join(command("train", "--model", "translator", "--help").out.split())
    assert "--learning-rate X The largest one. [default: 0.002]" in words
    assert "--score NAME dot, general or additive; None is general. [default: general]" in words
    assert re.search(r"beam=\.\.\. Width of the beam .* \[default: 5\]", words)
    assert command("train", "--help", "--model", "translator") == command("train", "--model=translator", "-h")


def test_the_help_of_all_has_the_defaults_of_each_and_every_set(command):
    words = " ".join(command("train", "--help").out.split())
    assert (
        "translator estimator first_order, preference uniform, score general, epochs 20, batch size 64"
        in words
    )
    for model in OF_THE_PAPERS:
        assert f"--set for {model}:" in words
    assert "--set for attention-pooling" not in words


def test_a_model_that_there_is_not_ends_it(command):
    done = command("train", "--model", "nonsense", "--help")
    assert done.code == 3
    assert "model is 'nonsense'; expected one of captioner, classifier" in done.err
    assert done.out == ""


def test_the_page_has_the_defaults_of_each_model():
    table = re.search(r"^\| Model \|.*(?:\n\|.*)+", PAGE, re.MULTILINE)
    assert table is not None
    head, *rows = table[0].splitlines()
    names = [cell.strip(" `-").replace("-", "_") for cell in head.split("|")[2:-1]]
    assert len(names) == 11
    cells = {row.split("`")[1]: [cell.strip() for cell in row.split("|")[2:-1]] for row in rows[1:]}
    assert set(cells) == set(MODELS)
    for model, found in cells.items():
        known = settings_of(task_of_model(model).options_type, model=model)
        assert found == [known[name].written_default if name in known else "" for name in names]
