"""Readers: what is trained, validated and tested on, when, that every option counts and nothing else does."""

from __future__ import annotations

import json
import math

import pytest
import torch
from scipy.stats import pearsonr, spearmanr

from fenchel.errors import InputError
from fenchel.models.relatedness import degree_distribution, expected_degree
from fenchel.train import TrainResult, load_model
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.reading import PairReading, SentenceReading
from fenchel.train.reading.relatedness import MOMENTS, moments_of, pearson, rank_correlation
from fenchel.train.workers import Workers
from tests.train.reading.small_readings import (
    compared,
    pair_options,
    pair_splits,
    pairs,
    read,
    read_options,
    splits,
)
from tests.train.small_trainings import Recorder

CPU = torch.device("cpu")
READERS = {"classifier": read, "pairs": compared}


def sentence_task(rank: int = 0, count: int = 1, *, data=None, **changes):
    return SentenceReading(read_options(**changes).resolved(), data or splits(), Workers(rank, count, CPU))


def pair_task(rank: int = 0, count: int = 1, *, data=None, **changes):
    return PairReading(pair_options(**changes).resolved(), data or pair_splits(), Workers(rank, count, CPU))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    return {name: trained(tmp_path_factory.mktemp(name)) for name, trained in READERS.items()}


@pytest.mark.parametrize("pooling", ["attention", "mean", "bag"])
def test_a_classifier_learns_and_what_it_writes_is_used_again(tmp_path, pooling):
    result = read(tmp_path, pooling=pooling, epochs=8)
    assert result.headline is not None
    assert result.headline > 0.8
    assert TrainResult.read(tmp_path) == result
    written = json.loads((tmp_path / "results.json").read_text())
    assert (written["task"], written["finished"]) == ("classifier", True)
    tested = [epoch["test_accuracy"] is not None for epoch in result.epochs]
    assert tested == [False] * 7 + [True]
    task = sentence_task(pooling=pooling)
    model, right = load_model(tmp_path), 0
    for batch in task.examples("test"):
        with torch.no_grad():
            said = model(**task.inputs(batch))
        assert torch.equal(said, task.predicted(model, batch))
        right += int((said.argmax(-1) == batch.labels).sum())
    assert right / 20 == pytest.approx(result.headline)
    assert (tmp_path / "tokenizer.json").read_text() == task.files()["tokenizer.json"]


@pytest.mark.parametrize("pooling", ["attention", "mean", "bag"])
def test_pairs_learn_labels_and_relatedness(tmp_path, pooling):
    given = {"pooling": pooling, "width": 16, "dropout": 0.0, "learning_rate": 1e-2}
    result = compared(tmp_path, data=pair_splits(150), **given, epochs=10)
    assert result.headline is not None
    assert result.headline > 0.8
    task, model = pair_task(data=pair_splits(150), **given), load_model(tmp_path)
    said, true = [], []
    with torch.no_grad():
        for batch in task.examples("test"):
            answers = model(**task.inputs(batch))
            said += expected_degree(answers["relatedness"]).tolist()
            assert batch.degrees is not None
            true += batch.degrees.tolist()
    assert result.last("test_pearson") == pytest.approx(pearsonr(said, true)[0], abs=1e-5)
    assert result.last("test_spearman") == pytest.approx(spearmanr(said, true)[0], abs=1e-6)
    assert "validation_spearman" not in result.epochs[-1]
    error = sum((one - other) ** 2 for one, other in zip(said, true, strict=True)) / len(said)
    assert result.last("test_squared_error") == pytest.approx(error, rel=1e-4)


def test_labels_alone_are_learned_where_nothing_is_said_of_relatedness(tmp_path):
    result = compared(tmp_path, data=pair_splits(related=False))
    assert result.last("test_pearson") is None
    assert result.last("test_spearman") is None
    assert result.last("test_accuracy") is not None
    assert load_model(tmp_path).degree is None
    assert pair_task(relatedness=0.0).model().degree is None


def test_correlation_follows_from_sums_of_parts():
    generator = torch.Generator().manual_seed(0)
    said, true = torch.rand(30, generator=generator) * 4 + 1, torch.rand(30, generator=generator) * 4 + 1
    parts = [moments_of(said[:7], true[:7]), moments_of(said[7:], true[7:])]
    sums = {name: sum(part[name].item() for part in parts) for name in MOMENTS}
    assert pearson(sums) == pytest.approx(pearsonr(said.numpy(), true.numpy())[0], abs=1e-6)
    same = moments_of(torch.full((3,), 2.0), true[:3])
    assert pearson({name: value.item() for name, value in same.items()}) == 0.0
    assert rank_correlation(said, true) == pytest.approx(spearmanr(said.numpy(), true.numpy())[0], abs=1e-12)
    assert rank_correlation(torch.full((3,), 2.0), true[:3]) == 0.0
    degrees = torch.tensor([1.0, 1.2, 4.9, 5.0])
    distribution = degree_distribution(degrees)
    assert torch.allclose(distribution.sum(-1), torch.ones(4))
    assert torch.allclose(distribution @ torch.arange(1.0, 6.0), degrees)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("stop_at", [3, 9])
def test_an_interrupted_training_goes_on_bit_for_bit(tmp_path, name, stop_at):
    trained, given = READERS[name], {"word_dropout": 0.2, "encoder": "lstm"}
    whole = trained(tmp_path / "a", **given)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "b", observer=Recorder(stop_at, interrupt), **given)
    again = trained(tmp_path / "b", resume=True, **given)
    assert again.headline == whole.headline
    one, other = Checkpoint.read(tmp_path / "a"), Checkpoint.read(tmp_path / "b")
    assert all(torch.equal(value, other.tensors[key]) for key, value in one.tensors.items())


@pytest.mark.parametrize("task", [sentence_task, pair_task])
def test_processes_share_the_batch_that_one_would_have_and_the_examples(task):
    whole = list(task().batches(3, 0))
    shares = [list(task(rank, 2).batches(3, 0)) for rank in range(2)]
    assert len(whole) == task().steps_per_epoch == 7
    for batch, *parts in zip(whole, *shares, strict=True):
        assert batch.labels.tolist() == [label for part in parts for label in part.labels.tolist()]
    later = list(task().batches(3, 5))
    assert [one.labels.tolist() for one in later] == [one.labels.tolist() for one in whole[5:]]
    labels = [
        label
        for rank in range(3)
        for part in task(rank, 3, batch_size=9).examples("validation")
        for label in part.labels.tolist()
    ]
    assert sorted(labels) == sorted(task()._parts["validation"].labels)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *(
            (name, changes)
            for name in READERS
            for changes in (
                {"estimator": "exact", "alpha": 9.0},
                {"preference": "context"},
                {"preference": "gaussian"},
                {"score": "general"},
                {"score": "additive"},
                {"closeness": "sparsemax"},
                {"encoder": "conv"},
                {"encoder": "bigrams"},
                {"encoder": "lstm", "depth": 2},
                {"word_dropout": 0.3},
                {"label_smoothing": 0.2},
                {"vocabulary": 8},
                {"least": 20},
                {"longest": 2},
                {"train_sentences": 40},
                {"pooling": "mean"},
            )
        ),
        ("classifier", {"preference": "position"}),
        ("classifier", {"encoder": "bigrams", "buckets": 3}),
        ("pairs", {"preference": "relative"}),
        ("pairs", {"comparison": "concatenated"}),
        ("pairs", {"relatedness": 0.2}),
        ("pairs", {"summary": True}),
    ],
    ids=str,
)
def test_each_option_changes_the_numbers(tmp_path, plain, name, changes):
    result = READERS[name](tmp_path, **changes)
    ours, theirs = (
        [(epoch["train_loss"], epoch["validation_loss"]) for epoch in one.epochs]
        for one in (result, plain[name])
    )
    assert ours != theirs
    assert all(map(math.isfinite, ours[-1]))


def test_what_is_too_long_is_cut_and_counted(tmp_path):
    notes = read(tmp_path, longest=4, epochs=1).description["notes"]
    assert any("sentences of train are cut after 4 tokens" in note for note in notes)


def test_validation_is_the_data_s_own_or_held_out():
    assert sentence_task()._parts["validation"].words == splits().validation.words  # type: ignore[union-attr]
    held = sentence_task(data=splits(validation=False))
    assert (len(held._parts["train"]), len(held._parts["validation"])) == (54, 6)
    seeds = [sentence_task(data=splits(validation=False), seed=seed) for seed in (0, 1)]
    assert seeds[0].fingerprints() == seeds[1].fingerprints()
    whole, some = sentence_task().fingerprints(), sentence_task(train_sentences=30).fingerprints()
    assert [name for name in whole if whole[name] != some[name]] == ["train_sentences_sha256"]


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (read_options, {"model": "vit"}, "model is 'vit'; expected one of classifier"),
        (read_options, {"preference": "relative"}, "preference is 'relative'; expected one of uniform, position"),
        (read_options, {"preference": "recency"}, "preference is 'recency'; expected one of uniform"),
        (pair_options, {"preference": "position"}, "preference is 'position'; expected one of uniform, context"),
        (pair_options, {"relatedness": 1.0}, r"relatedness is 1\.0; expected a finite number at least 0 and below 1"),
        (pair_options, {"comparison": "sum"}, "comparison is 'sum'; expected one of concatenated, differences"),
        (read_options, {"score": "cosine"}, "score is 'cosine'; expected one of dot, general, additive"),
        (read_options, {"closeness": "best"}, "closeness is 'best'; expected tsallis:ORDER"),
        (read_options, {"closeness": "sparsemax:1"}, "closeness is 'sparsemax:1'"),
        (read_options, {"score": "additive", "estimator": "exact"}, "estimator is 'exact' with an additive score"),
        (read_options, {"pooling": "mean", "estimator": "exact"}, "estimator is 'exact' with pooling 'mean'"),
        (pair_options, {"pooling": "bag", "alpha": 2.0}, r"alpha is 2\.0 with pooling 'bag'"),
        (pair_options, {"pooling": "bag", "encoder": "conv"}, "encoder is 'conv' with pooling 'bag'"),
        (pair_options, {"pooling": "bag", "summary": False}, "summary is False with pooling 'bag'"),
        (read_options, {"heads": 3}, "heads is 3 and width is 8; the number of heads must divide"),
        (read_options, {"encoder": "lstm", "width": 9, "heads": 1}, "width is 9 for the encoder 'lstm'"),
        (read_options, {"encoder": "bigrams", "embed": "demo"}, "encoder is 'bigrams' with embed 'demo'"),
        (read_options, {"embed": "glove"}, "embed is 'glove'; expected one of learned, demo"),
        (read_options, {"word_dropout": 1.0}, r"word dropout is 1\.0"),
        (read_options, {"label_smoothing": None}, "label smoothing is None"),
        (read_options, {"longest": 0}, "longest is 0"),
    ],
    ids=lambda one: getattr(one, "__name__", str(one)),
)  # fmt: skip
def test_what_is_out_of_range_is_named(make, changes, message):
    with pytest.raises(InputError, match=message):
        make(**changes)


def test_what_does_not_fit_is_refused():
    with pytest.raises(InputError, match="batch size is 8 for 3 processes"):
        sentence_task(0, 3)
    with pytest.raises(InputError, match="61 sentences to train on were asked for and there are 60"):
        pair_task(train_sentences=61)
    with pytest.raises(InputError, match=r"expected fenchel\.data\.Splits of Sentences"):
        sentence_task(data=pair_splits())
    mixed = pair_splits()
    with pytest.raises(InputError, match="expected all or none"):
        pair_task(data=(mixed.train, pairs(9, related=False), mixed.test))
    with pytest.raises(InputError, match="there are 1 pairs to train on for 2 processes"):
        pair_task(0, 2, data=(pairs(1), pairs(3), pairs(3)))


def test_what_is_left_open_is_filled_in():
    assert read_options().resolved().score == "dot"
    assert read_options(pooling="mean").resolved().score is None
    for embed, pooling, encoder in (
        ("learned", "attention", "lstm"),
        ("demo", "mean", "words"),
        ("learned", "bag", "words"),
    ):
        assert read_options(encoder=None, embed=embed, pooling=pooling).resolved().encoder == encoder
    assert pair_options(encoder=None).resolved().encoder == "words"
    assert [
        pair_options(**given).resolved().summary for given in ({}, {"embed": "demo"}, {"pooling": "bag"})
    ] == [
        False,
        True,
        True,
    ]
    assert pair_options().resolved().model_title == "pairs (first_order)"
    assert read_options(closeness="entmax15").closeness == "tsallis:1.5"
    for options in (read_options(), pair_options()):
        assert type(options).from_json(options.to_json()) == options
