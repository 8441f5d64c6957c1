"""``fenchel classify`` and ``fenchel entail``: answers as lines and as JSON, what is shown, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.train.reading.small_readings import compared, read


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    read(folder)
    return folder


@pytest.fixture(scope="module")
def pairs_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pairs")
    compared(folder)
    return folder


def test_sentences_are_classified(command, reader, tmp_path):
    done = command("classify", reader, "who is it ?", "where was the river")
    assert done.code == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert [row[1] for row in rows] == ["who is it ?", "where was the river"]
    assert {part.split()[0] for part in rows[0][0].split(", ")} == {"person", "place", "time"}
    file = tmp_path / "questions.txt"
    file.write_text("who is it ?\nwhere was the river\n")
    answers = json.loads(command("classify", reader, "--text", file, "--json").out)
    assert [one["label"] for one in answers] == [row[0].split()[0] for row in rows]
    assert sum(answers[0]["probabilities"].values()) == pytest.approx(1.0)


def test_the_scores_of_a_training_follow_from_what_is_printed(command, reader, pairs_run, tmp_path):
    from scipy.stats import pearsonr, spearmanr

    from tests.train.reading.small_readings import pair_splits, splits

    accuracy_score = pytest.importorskip("sklearn.metrics").accuracy_score
    asked, file = splits().test, tmp_path / "asked.txt"
    file.write_text("".join(f"{' '.join(words)}\n" for words in asked.words))
    said = [line.split()[0] for line in command("classify", reader, "--text", file).out.splitlines()]
    wanted = json.loads((reader / "results.json").read_text())
    true = [asked.class_names[label] for label in asked.labels]
    assert accuracy_score(true, said) == pytest.approx(wanted["test_accuracy"], abs=1e-9)
    pairs = pair_splits().test
    both = zip(pairs.premises, pairs.hypotheses, strict=True)
    file.write_text("".join(f"{premise}\t{hypothesis}\n" for premise, hypothesis in both))
    answers = json.loads(command("entail", pairs_run, "--text", file, "--json").out)
    wanted = json.loads((pairs_run / "results.json").read_text())
    true = [pairs.class_names[label] for label in pairs.labels]
    assert accuracy_score(true, [one["label"] for one in answers]) == pytest.approx(wanted["test_accuracy"])
    degrees = [one["relatedness"] for one in answers]
    assert pearsonr(degrees, pairs.relatedness)[0] == pytest.approx(wanted["test_pearson"], abs=1e-4)
    assert spearmanr(degrees, pairs.relatedness)[0] == pytest.approx(wanted["test_spearman"], abs=1e-4)


def test_pairs_are_entailed_and_shown(command, pairs_run, tmp_path):
    out = tmp_path / "attention"
    done = command("entail", pairs_run, "A dog sleeps", "No dog sleeps", "--show", "--out", out)
    assert done.code == 0, done.err
    assert "; relatedness " in done.out.splitlines()[0]
    assert "the premise asks the hypothesis, head 1" in done.out
    assert "the hypothesis asks the premise, head 2" in done.out
    assert (out / "attention-1.png").read_bytes().startswith(b"\x89PNG")
    assert "hypothesis asks" in (out / "attention.html").read_text()
    done = command("entail", pairs_run, "A dog sleeps", "No dog sleeps", "--show", "--json", "--out", out)
    (answer,) = json.loads(done.out)
    assert len(answer["attention"]) == 4
    file = tmp_path / "pairs.tsv"
    file.write_text("A dog sleeps\tNo dog sleeps\n")
    (same,) = json.loads(command("entail", pairs_run, "--text", file, "--json").out)
    assert same["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("entail", "RUN", "a dog"), "there is a premise and no hypothesis"),
        (("entail", "RUN"), "there is no pair. Give at least one, or --text FILE"),
        (("classify", "RUN"), "there is no sentence"),
        (("classify", "RUN", ""), "sentence 1 is empty"),
        (("classify", "nowhere", "a"), "nowhere holds no trained model"),
    ],
    ids=str,
)
def test_what_is_missing_is_said(command, reader, pairs_run, arguments, message):
    run = {"classify": reader, "entail": pairs_run}[arguments[0]]
    done = command(*(run if one == "RUN" else one for one in arguments))
    assert done.code == 3
    assert message in done.line


def test_lines_that_are_wrong_are_named(command, reader, pairs_run, tmp_path):
    file = tmp_path / "lines.txt"
    file.write_bytes("who\nMänner\n".encode("latin-1"))
    assert "lines.txt, line 2 is not UTF-8" in command("classify", reader, "--text", file).line
    assert "lines.txt, line 2 is not UTF-8" in command("entail", pairs_run, "--text", file).line
    assert "expected one of the two" in command("classify", reader, "who", "--text", file).line


def test_a_training_by_the_command(command, tmp_path, monkeypatch):
    from tests.data.test_labelled_texts import write_sick, write_sst

    rows = "".join(
        f"{n}\tA dog number {n % 7} barks\tA cat sleeps\t{1 + n % 5}\tNEUTRAL\n" for n in range(20)
    )
    write_sick(tmp_path / "nli_sick", row=rows)
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    common = ("--epochs", 1, "--width", 8, "--batch-size", 4, "--heads", 2, "--precision", "float32")
    out = tmp_path / "pairs"
    done = command(
        "train", "--model", "pairs", "--data", "sick", "--out", out, *common,
        "--preference", "gaussian", "--score", "general", "--estimator", "exact", "--closeness", "entmax15",
        "--set", "comparison=concatenated", "--set", "relatedness=0.2", "--set", "encoder=conv", "--depth", 2,
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "after 1 epoch of 20 pairs" in done.out
    done = command(
        "audit", out, "--out", tmp_path / "audit", "--baseline", "none", "--closeness", "tsallis:1.5"
    )
    assert done.code == 0, done.err
    assert (tmp_path / "audit" / "report.html").is_file()
    lines = b"".join(b"%d a film number %d\n" % (n % 2, n % 3) for n in range(20))
    done = command(
        "train", "--model", "classifier", "--data", write_sst(tmp_path / "sst", train=lines), "--out",
        tmp_path / "sentences", *common, "--set", "pooling=bag", "--set", "encoder=words",
    )  # fmt: skip
    assert done.code == 0, done.err
    done = command("train", "--model", "pairs", "--data", "sick", "--out", out, "--mlp-width", 3)
    assert "--mlp-width is no option of the model 'pairs'" in done.line
    done = command("train", "--model", "pairs", "--data", "sick", "--out", out, "--set", "colour=red")
    assert "expected KEY=VALUE with a KEY of " in done.line
