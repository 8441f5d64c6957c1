"""Trainings on blanks: every objective and option, exact resume, processes, and what is measured."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from fenchel.data import Subwords
from fenchel.data.articles import Articles
from fenchel.data.corruption import Corruption, Shares
from fenchel.data.passages import Passage
from fenchel.errors import InputError
from fenchel.models import Cloze
from fenchel.models.cloze import to_transformers
from fenchel.train import ClozeOptions, TrainResult, load_model
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.cloze import ClozeTask
from fenchel.train.cloze.baselines import NeighbourCounts
from fenchel.train.cloze.rows import Batch, Draws, Rows
from fenchel.train.workers import Workers
from tests.train.cloze.small_blanks import blanks_options, filled, pairs, text
from tests.train.small_trainings import Recorder


def task(
    *, rank: int = 0, count: int = 1, paired: bool = False, data: Any = None, **changes: Any
) -> ClozeTask:
    made = pairs if paired else text
    data = (made(0), made(1), made(2)) if data is None else data
    return ClozeTask(blanks_options(**changes).resolved(), data, Workers(rank, count, torch.device("cpu")))


def rows_of(made: ClozeTask, batch: Batch) -> list[str]:
    return [
        " ".join(made.tokenizer.token(number) for number in row if number) for row in batch.numbers.tolist()
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"objective": "mlm+nsp"},
        {"objective": "causal"},
        {"paired": True, "objective": "tlm"},
        {"paired": True},
        {"estimator": "exact", "epochs": 1},
        {"closeness": "sparsemax", "masked": "places"},
        {"last": "standard", "preference": "uniform", "layer_preference": "uniform"},
        {"score": "additive", "shares": "0/0/100", "test_shares": "80/10/10"},
        {"tokens": "bpe", "lower": False, "rate": 0.3, "train_sentences": 20},
    ],
    ids=str,
)
def test_every_objective_and_option_trains(tmp_path, changes: dict[str, Any]):
    result = filled(tmp_path, **changes)
    assert result.finished
    assert 0 <= (result.headline or 0.0) <= 1
    last = result.epochs[-1]
    assert last["train_loss"] > 0
    assert (last["test_next_accuracy"] is None) == (changes.get("objective") != "mlm+nsp")
    assert last["test_unigram_accuracy"] is not None
    assert last["test_bigram_accuracy"] is not None
    assert result.epochs[0]["test_masked_accuracy"] is None or len(result.epochs) == 1
    assert TrainResult.read(tmp_path).headline == result.headline
    model = load_model(tmp_path)
    assert isinstance(model, Cloze)
    assert model.configuration() == result.description["model"]["configuration"]


def test_words_that_follow_from_their_neighbours_are_learned(tmp_path):
    result = filled(tmp_path, epochs=25)
    assert result.headline is not None
    last = result.epochs[-1]
    assert result.headline > last["test_unigram_accuracy"] + 0.2
    weights = Checkpoint.read(tmp_path)
    assert weights.selected.keys() == weights.weights.keys()


def test_what_is_measured_is_recomputed(tmp_path):
    result = filled(tmp_path)
    made, model = task(), load_model(tmp_path)
    hits = count = 0
    loss = 0.0
    with torch.no_grad():
        for batch in made.examples("test"):
            for row in range(batch.count):
                places = batch.places[row].nonzero().flatten()
                logits = model(batch.numbers[row : row + 1])["words"][0, places]
                begin = int(batch.places[:row].sum())
                targets = batch.targets[begin : begin + len(places)]
                hits += int((logits.argmax(-1) == targets).sum())
                loss += float(nn.functional.cross_entropy(logits, targets, reduction="sum"))
                count += len(places)
    assert result.headline == pytest.approx(hits / count)
    assert result.test_loss == pytest.approx(loss / count, rel=1e-4)


@pytest.mark.parametrize("stop_at", [2, 5])
def test_an_interrupted_training_goes_on_bit_for_bit(tmp_path, stop_at):
    whole = filled(tmp_path / "a", epochs=3, objective="mlm+nsp", dropout=0.2)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        filled(
            tmp_path / "b", epochs=3, objective="mlm+nsp", dropout=0.2, observer=Recorder(stop_at, interrupt)
        )
    again = filled(tmp_path / "b", epochs=3, objective="mlm+nsp", dropout=0.2, resume=True)
    assert again.headline == whole.headline
    one, other = Checkpoint.read(tmp_path / "a"), Checkpoint.read(tmp_path / "b")
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_processes_descend_what_one_descends(objective: str):
    alone = task(objective=objective)
    torch.manual_seed(0)
    model = alone.model().double().eval()

    def gradient(made: ClozeTask) -> dict[str, torch.Tensor]:
        batch = next(made.batches(0, 1))
        model.zero_grad()
        made.loss(made.predicted(model, batch), batch).mean.backward()
        return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    whole = gradient(alone)
    shares = [gradient(task(rank=rank, count=2, objective=objective)) for rank in range(2)]
    for name, value in whole.items():
        mean = sum(share[name] for share in shares) / 2
        torch.testing.assert_close(mean, value, atol=1e-9, rtol=1e-9)
    for split in ("validation", "test"):
        rows = [
            row for rank in range(2) for row in _rows(task(rank=rank, count=2, objective=objective), split)
        ]
        assert sorted(rows) == sorted(_rows(alone, split))


def _rows(made: ClozeTask, split: str) -> list[str]:
    return [row for batch in made.examples(split) for row in rows_of(made, batch)]


def test_what_is_drawn_does_not_depend_on_the_size_of_batches():
    one, other = task(batch_size=4), task(batch_size=8)
    both = [[row for batch in made.batches(1, 0) for row in rows_of(made, batch)] for made in (one, other)]
    assert both[0][: len(both[1])] == both[1]
    assert rows_of(one, next(one.batches(0, 0))) != rows_of(one, next(one.batches(1, 0)))


def test_words_that_were_left_out_are_never_targets():
    cases: list[dict[str, Any]] = [{}, {"objective": "causal"}, {"objective": "mlm+nsp"}]
    for changes in [*cases, {"rate": 0.9, "shares": "0/0/100"}]:
        made = task(**changes)
        unknown = made.tokenizer.number("[UNK]")
        assert any((batch.numbers == unknown).any() for batch in made.examples("test"))
        for batch in [*made.examples("test"), *made.batches(0, 0)]:
            assert (batch.targets >= len(made.tokenizer.special)).all()
            assert batch.total == len(batch.targets)


def test_rows_stand_between_special_tokens():
    for objective, ends in (("mlm", 1), ("mlm+nsp", 2), ("causal", 1)):
        made = task(rate=1e-9, objective=objective)
        for row in rows_of(made, next(made.batches(0, 0))):
            assert row.startswith("[CLS] the ")
            assert row.endswith(" . [SEP]")
            assert row.count("[SEP]") == ends


def test_a_causal_place_is_asked_for_the_word_after_it():
    made = task(objective="causal")
    for batch in [next(made.batches(0, 0)), *made.examples("test")]:
        rows, places = batch.places.nonzero(as_tuple=True)
        assert torch.equal(batch.numbers[rows, places + 1], batch.targets)
    blanks, asked = next(task().examples("test")), next(made.examples("test"))
    assert torch.equal(blanks.places[:, 1:], asked.places[:, :-1])
    assert torch.equal(blanks.targets, asked.targets)


def test_second_parts_are_those_that_follow_or_of_other_articles():
    made = task(objective="mlm+nsp", batch_size=4, rate=1e-9)
    passages = made._passages["train"]
    article = {one.second: one.article for one in passages}
    others = total = 0
    for epoch in range(3):
        for batch in made.batches(epoch, 0):
            for numbers, segments, other in zip(
                batch.numbers.tolist(), batch.segments.tolist(), batch.classes.tolist(), strict=True
            ):
                length = sum(number != 0 for number in numbers)
                cut = segments.index(1)
                first, second = tuple(numbers[1 : cut - 1]), tuple(numbers[cut : length - 1])
                mine = {one.article for one in passages if one.first == first}
                follows = any(one.first == first and one.second == second for one in passages)
                assert other or follows
                assert not other or article[second] not in mine or len(mine) > 1 or follows
                others, total = others + other, total + 1
    assert abs(others - total / 2) < 4 * (total / 4) ** 0.5


def test_exchanged_parts_are_whole_and_fit():
    tokenizer = task().tokenizer
    corruption = Corruption(1e-9, Shares.of("80/10/10"), mask=3, known=5, size=20)

    def passage(first: int, second: int, article: int) -> Passage:
        parts = ((5,) * first, (6 + article,) * second)
        return Passage(*parts, article, (0, 0), (2 * article, 2 * article + 1))

    uneven = [passage(3, 11, 0), passage(11, 3, 1), passage(4, 10, 2), passage(9, 2, 3), passage(13, 1, 4)]
    rows = Rows(uneven, tokenizer, "mlm+nsp", longest=14)
    exchanged = set()
    for epoch in range(60):
        for index, one in enumerate(uneven):
            row = rows.row(index, Draws(corruption, "train", (epoch,)))
            second = tuple(row.numbers[len(one.first) + 2 : -1])
            assert len(row.numbers) <= 14 + 3
            assert second in {other.second for other in uneven}
            assert (second != one.second) == row.other
            if row.other:
                exchanged.add(index)
    assert exchanged == {0, 1, 2, 3}  # beside the thirteen tokens of the last nothing fits but its own


def test_pairs_stand_side_by_side_with_places_that_begin_again():
    made, apart = task(paired=True, objective="tlm"), task(paired=True)
    batch = next(made.examples("test"))
    row = batch.numbers[0].tolist()
    end = made.tokenizer.number("[SEP]")
    first = row.index(end)
    assert batch.positions is not None
    assert batch.positions[0, first + 1] == batch.positions[0, 1] == 1
    assert batch.languages[0, first] == 0
    assert batch.languages[0, first + 1] == 1
    assert apart.steps_per_epoch == 2 * made.steps_per_epoch
    targets = [sorted(t for b in one.examples("test") for t in b.targets.tolist()) for one in (made, apart)]
    assert targets[0] == targets[1]


def test_inputs_give_what_is_predicted_and_rows_can_be_taken():
    made = task(objective="mlm+nsp")
    model, batch = made.model().eval(), next(made.examples("test"))
    predicted = made.predicted(model, batch)
    assert all(torch.equal(value, predicted[name]) for name, value in model(**made.inputs(batch)).items())
    rows = torch.tensor([1, 4, 5])
    part = batch.taken(rows)
    judged, whole = made.judged(made.predicted(model, part), part), made.judged(predicted, batch)
    for name in ("loss", "score"):
        torch.testing.assert_close(judged[name], whole[name][rows])
    per_row = torch.bincount(batch.rows, minlength=batch.count)
    sums = made.measured(predicted, batch)
    assert (whole["loss"] * per_row).sum().item() == pytest.approx(sums["loss"].item(), rel=1e-5)


def test_the_tokenizer_is_of_the_training_text_alone(tmp_path):
    filled(tmp_path, epochs=1)
    subwords = Subwords((tmp_path / "tokenizer.json").read_text())
    assert subwords == task().tokenizer
    strange = Articles((("quux quux quux quux .",),), "strange")
    other = task(data=(text(0), strange, strange), epochs=1)
    assert other.tokenizer == subwords
    with pytest.raises(InputError, match="quux"):
        other.tokenizer.number("quux")
    with pytest.raises(InputError, match="unk"):
        subwords.number("<unk>")


def test_baselines_by_hand():
    rows = [[2, 5, 6, 7, 3], [2, 5, 8, 7, 3], [2, 5, 8, 7, 3], [2, 6, 6, 3]]
    counts = NeighbourCounts(rows, size=10, known=5, smoothing=0.5)
    assert counts.most_frequent in (5, 6, 7)
    flat = [token for row in rows for token in row]
    after = [(left, right) for row in rows for left, right in pairwise(row)]
    share = {token: flat.count(token) / len(flat) for token in range(10)}

    def likely(left: int, right: int) -> float:
        return (after.count((left, right)) + 0.5 * share[right]) / (flat.count(left) + 0.5)

    for left in range(10):
        for right in (3, 5, 6, 7, 8):
            found = int(counts.between(torch.tensor([left]), torch.tensor([right]))[0])
            scores = {word: likely(left, word) * likely(word, right) for word in range(5, 10)}
            assert scores[found] == pytest.approx(max(scores.values()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": "guess"}, "objective"),
        ({"shares": "80/10"}, "shares"),
        ({"test_shares": "1/1/1"}, "shares"),
        ({"rate": 0.0}, "rate"),
        ({"masked": "all"}, "masked"),
        ({"heads": 3}, "heads"),
        ({"score": "additive", "estimator": "exact"}, "score is 'additive'"),
        ({"objective": "causal", "masked": "places"}, "hides no words"),
        ({"objective": "causal", "shares": "100/0/0"}, "hides no words"),
        ({"closeness": "near"}, "closeness"),
        ({"longest": 1}, "longest"),
        ({"tokens": "letters"}, "tokens"),
        ({"preference": "position"}, "preference"),
    ],
    ids=str,
)
def test_wrong_options_are_named(changes, words):
    with pytest.raises(InputError, match=words):
        blanks_options(**changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"objective": "tlm"}, "holds no sentences that translate each other"),
        ({"objective": "mlm+nsp", "paired": True}, "of which none follows another"),
        ({"train_sentences": 1000}, "passages to train on were asked for"),
        ({"count": 3}, "must be a multiple of 3"),
        ({"data": "text"}, "triple"),
        ({"data": (text(0), text(1), text(2, articles=1)), "objective": "mlm+nsp"}, "articles to test on"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_data_that_do_not_suit_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        task(**changes)


def test_where_nothing_is_hidden_nothing_is_measured(tmp_path):
    with pytest.raises(InputError, match=r"no word of \d+ passages was chosen to be found.*--set rate"):
        filled(tmp_path, epochs=1, rate=1e-9)


def test_options_are_kept_as_json():
    options = blanks_options(closeness="entmax15")
    assert options.closeness == "tsallis:1.5"
    assert ClozeOptions.from_json(options.resolved().to_json()) == options.resolved()


def test_a_trained_model_converts_and_predicts_the_same(tmp_path):
    pytest.importorskip("transformers")
    bert_like: dict[str, Any] = {"last": "standard", "preference": "uniform", "layer_preference": "uniform"}
    filled(tmp_path, epochs=1, objective="mlm+nsp", **bert_like)
    model = load_model(tmp_path)
    assert isinstance(model, Cloze)
    bert = to_transformers(model)
    batch = next(task(objective="mlm+nsp").examples("test"))
    with torch.no_grad():
        found = model(**batch.inputs)
        expected = bert(
            batch.numbers, attention_mask=(batch.numbers != 0).long(), token_type_ids=batch.segments
        )
    said = batch.of_targets(found["words"])
    torch.testing.assert_close(said, expected.prediction_logits[batch.places], atol=1e-5, rtol=0)
    torch.testing.assert_close(found["classes"], expected.seq_relationship_logits, atol=1e-5, rtol=0)
