"""``fenchel audit`` and ``fenchel swap``: files, options that change something, folders in use, runs that stop."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.auditing.small_audits import Interrupting, assert_close, files_of
from tests.cli.conftest import SMALL, plain_run, saved
from tests.swap.small_swaps import SCORED

RUNS = ("audit", "swap")


def read(folder: Path, name: str) -> Any:
    return json.loads((folder / f"{name}.json").read_text())


def records(folder: Path) -> list[dict[str, Any]]:
    """The heads of an audit or the conditions of a swap."""
    return read(folder, "heads") if (folder / "heads.json").exists() else read(folder, "swap")["conditions"]


def manifest(folder: Path) -> dict[str, Any]:
    found = folder / "manifest.json"
    return read(folder, "manifest") if found.exists() else read(folder, "swap")["manifest"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory, model, masked):
    """Runs with no option but those that make them small."""
    of = {"audit": model, "swap": masked}
    return {name: plain_run(tmp_path_factory.mktemp(name), name, of[name]) for name in RUNS}


BOTH = {
    "--whole-file": {"whole_file": True},
    "--max-tokens 20": {"max_tokens": 20},
    "--max-length 10": {"max_length": 10},
    "--stride 5": {"stride": 5},
    "--dtype bfloat16": {"dtype": "bfloat16"},
}
CHANGING = {
    "audit": {
        **BOTH,
        "--queries 3": {"queries": 3},
        "--layers 2": {"layers": [2]},
        "--heads '4,1 ,3 - 4'": {"heads": [1, 3, 4]},
        "--space input": {"space": "input"},
        "--alpha 3": {"alpha": 3.0},
    },
    "swap": {
        **BOTH,
        "--alphas '0.7, 1.2'": {"alphas": [0.7, 1.2]},
        "--estimators second_order": {"estimators": ["second_order"]},
        "--per-layer": {"per_layer": True},
        "--per-layer --layers 2": {"layers": [2]},
        "--per-head --layers 1 --heads 2-3": {"per_head": True, "heads": [2, 3]},
        "--mask-probability 0.4": {"mask_probability": 0.4},
        "--bootstrap 200": {"bootstrap": 200},
        "--seed 7": {"seed": 7},
    },
}
CHANGING_LITTLE = {
    "audit": {"--batch-size 5": {"batch_size": 5}, "--seed 7": {"seed": 7}, "--tol 1e-6": {"tol": 1e-6}},
    "swap": {"--batch-size 2": {"batch_size": 2}, "--tol 1e-3": {"tol": 1e-3}},
}


def rows(tables: dict[str, dict[str, Any]]) -> list[tuple[str, str, Any]]:
    return [(name, option, recorded) for name in RUNS for option, recorded in tables[name].items()]


@pytest.mark.parametrize(("name", "option", "recorded"), rows(CHANGING))
def test_each_option_changes_the_numbers(run, tmp_path, plain, name, option, recorded):
    done = run(name, *shlex.split(option))
    assert done.code == 0, done.err
    assert records(tmp_path / "out") != records(plain[name])
    assert recorded.items() <= manifest(tmp_path / "out").items()


@pytest.mark.parametrize(("name", "option", "recorded"), rows(CHANGING_LITTLE))
def test_options_that_change_little_are_recorded(run, tmp_path, plain, name, option, recorded):
    assert run(name, *shlex.split(option)).code == 0
    assert recorded.items() <= manifest(tmp_path / "out").items()
    number, near = {"audit": ("relative_deviation_mean", 1e-2), "swap": ("loss", 1e-3)}[name]
    for ours, theirs in zip(records(tmp_path / "out"), records(plain[name]), strict=True):
        assert ours.get("queries") == theirs.get("queries")
        assert ours[number] == pytest.approx(theirs[number], rel=near)


@pytest.mark.parametrize("name", RUNS)
def test_columns_choose_the_text_and_the_target(command, tmp_path, name):
    translator, table = saved(tmp_path / "model", "marian", head=True), tmp_path / "pairs.tsv"
    pairs = [("w1 w2 w3", "w4 w5", "w6 w7 w8 w9"), ("w9 w2", "w8 w1", "w2")]
    table.write_text("\n".join(map("\t".join, [("text", "en", "de"), *pairs])))
    found = {}
    for columns in ("", "--text-column en", "--text-column en --target-column de"):
        out = tmp_path / str(len(columns))
        options = f"{SMALL[name]} {columns}".split()
        done = command(name, translator, "--text", table, "--out", out, *options)
        assert done.code == 0, done.err
        found[columns] = records(out)
        named = dict(zip(*[iter(columns.replace("--", "").replace("-", "_").split())] * 2, strict=True))
        assert named.items() <= manifest(out).items()
    assert found[""] != found["--text-column en"] != found[columns]
    if name == "audit":
        queries = {record["kind"]: record["queries"] for record in found[columns]}
        assert queries["decoder_self"] == queries["cross"] == 6 + 3 != queries["encoder_self"]


@pytest.mark.parametrize("name", RUNS)
def test_a_folder_with_a_run_asks_what_to_do(run, tmp_path, name):
    out = tmp_path / "out"
    begun = run(name, "--resume")
    assert (begun.code, begun.err) == (0, "")
    file = {"audit": "report.html", "swap": "swap.html"}[name]
    assert {"audit": "Report: {}", "swap": "Page: {}"}[name].format(out / file) in begun.out
    if name == "audit":
        assert manifest(out)["documents"] == 7
    else:
        assert " ".join(read(out, "swap")["finding"].split()) in begun.words
        assert [record["estimator"] for record in records(out)] == ["model", "first_order", "exact"]
    before = files_of(out)
    for options, code, said in (
        ("", 3, "Continue it with --resume"),
        ("--resume", 0, "nothing was measured again"),
        ("--resume --max-length 10", 3, "max length"),
        ("--resume --overwrite", 3, "contradict each other"),
    ):
        done = run(name, *options.split())
        assert done.code == code
        assert said in done.err
        assert files_of(out) == before
    assert run(name, "--max-length", "10", "--overwrite").code == 0
    assert manifest(out)["max_length"] == 10


def test_shards_by_option_and_by_environment(run, tmp_path, monkeypatch):
    first = run("audit", "--shard", "0/2")
    assert first.code == 0
    assert f"fenchel merge {tmp_path / 'out'}" in first.out
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("audit")[:2] == (0, "")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"shard-0-of-2", "shard-1-of-2"}


def test_pairs_are_taken_from_the_columns_that_are_named_or_sampled(run, command, model, masked, tmp_path):
    columns = "sentence_A\tsentence_B\trelatedness_score"
    lines = [f"{k}\t{a}\t{b}\t{score}" for k, (a, b, score) in enumerate(SCORED)]
    (tmp_path / "pairs.tsv").write_text("\n".join([f"pair_ID\t{columns}", *lines]) + "\n")
    (tmp_path / "renamed.tsv").write_text("\n".join(["pair_ID\tone\tother\tlike", *lines]) + "\n")

    def swapped(pairs: str, out: str, *options: str) -> Any:
        given = [*SMALL["swap"].split(), *options]
        return command("swap", masked, "--pairs", tmp_path / pairs, "--out", tmp_path / out, *given)

    plain = swapped("pairs.tsv", "plain")
    assert plain.code == 0, plain.err
    assert read(tmp_path / "plain", "swap")["quality"] == "score_correlation"
    names = ["--first-column", "one", "--second-column", "other", "--score-column", "like"]
    assert swapped("renamed.tsv", "renamed", *names).code == 0
    assert records(tmp_path / "renamed") == records(tmp_path / "plain")
    assert swapped("pairs.tsv", "few", "--max-pairs", "5").code == 0
    assert read(tmp_path / "few", "swap")["units"]["pairs"] == 5
    assert run("swap", "--sample-pairs", "8", of=model).code == 0
    assert {"task": "embedding", "ranked_pairs": 8}.items() <= manifest(tmp_path / "out").items()


@pytest.mark.parametrize(
    ("name", "options"),
    [("audit", []), ("swap", ["--estimators", "none", "--per-head", "--ablations", "zero, preference"])],
)
def test_an_interrupted_run_says_how_to_go_on_and_does(run, tmp_path, plain, monkeypatch, name, options):
    """A signal: tests/cli/test_terminal.py."""
    stops = Interrupting(5 if name == "audit" else 40, KeyboardInterrupt())
    monkeypatch.setattr("fenchel.cli.commands.observer_of_standard_error", lambda *_: stops)
    stopped = run(name, *options, "--checkpoint-seconds", "1000")
    assert stopped.code == 130
    said = f"fenchel: interrupted; .* tokens are saved in .* Continue with: fenchel {name} .* --resume"
    assert re.fullmatch(said, stopped.line)
    monkeypatch.undo()
    done = run(name, *options, "--resume")
    assert done.code == 0, done.err
    if name == "audit":
        assert_close(records(tmp_path / "out"), records(plain[name]))
        return
    assert "With no output in place of one head" in done.words
    ranked = [one["estimator"] for one in read(tmp_path / "out", "swap")["ranking"]]
    assert ranked == ["zero", "preference"]
