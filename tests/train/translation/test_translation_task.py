"""Translators: what is trained, validated and tested on, what BLEU is, and that nothing but the options counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fenchel.data import Subwords
from fenchel.errors import InputError
from fenchel.models import Translator
from fenchel.train import TrainResult, TranslationOptions, load_model, train
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.evaluation import Evaluation
from fenchel.train.translation import Translation
from fenchel.train.translation.cross_entropy import smoothed_cross_entropy
from fenchel.train.workers import Workers
from tests.train.small_trainings import weights
from tests.train.translation.small_pairs import corpus, pairs, translated, translation_options

pytest.importorskip("tokenizers")
sacrebleu = pytest.importorskip("sacrebleu")

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


def task(rank: int = 0, count: int = 1, *, size: int = 60, **changes: Any) -> Translation:
    return Translation(translation_options(**changes).resolved(), corpus(size), Workers(rank, count, CPU))


def test_it_learns_and_bleu_is_sacrebleus_of_what_is_printed(tmp_path):
    result = translated(tmp_path, size=200, epochs=12)
    model = load_model(tmp_path)
    assert isinstance(model, Translator)
    source, target = (
        Subwords((tmp_path / name).read_text()) for name in ("tokenizer.json", "target_tokenizer.json")
    )
    test = pairs(12, seed=2)
    rows = [[*numbers, model.END] for numbers in source.encoded(test.first)]
    said = [target.decoded(one.words) for one in model.translated(Subwords.padded(rows))]
    score = sacrebleu.corpus_bleu(said, [list(test.second)])
    assert result.headline == pytest.approx(score.score, abs=1e-9)
    assert result.headline is not None
    assert result.headline > 80
    written = json.loads((tmp_path / "results.json").read_text())
    assert (written["task"], written["test_bleu"]) == ("translation", result.headline)
    wide = [target.decoded(one.words) for one in model.translated(Subwords.padded(rows), beam=5)]
    of_beam = sacrebleu.corpus_bleu(wide, [list(test.second)])
    assert written["test_beam_bleu"] == pytest.approx(of_beam.score, abs=1e-9)
    assert "beam BLEU the same with a beam of 5." in written["notes"][0]
    assert "validation_beam_bleu" not in result.epochs[-1]
    assert written["best_validation_bleu"] == max(one["validation_bleu"] for one in result.epochs)
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:" in written["notes"][0]
    assert written["data"]["train_pairs"] == 200
    assert (written["model"]["source_language"], written["model"]["target_language"]) == ("en", "de")
    assert [epoch["test_bleu"] is not None for epoch in result.epochs] == [False] * 11 + [True]


def test_a_beam_of_one_leaves_the_second_bleu_out(tmp_path):
    result = translated(tmp_path, epochs=1, beam=1)
    assert result.epochs[-1]["test_beam_bleu"] is None
    assert "beam" not in result.description["notes"][0]
    assert TrainResult.read(tmp_path) == result


def test_the_other_direction_and_a_joint_vocabulary(tmp_path):
    result = translated(tmp_path, direction="de-en", vocabulary="joint", test="test_2017_flickr", epochs=1)
    assert not (tmp_path / "target_tokenizer.json").exists()
    assert result.description["data"]["test_pairs"] == 9
    assert result.description["model"]["source_language"] == "de"
    made = task(direction="de-en", vocabulary="joint")
    assert made.tokenizers[0] is made.tokenizers[1]
    batch = next(made.examples("test"))
    assert set(batch.references) == set(pairs(12, seed=2).first)


def test_the_loss_is_a_words_and_every_process_takes_its_share():
    alone = task(dropout=0.0)
    torch.manual_seed(0)
    model = alone.model()
    shares = [task(rank, 2, dropout=0.0) for rank in range(2)]
    for _, whole, *parts in zip(
        range(3), alone.batches(1, 2), *(one.batches(1, 2) for one in shares), strict=False
    ):
        assert [part.count for part in parts] == [4, 4]
        assert sorted(whole.references) == sorted(parts[0].references + parts[1].references)
        ours = alone.loss(alone.predicted(model, whole), whole)
        theirs = [one.loss(one.predicted(model, part), part) for one, part in zip(shares, parts, strict=True)]
        torch.testing.assert_close(ours.mean, (theirs[0].mean + theirs[1].mean) / 2)
        added = sum(loss.sums["loss"] for loss in theirs) / 2  # each mean is twice its share of the whole's
        torch.testing.assert_close(ours.sums["loss"], 2 * added)
        labels = whole.target[:, 1:].flatten()
        torch_has = torch.nn.functional.cross_entropy(
            model(**alone.inputs(whole)).flatten(0, 1), labels, ignore_index=0, label_smoothing=0.1
        )
        torch.testing.assert_close(ours.mean, torch_has)


def test_an_epoch_has_every_pair_once_and_neighbours_are_as_long():
    made = task(size=64)
    batches = list(made.batches(0, 0))
    assert len(batches) == made.steps_per_epoch == 8
    assert sorted(one for batch in batches for one in batch.references) == sorted(pairs(64).second)
    again = [batch.references for batch in task(size=64).batches(0, 3)]
    assert again == [batch.references for batch in batches[3:]]
    assert again != [batch.references for batch in made.batches(1, 3)]
    lengths = [(batch.target != 0).sum(1) for batch in batches]
    assert sum(int(one.max() - one.min()) for one in lengths) < 3 * len(batches)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_shares_and_batches_of_an_evaluation_add_up(split, monkeypatch):
    alone = task()
    torch.manual_seed(0)
    model = alone.model()
    whole = Evaluation(alone)(model, split)
    monkeypatch.setattr("fenchel.train.translation.task._EVALUATED", 4)
    small = Evaluation(alone)(model, split)
    assert small["bleu"] == whole["bleu"]
    assert small["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    sums: dict[str, float] = dict.fromkeys(Translation.summed, 0.0)
    for rank in range(3):
        share = task(rank, 3, batch_size=9)
        model.eval()
        with torch.no_grad():
            for batch in share.examples(split):
                for name, value in share.examined(model, batch, split).items():
                    sums[name] += float(value)
    assert Translation.evaluated(sums, 0)["bleu"] == whole["bleu"]


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("classes", [7, 100_000])
def test_cross_entropy_is_torchs(smoothing, classes):
    generator = torch.Generator().manual_seed(0)
    scores = 30 * torch.randn(9, classes, generator=generator, dtype=torch.float64)
    labels = torch.tensor([3, 0, 1, 6, 0, 2, 5, 5, 4])
    scores.requires_grad_()
    ours, plain = smoothed_cross_entropy(scores, labels, smoothing=smoothing, divisor=4.0)
    options: dict[str, Any] = {"ignore_index": 0, "reduction": "sum"}
    theirs = torch.nn.functional.cross_entropy(scores, labels, label_smoothing=smoothing, **options) / 4
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(plain, torch.nn.functional.cross_entropy(scores, labels, **options))
    assert not plain.requires_grad
    for factor in (1.0, 2.5):
        mine = torch.autograd.grad(factor * ours, scores, retain_graph=True)[0]
        torch.testing.assert_close(mine, factor * torch.autograd.grad(theirs, scores, retain_graph=True)[0])


def test_long_pairs_are_left_out_and_counted(tmp_path):
    result = translated(tmp_path, longest=5, epochs=1, subwords=60)
    left = 60 - result.description["data"]["train_pairs"]
    assert 0 < left < 60
    assert result.description["notes"][1].startswith(f"{left} pairs with a sentence of more than 5 pieces")
    with pytest.raises(InputError, match="0 pairs of at most 1 pieces to train on"):
        task(longest=1)


KILLED = """
import os, signal, sys, torch
from pathlib import Path
from tests.train.small_trainings import Recorder
from tests.train.translation.small_pairs import translated
torch.set_num_threads(1)
kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
translated(Path(sys.argv[1]), query=sys.argv[2], checkpoint_seconds=0, observer=Recorder(9, kill))
"""


@pytest.mark.parametrize("query", ["paper", "luong"])
def test_a_killed_training_ends_with_the_same_weights_bit_for_bit(tmp_path, query):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(killed), query],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert 0 < Checkpoint.read(killed).state.step < 14
    again = translated(killed, query=query, resume=True)
    result = translated(whole, query=query)
    torch.set_num_threads(threads)
    ours, theirs = weights(killed), weights(whole)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert again.headline == result.headline
    with pytest.raises(InputError, match="query"):
        translated(killed, query="bahdanau", resume=True)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"model": "transformer"}, "model is 'transformer'; expected one of translator"),
        ({"query": "keys"}, "query is 'keys'; expected one of paper, bahdanau, luong"),
        ({"score": "additive", "estimator": "exact"}, "estimator is 'exact' with the score 'additive'"),
        ({"attention": "none", "score": "dot"}, "score is 'dot' with attention 'none'"),
        ({"attention": "none", "alpha": 2.0}, "alpha is 2.0 with attention 'none'"),
        ({"attention": "none", "closeness": "sparsemax"}, "closeness is 'tsallis:2' with attention 'none'"),
        ({"place": "predicted"}, "place is 'predicted' without the preference 'gaussian'"),
        ({"spread": 2.0, "preference": "relative"}, "spread is 2.0 without the preference 'gaussian'"),
        ({"preference": "position"}, "preference is 'position'"),
        ({"closeness": "near"}, "closeness is 'near'; expected tsallis:ORDER"),
        ({"width": 15}, "width is 15; two directions share it"),
        ({"subwords": 3}, "subwords is 3"),
        ({"vocabulary": "both"}, "vocabulary is 'both'"),
        ({"direction": ""}, "direction is ''"),
    ],
)
def test_wrong_options_are_named(wrong, said):
    with pytest.raises(InputError, match=said):
        translation_options(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"direction": "en-fr"}, "direction is 'en-fr'"),
        ({"test": "test_2018"}, "test is 'test_2018', and small has no such"),
        ({"train_sentences": 61}, "61 pairs to train on were asked for and there are 60"),
    ],
)
def test_what_the_data_have_not_is_named(wrong, said):
    with pytest.raises(InputError, match=said):
        task(**wrong)


def test_what_is_said_of_single_pairs_adds_up():
    made = task()
    torch.manual_seed(0)
    model = made.model().eval()
    (batch,) = made.examples("test")
    with torch.no_grad():
        said = made.predicted(model, batch)
    judged, sums = made.judged(said, batch), made.measured(said, batch)
    words = (batch.target[:, 1:] != 0).sum(1)
    torch.testing.assert_close((judged["loss"] * words).sum(), sums["surprise"])
    assert bool(((judged["score"] >= 0) & (judged["score"] <= 1)).all())
    some = batch.taken(torch.tensor([2, 0]))
    assert some.references == (batch.references[2], batch.references[0])
    assert torch.equal(some.source, batch.source[[2, 0]])


@pytest.mark.parametrize("query", ["paper", "bahdanau"])
def test_a_training_can_be_audited_and_swapped(tmp_path, query):
    from fenchel.auditing import audit
    from fenchel.swap import swap
    from tests.data.test_parallel import SPLITS, written

    data = written(tmp_path / "pairs", {**SPLITS, "train": SPLITS["train"] * 4})
    given = {"data": str(data), "epochs": 1, "query": query, "width": 8, "subwords": 60, "batch_size": 4}
    train(TranslationOptions(**given), tmp_path / "run", device="cpu")
    report = audit(str(tmp_path / "run"))
    options = TranslationOptions(**given).resolved()
    (batch,) = Translation(options, Translation.read(str(data)), Workers(0, 1, CPU)).examples("test")
    assert report.heads[0]["queries"] == int((batch.target[:, 1:] != 0).sum())
    splits = {**SPLITS, "train": SPLITS["train"] * 4, "test_2016_flickr": SPLITS["train"] * 2}
    written(data, splits)
    train(TranslationOptions(**given), tmp_path / "other", device="cpu")
    swapped = swap(str(tmp_path / "other"), bootstrap=100)
    assert "cross-entropy a piece of a word" in str((swapped.manifest, swapped.finding, swapped.results))


def test_processes_and_data_have_to_fit():
    with pytest.raises(InputError, match="batch size is 8 for 3 processes"):
        task(0, 3)
    with pytest.raises(InputError, match="expected a ParallelCorpus"):
        Translation(translation_options().resolved(), pairs(), Workers(0, 1, CPU))  # pyright: ignore[reportArgumentType]


def test_few_pairs_are_trained_on(tmp_path):
    result = translated(tmp_path, train_sentences=5, epochs=1)
    assert result.description["data"]["train_pairs"] == 5
    assert result.epochs[0]["step"] == 1


def test_what_the_estimator_is_without_attention():
    assert translation_options(attention="none").resolved().estimator is None
    assert task(attention="none").model().inference is None
    assert "no attention" in translation_options(attention="none").resolved().model_title
    gaussian = translation_options(preference="gaussian").resolved()
    assert (gaussian.place, gaussian.spread, gaussian.score) == ("scaled", 4.0, "general")


@pytest.mark.skipif("FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA names no folder of data")
def test_the_published_pairs_are_trained_on(tmp_path):
    small: dict[str, Any] = {
        "epochs": 1,
        "width": 16,
        "depth": 1,
        "train_sentences": 64,
        "batch_size": 32,
        "subwords": 200,
    }
    data = Translation.read("multi30k")
    cut = type(data)(
        data.languages,
        data.train,
        data.validation.taken(8),
        {"test": data.test("test_2016_flickr").taken(8)},
        data.name,
    )
    result = train(TranslationOptions(data="multi30k", **small), tmp_path, data=cut, device="cpu")
    assert isinstance(result, TrainResult)
    assert result.description["data"]["test"] == "test"
    assert result.finished


BFLOAT16 = """
import sys
from pathlib import Path

import torch

from fenchel.errors import InputError
from tests.train.small_trainings import Recorder, trained
from tests.train.translation.small_pairs import translated

folder, there, observer = Path(sys.argv[1]), True, Recorder()
with torch.autocast("cpu", torch.bfloat16):
    try:
        torch.nn.LSTM(2, 2)(torch.zeros(1, 1, 2))
    except RuntimeError:
        there = False
print("torch", there)
try:
    translated(folder / "translator", precision="bfloat16", epochs=1, observer=observer)
except InputError as error:
    print(error)
print("translator", bool(observer.told), (folder / "translator").exists())
print("auto", translated(folder / "auto", precision="auto", epochs=1).finished)
print("vit", trained(folder / "vit", precision="bfloat16", epochs=1).finished)
"""


def test_lstms_train_in_bfloat16_where_the_processor_has_them_and_are_refused_before_an_epoch_elsewhere(
    tmp_path,
):
    # oneDNN without AVX-512 has no bfloat16 LSTM; other processors than x86 take no notice of the variable.
    done = subprocess.run(
        [sys.executable, "-c", BFLOAT16, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    torchs, *refusal, translator, auto, vit = done.stdout.splitlines()
    if torchs == "torch True":
        assert refusal == []
        assert translator == "translator True True"
    else:
        (said,) = refusal
        assert "torch has no bfloat16 LSTM" in said
        assert "expected precision float32" in said
        assert translator == "translator False False"
    assert (auto, vit) == ("auto True", "vit True")
