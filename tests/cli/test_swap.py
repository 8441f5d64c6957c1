"""``fenchel swap``: every option changes something, bad input is one line, and an interrupted one says how to go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.auditing.small_audits import files_of
from tests.cli.conftest import plain_run
from tests.swap.small_swaps import SCORED, language_model, tokenizer_of

SMALL = (
    "--max-length", "12", "--batch-size", "4", "--device", "cpu", "--bootstrap", "100", "--alphas", "0.8",
    "--estimators", "exact",
)  # fmt: skip


def saved(folder: Path, family: str) -> Path:
    language_model(family, dtype=torch.float32).save_pretrained(folder)
    tokenizer_of(family).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("masked"), "bert")


@pytest.fixture(scope="module")
def seq2seq(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("seq2seq"), "marian")


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    path = tmp_path / "pairs.tsv"
    rows = [f"{k}\t{a}\t{b}\t{score}" for k, (a, b, score) in enumerate(SCORED)]
    path.write_text("\n".join(["pair_ID\tsentence_A\tsentence_B\trelatedness_score", *rows]) + "\n")
    return path


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "swap.json").read_text())


def test_a_swap_writes_its_files_and_says_what_it_found(command, masked, text, tmp_path):
    out = tmp_path / "out"
    done = command("swap", masked, "--text", text, "--out", out, *SMALL)
    assert done.code == 0, done.err
    assert done.err == ""
    assert {"swap.json", "swap.csv", "swap.html"} <= set(files_of(out))
    assert f"Page: {out / 'swap.html'}" in done.out
    saved_results = results(out)
    assert " ".join(saved_results["finding"].split()) in " ".join(done.out.split())
    assert saved_results["manifest"]["model_class"] == "BertForMaskedLM"
    assert saved_results["manifest"]["revision"].startswith("sha256:")
    assert [record["estimator"] for record in saved_results["arms"]] == ["model", "first_order", "exact"]


@pytest.fixture(scope="module")
def plain(tmp_path_factory, masked):
    """A swap with no option but those that make it small."""
    return plain_run(tmp_path_factory.mktemp("plain"), "swap", masked, *SMALL)


@pytest.mark.parametrize(
    ("option", "in_manifest"),
    [
        (["--whole-file"], {"whole_file": True}),
        (["--max-tokens", "20"], {"max_tokens": 20}),
        (["--max-length", "10"], {"max_length": 10}),
        (["--stride", "5"], {"stride": 5}),
        (["--alphas", "0.7, 1.2"], {"alphas": [0.7, 1.2]}),
        (["--estimators", "second_order"], {"estimators": ["second_order"]}),
        (["--per-layer"], {"per_layer": True}),
        (["--per-layer", "--layers", "2"], {"layers": [2]}),
        (["--per-head", "--layers", "1", "--heads", "2-3"], {"per_head": True, "heads": [2, 3]}),
        (["--mask-probability", "0.4"], {"mask_probability": 0.4}),
        (["--bootstrap", "200"], {"bootstrap": 200}),
        (["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
        (["--seed", "7"], {"seed": 7}),
    ],
)
def test_each_option_changes_the_results(command, masked, text, tmp_path, plain, option, in_manifest):
    done = command("swap", masked, "--text", text, "--out", tmp_path / "out", *SMALL, *option)
    assert done.code == 0, done.err
    found = results(tmp_path / "out")
    assert found["arms"] != results(plain)["arms"]
    assert {key: found["manifest"][key] for key in in_manifest} == in_manifest


@pytest.mark.parametrize(
    ("option", "in_manifest"),
    [(["--batch-size", "2"], {"batch_size": 2}), (["--tol", "1e-3"], {"tol": 1e-3})],
)
def test_options_that_change_little_are_recorded(command, masked, text, tmp_path, plain, option, in_manifest):
    assert command("swap", masked, "--text", text, "--out", tmp_path / "out", *SMALL, *option).code == 0
    found = results(tmp_path / "out")
    assert {key: found["manifest"][key] for key in in_manifest} == in_manifest
    for ours, theirs in zip(found["arms"], results(plain)["arms"], strict=True):
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)


def test_pairs_are_taken_from_the_columns_that_are_named(command, masked, pairs, tmp_path):
    plain = command("swap", masked, "--pairs", pairs, "--out", tmp_path / "plain", *SMALL)
    assert plain.code == 0, plain.err
    assert results(tmp_path / "plain")["quality"] == "score_correlation"
    renamed = tmp_path / "renamed.tsv"
    renamed.write_text(
        pairs.read_text().replace("sentence_A\tsentence_B\trelatedness_score", "one\tother\tlike")
    )
    missing = command("swap", masked, "--pairs", renamed, "--out", tmp_path / "renamed", *SMALL)
    assert missing.code == 3
    assert (
        "has no column 'sentence_A'; its first line names 'pair_ID', 'one', 'other', 'like'" in missing.line
    )
    names = ["--first-column", "one", "--second-column", "other", "--score-column", "like"]
    assert (
        command("swap", masked, "--pairs", renamed, "--out", tmp_path / "renamed", *SMALL, *names).code == 0
    )
    assert results(tmp_path / "renamed")["arms"] == results(tmp_path / "plain")["arms"]
    few = command("swap", masked, "--pairs", pairs, "--out", tmp_path / "few", *SMALL, "--max-pairs", "5")
    assert few.code == 0
    assert results(tmp_path / "few")["units"]["pairs"] == 5


def test_similarities_of_texts_are_a_sample(command, model, text, tmp_path):
    for name, options in {"all": [], "some": ["--sample-pairs", "8"]}.items():
        done = command("swap", model, "--text", text, "--out", tmp_path / name, *SMALL, *options)
        assert done.code == 0, done.err
    assert results(tmp_path / "all")["manifest"]["task"] == "embedding"
    assert results(tmp_path / "all")["manifest"]["ranked_pairs"] == 21
    assert results(tmp_path / "some")["manifest"]["ranked_pairs"] == 8


def test_columns_choose_the_text_and_the_target(command, seq2seq, tmp_path):
    rows = [
        {"text": "w1 w2 w3", "en": "w4 w5", "de": "w6 w7 w8"},
        {"text": "w9 w2", "en": "w8 w1", "de": "w2"},
    ]
    table = tmp_path / "pairs.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    losses = {}
    columns = {
        "text": [],
        "en": ["--text-column", "en"],
        "both": ["--text-column", "en", "--target-column", "de"],
    }
    for name, options in columns.items():
        done = command("swap", seq2seq, "--text", table, "--out", tmp_path / name, *SMALL, *options)
        assert done.code == 0, done.err
        losses[name] = results(tmp_path / name)["arms"][0]["loss"]
    assert len(set(losses.values())) == 3


def test_a_folder_with_a_swap_asks_what_to_do(command, masked, text, tmp_path):
    arguments = ["swap", masked, "--text", text, "--out", tmp_path / "out", *SMALL]
    assert command(*arguments).code == 0
    before = files_of(tmp_path / "out")
    again = command(*arguments)
    assert again.code == 3
    assert "--resume" in again.line
    assert "--overwrite" in again.line
    assert command(*arguments, "--resume").code == 0
    assert files_of(tmp_path / "out") == before
    assert command(*arguments, "--seed", "3", "--overwrite").code == 0
    assert results(tmp_path / "out")["manifest"]["seed"] == 3


def test_an_interrupted_swap_says_how_to_go_on(command, masked, text, tmp_path, monkeypatch):
    from tests.auditing.small_audits import Interrupting

    monkeypatch.setattr(
        "fenchel.cli.terminal.observer_of_standard_error", lambda doing: Interrupting(5, KeyboardInterrupt())
    )
    done = command(
        "swap", masked, "--text", text, "--out", tmp_path / "out", *SMALL, "--checkpoint-seconds", "1000"
    )
    assert done.code == 130
    assert "tokens are saved in" in done.line
    assert done.line.endswith("--resume")
    monkeypatch.undo()
    finished = command("swap", masked, "--text", text, "--out", tmp_path / "out", *SMALL, "--resume")
    assert finished.code == 0, finished.err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--estimators", "third_order"], 3, "names 'third_order'"),
        (["--alphas", "0"], 3, "alphas holds 0"),
        (["--alphas", "much"], 2, "'much' is not a list of numbers"),
        (["--layers", "1"], 3, "Add --per-layer or --per-head"),
        (["--per-layer", "--layers", "9"], 3, "layers [9] do not exist"),
        (["--per-head", "--heads", "9"], 3, "heads [9] do not exist"),
        (["--mask-probability", "2"], 3, "mask probability is 2"),
        (["--bootstrap", "1"], 3, "bootstrap is 1"),
        (["--tol", "0"], 3, "tol is 0"),
        (["--max-pairs", "5"], 3, "no scored pairs were given"),
        (["--first-column", "one"], 3, "no scored pairs were given"),
        (["--max-length", "2"], 3, "max length 2 leaves no room"),
        (["--revision", "main"], 3, "revision 'main'"),
        (["--device", "nowhere"], 3, "device is 'nowhere'"),
    ],
)
def test_bad_options(command, masked, text, tmp_path, options, code, message):
    done = command("swap", masked, "--text", text, "--out", tmp_path / "out", *SMALL, *options)
    assert done.code == code
    assert message in done.err
    assert code == 2 or done.line.startswith("fenchel: error: ")
    assert not (tmp_path / "out" / "swap.json").exists()


def test_nothing_to_read_and_an_unknown_model(command, masked, text, tmp_path):
    nothing = command("swap", masked, "--out", tmp_path / "out", *SMALL)
    assert nothing.code == 2
    assert "Missing option '--text', '--pairs', '--images' or '--loader'" in nothing.err
    unknown = command("swap", "./no/such/folder", "--text", text, "--out", tmp_path / "out", *SMALL)
    assert unknown.code == 4
    assert "no model './no/such/folder'" in unknown.line


def test_a_head_without_its_weights_is_an_error(command, text, tmp_path):
    from safetensors.torch import load_file, save_file

    folder = saved(tmp_path / "untied", "gpt2")
    weights = load_file(folder / "model.safetensors")
    assert not any("lm_head" in name for name in weights), "tied weights are saved once"
    tied = command("swap", folder, "--text", text, "--out", tmp_path / "tied", *SMALL)
    assert tied.code == 0, tied.err
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done = command("swap", folder, "--text", text, "--out", tmp_path / "out", *SMALL)
    assert done.code == 4
    assert "lack 1 parameters of GPT2LMHeadModel (such as 'lm_head.weight')" in done.line


def test_heads_are_ablated_alone(command, masked, text, tmp_path):
    small = [*SMALL[:-1], "none", "--per-head", "--ablations", "zero, preference"]
    done = command("swap", masked, "--text", text, "--out", tmp_path / "out", *small)
    assert done.code == 0, done.err
    assert "With no output in place of one head" in " ".join(done.out.split())
    saved_results = results(tmp_path / "out")
    assert [one["estimator"] for one in saved_results["ranking"]] == ["zero", "preference"]
    again = command("swap", masked, "--text", text, "--out", tmp_path / "out", *small, "--resume")
    assert again.code == 0, again.err
