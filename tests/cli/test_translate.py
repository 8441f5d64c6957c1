"""Translations by a trained translator: from Python, by the command, shown, and what cannot be done."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from fenchel.answering import TrainedRun, Translated, lines_of_texts, translate
from fenchel.errors import InputError
from fenchel.models import Translator
from tests.cli.conftest import Command
from tests.data.test_parallel import SPLITS, written
from tests.train.text.small_texts import classified
from tests.train.translation.small_pairs import pairs, translated

pytest.importorskip("tokenizers")
sacrebleu = pytest.importorskip("sacrebleu")

SENTENCES = list(pairs(12, seed=2).first)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    translated(folder, size=200, epochs=8)
    return folder


def test_a_translator_is_trained_by_the_command(tmp_path, command: Command):
    data = written(tmp_path / "pairs", {**SPLITS, "train": SPLITS["train"] * 4})
    small = (
        "--epochs",
        1,
        "--width",
        8,
        "--batch-size",
        4,
        "--set",
        "subwords=60",
        "--set",
        "direction=de-en",
    )
    asked = ("train", "--model", "translator", "--data", data, "--device", "cpu", *small)
    done = command(*asked, "--out", tmp_path / "run", "--preference", "gaussian", "--score", "dot")
    assert done.code == 0, done.err
    assert re.search(r"Test bleu \d+\.\d{4} after 1 epoch of 12 pairs", done.out)
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in done.out
    assert command("translate", tmp_path / "run", "Ein Hund.").code == 0
    for wrong, said in (
        (("--set", "direction=de-fr"), "direction is 'de-fr'"),
        (("--set", "wings=5"), "expected KEY=VALUE with a KEY of direction, "),
        (("--score", "additive", "--estimator", "exact"), "estimator is 'exact' with the score 'additive'"),
        (("--preference", "position"), "preference is 'position'; expected one of uniform, context"),
        (("--heads", 2), "--heads is no option of the model 'translator'"),
    ):
        assert said in command(*asked, "--out", tmp_path / "wrong", *wrong).line
    (data / "val.de").write_text("Eine Katze.\nZwei.\n")
    said = command(*asked, "--out", tmp_path / "wrong").line
    assert "val.en has 1 lines and" in said
    assert "val.de 2; expected as many" in said


def test_the_test_of_the_training_is_what_it_says(run, tmp_path, command: Command):
    text = tmp_path / "test.en"
    text.write_text("\n".join(SENTENCES) + "\n")
    done = command("translate", run, "--text", text)
    assert done.code == 0
    said = done.out.splitlines()
    score = sacrebleu.corpus_bleu(said, [list(pairs(12, seed=2).second)]).score
    assert score == pytest.approx(json.loads((run / "results.json").read_text())["test_bleu"], abs=1e-9)
    assert said == [one.text for one in translate(run, SENTENCES)]


def test_alone_or_together_and_whatever_the_batch(run, monkeypatch):
    opened = TrainedRun.read(run, tasks=("translation",))
    for beam in (1, 3):
        together = translate(opened, SENTENCES, beam=beam)
        monkeypatch.setattr("fenchel.answering.translating._TOGETHER", 5)
        assert [one.text for one in translate(opened, SENTENCES, beam=beam)] == [one.text for one in together]
        alone = [translate(opened, [sentence], beam=beam)[0] for sentence in SENTENCES]
        assert [one.pieces for one in alone] == [one.pieces for one in together]
        for one, other in zip(alone, together, strict=True):
            assert one.log_probability == pytest.approx(other.log_probability, rel=1e-4)
            assert one.score == pytest.approx(one.log_probability / len(one.pieces))
    greedy, wide = (translate(opened, SENTENCES, beam=beam, length_power=0.0) for beam in (1, 4))
    assert all(b.log_probability >= a.log_probability - 1e-5 for a, b in zip(greedy, wide, strict=True))


def test_what_is_looked_at_is_shown(run, tmp_path, command: Command):
    (one,) = translate(run, SENTENCES[0], show=True)
    assert isinstance(one, Translated)
    (drawn,) = one.maps
    assert drawn.queries == one.pieces
    assert drawn.keys[-1] == "(end)"
    assert "".join(drawn.keys[:-1]).replace("▁", "") == SENTENCES[0].replace(" ", "")
    for weights in (drawn.first_order, drawn.exact):
        torch.testing.assert_close(weights.sum(1), torch.ones(len(drawn.queries), dtype=torch.float64))
    assert bool(drawn.solved.all())
    done = command("translate", run, SENTENCES[0], "--beam", 2, "--show", "--out", tmp_path / "shown")
    assert done.code == 0
    assert "the translation and its source" in done.out
    assert SENTENCES[0].split()[0] in (tmp_path / "shown" / "attention.html").read_text()
    assert (tmp_path / "shown" / "attention-1.png").read_bytes().startswith(b"\x89PNG")
    (written,) = json.loads(
        command("translate", run, SENTENCES[0], "--json", "--show", "--out", tmp_path / "shown").out
    )
    assert written["source"] == SENTENCES[0]
    assert len(written["attention"][0]["first_order"]) == len(written["pieces"])
    plain = json.loads(command("translate", run, *SENTENCES[:2], "--json").out)
    assert [set(one) for one in plain] == [
        {"source", "translation", "pieces", "log_probability", "score", "ended", "unknown_pieces"}
    ] * 2


def test_what_is_not_known_is_counted(run, command: Command):
    done = command("translate", run, "red dog Ω", "red dog")
    assert done.code == 0
    assert "note: 1 of 2 sentences have signs that the translator does not know" in done.err
    assert [one.unknown for one in translate(run, ["red dog Ω", "red dog"])] == [1, 0]


def test_translations_that_do_not_end_are_counted(run):
    opened = TrainedRun.read(run, tasks=("translation",))
    assert isinstance(opened.model, Translator)
    opened.model.longest = 2
    (one,) = translate(opened, ["red dog"])
    assert not one.ended
    assert len(one.pieces) == 2


def test_what_cannot_be_translated_is_named(run, tmp_path, command: Command):
    assert "sentence 2 is empty" in command("translate", run, "red dog", " ").line
    assert "there is no sentence" in command("translate", run).line
    long = " ".join(["red dog"] * 30)
    said = command("translate", run, "red dog", long).line
    assert "sentence 2 has" in said
    assert "takes at most 20. Cut it" in said
    text = tmp_path / "text.en"
    text.write_bytes("red dog\nr\xe9d".encode("latin-1"))
    assert "text.en, line 2 is not UTF-8" in command("translate", run, "--text", text).line
    text.write_text("red dog\n\n")
    assert "text.en, line 2 is empty" in command("translate", run, "--text", text).line
    assert "expected one of the two" in command("translate", run, "red dog", "--text", text).line
    assert "sentence 1 has [PAD]" in command("translate", run, "red [PAD] dog").line
    assert "beam is 0" in command("translate", run, "red dog", "--beam", 0).line
    assert "length power is -1" in command("translate", run, "red dog", "--length-power", -1).line
    assert "holds no trained model" in command("translate", tmp_path, "red dog").line
    classified(tmp_path / "text", epochs=1)
    assert "expected one of translator" in command("translate", tmp_path / "text", "red dog").line


def test_without_attention_there_is_nothing_to_show(tmp_path, command: Command):
    translated(tmp_path / "run", attention="none", epochs=1, vocabulary="joint")
    assert command("translate", tmp_path / "run", "red dog").code == 0
    assert "attention 'none'" in command("translate", tmp_path / "run", "red dog", "--show").line


@pytest.mark.parametrize("name", ["tokenizer.json", "target_tokenizer.json"])
def test_a_damaged_tokenizer_is_named(tmp_path, command: Command, name):
    translated(tmp_path / "run", epochs=1)
    (tmp_path / "run" / name).write_text("{}")
    assert f"{name} is not what the training wrote" in command("translate", tmp_path / "run", "red dog").line
    (tmp_path / "run" / name).unlink()
    assert f"{name} cannot be read" in command("translate", tmp_path / "run", "red dog").line


def test_lines_know_where_they_are_from(run):
    (line,) = lines_of_texts(["red dog"], what="caption")
    assert translate(run, [line])[0].source == "red dog"
    with pytest.raises(InputError, match="there is no sentence"):
        translate(run, [])
