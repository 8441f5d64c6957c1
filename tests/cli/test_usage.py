"""Wrong usage ends with 2, help says what there is, and the page in docs says the same."""

import os
import re
import shutil
from pathlib import Path

import pytest

from tests.auditing.small_audits import some_texts
from website.pages import with_tables

PAGE = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text()
COMMANDS = ("audit", "merge", "report", "compare", "swap", "reproduce", "catalogue")


def options_on_page(command: str) -> dict[str, str]:
    """Options in the table of a command's section, with what stands where their value goes."""
    table = with_tables(PAGE).split(f"## fenchel {command} ")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `(--[a-z-]+)(?: ([^`]*))?` \|", table, flags=re.MULTILINE)
    return {name: value.replace("\\|", "|") for name, value in rows}


def options_in_help(text: str) -> dict[str, str]:
    found = re.findall(r"^ {2}(?:-h, )?(--[a-z-]+)(?: (\S+))?", text, flags=re.MULTILINE)
    return {name: value for name, value in found if name != "--help"}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_says_every_option_of_the_page_and_has_an_example(command, name):
    done = command(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert command(name, "-h") == done
    shown, listed, words = options_in_help(done.out), options_on_page(name), " ".join(done.out.split())
    assert set(listed) == set(shown)
    for option, value in shown.items():
        assert value.startswith("<") or listed[option] == value
        assert re.search(rf"{option}( \S+)? [A-Z]", words), option
    assert f"Example: fenchel {'audit' if name in ('merge', 'compare') else name} " in words
    assert name in command("--help").out


AUDIT = ["audit", "demo", "--text", "t", "--out", "o"]
USAGE, INPUT, MODEL, OUTPUT = 2, 3, 4, 6


def test_wrong_usage(command):
    for arguments, message, *code in (
        *(([name, "demo", "--out", "o"], "nothing to read: give texts", INPUT) for name in ("audit", "swap")),
        (["audit", "demo", "--text", "t"], "Missing option '--out'"),
        ([*AUDIT, "--nonsense"], "No such option: --nonsense"),
        ([*AUDIT, "--space", "outer"], "'--space': 'outer' is not one of"),
        (["swap", *AUDIT[1:], "--alphas", "much"], "'much' is not a list of numbers"),
        *(
            ([*AUDIT, "--layers", text], "is not a list of numbers and ranges, such as 1,3-5")
            for text in ("", ",", "1,", "a", "-3", "3-", "4-2", "1.5", "1;2")
        ),
        (["merge", "a", "b"], "say with --out where to write"),
        (["compare", "a"], "expected two or more", INPUT),
        (["audti"], "No such command 'audti'. Did you mean 'audit'? Try 'fenchel -h'"),
    ):
        done = command(*arguments)
        assert done.code == (*code, USAGE)[0]
        assert message in done.err
        assert "Traceback" not in done.err
        assert done.out == ""


HUGE = "9" * 5000
HEAD = "sentence_A\tsentence_B\trelatedness_score\n"


@pytest.fixture
def refused(command, model, tmp_path):
    """Runs a command with something wrong; gives its line, after checking what holds for every wrong line."""
    text = tmp_path / "text.txt"
    text.write_text("\n".join(some_texts()))
    out = tmp_path / "out"
    right = {
        "audit": [model, "--text", text, "--max-length", "12"],
        "swap": [model, "--text", text, "--alphas", "0.8", "--bootstrap", "100"],
    }

    def run(code: int, name: str, *wrong: object, instead_of: object = None) -> str:
        arguments = [name, *right.get(name, []), *([] if "--out" in wrong else ["--out", out]), *wrong]
        if instead_of is not None:
            arguments = [name, *wrong, *right[name][1:], "--out", out]
        before = sorted(tmp_path.rglob("*"))
        done = command(*arguments)
        assert done.code == code, done.err
        assert done.line.startswith("fenchel: error: ")
        assert len(done.line) < 1200
        assert done.out == ""
        assert sorted(tmp_path.rglob("*")) == before
        return done.line

    return run


# What else an option cannot be: tests/test_arguments.py; a file: tests/io/test_documents.py.
REFUSED: list[tuple[str, int, tuple[str, ...], str]] = [
    ("swap", INPUT, ("--device", ""), "device is ''"),
    *(("audit", INPUT, ("--out", one), "out is ") for one in ("", "\udcff", "x" * 300, "~nobody-here/x")),
    *((name, OUTPUT, ("--out", "FILE"), "file where a folder is expected") for name in ("audit", "swap")),
    ("swap", INPUT, ("--text", "FILE"), "is not UTF-8"),
    *(("audit", INPUT, ("--text", one), "") for one in ("PIPE", "LOOP", "/dev/zero", "~nobody-here/a.txt")),
    *(("audit", USAGE, ("--layers", one), "--layers") for one in ("1-9999999999", HUGE, f"1-{HUGE}")),
    ("audit", INPUT, ("--batch-size", str(2**70)), "batch size"),
    *(("swap", USAGE, ("--bootstrap", one), "--bootstrap") for one in ("1e20", "", HUGE)),
    ("audit", USAGE, ("--queries", "nan"), "--queries"),
    # In Python the budget is a number of bytes up to 2**50.
    ("audit", INPUT, ("--memory-budget", "0"), "memory budget is 0; expected a whole number of MB from 1 to"),
    ("audit", INPUT, ("--memory-budget", str(2**30 + 1)), "expected a whole number of MB from 1 to"),
]


@pytest.mark.parametrize(("name", "code", "options", "said"), REFUSED, ids=lambda value: ascii(value)[:30])
def test_what_an_option_cannot_be(refused, tmp_path, name, code, options, said):
    places = {one: tmp_path / f"{one}.txt" for one in ("FILE", "PIPE", "LOOP")}
    places["FILE"].write_bytes(b"\xff\xfew\x001\x00")
    os.mkfifo(places["PIPE"])
    places["LOOP"].symlink_to(places["LOOP"])
    line = refused(code, name, *(places.get(one, one) for one in options))
    assert said in line
    assert code != USAGE or line.endswith(f"Try 'fenchel {name} -h' for help.")


def test_a_tokenizer_with_more_words_than_the_model(refused, model, tmp_path):
    from transformers import AutoTokenizer

    folder = shutil.copytree(model, tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["new1", "new2", "new3"])
    tokenizer.save_pretrained(folder)
    (tmp_path / "text.txt").write_text("new1 w1\nnew2 w3\nnew3")
    for name in ("audit", "swap"):
        line = refused(INPUT, name, folder, instead_of=model)
        assert "the tokenizer maps 'new1' to id 64, but the model has ids 0 to 63" in line


def test_names_that_no_model_can_have(refused):
    for name in ("", "x" * 5000, "\udcff", "~nobody-here/x", "a/b/c", "./no/such/folder"):
        refused(MODEL, "audit", name, instead_of="the model")
