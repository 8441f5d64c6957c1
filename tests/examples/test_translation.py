"""The translator learns a toy language by attention, and says of itself what can be computed anew."""

import itertools
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import common
import decoding
import translation
from decoding import BEGIN, END, Attention, State, search, weights_of
from fenchel.errors import InputError
from fenchel.functional import attention_weights
from tests.examples.measured import check_run, one_by_one, parquet, refuses, trained
from translation import Translation, TranslationOptions, UseOptions

SHORT: dict[str, Any] = {"epochs": 2, "preference": "aligned"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translation")
    trained(Translation, TranslationOptions, folder, **SHORT)
    return folder


def metrics_of(run: Path) -> dict[str, float]:
    return json.loads((run / common.METRICS).read_text())["test"]


def test_attention_beats_one_context_for_all_words(run: Path, tmp_path: Path) -> None:
    control = trained(Translation, TranslationOptions, tmp_path, **SHORT, context="mean")["test"]
    found = metrics_of(run)
    assert found["bleu"] > control["bleu"] + 20
    assert found["loss"] < control["loss"] - 0.5


def test_bleu_is_that_of_the_records(run: Path) -> None:
    records = [json.loads(line) for line in (run / "test.jsonl").read_text().splitlines()]
    pairs = [(one["translation"].split(), one["reference"].split()) for one in records]
    logarithm = 0.0
    for order in range(1, 5):
        right = said = 0
        for translated, reference in pairs:
            counts, wanted = (
                Counter(tuple(side[k : k + order]) for k in range(len(side) - order + 1))
                for side in (translated, reference)
            )
            right, said = right + (counts & wanted).total(), said + counts.total()
        logarithm += math.log(right / said) / 4
    lengths = [sum(len(pair[side]) for pair in pairs) for side in (0, 1)]
    shortness = min(0.0, 1 - lengths[1] / lengths[0])
    assert metrics_of(run)["bleu"] == pytest.approx(100 * math.exp(logarithm + shortness), rel=1e-6)


def test_batches_for_audits_have_the_loss_of_the_test(run: Path) -> None:
    losses = check_run(translation, run, ["cross"], space="key")["loss"]
    _, batches = translation.load(run)
    counts = torch.cat([batch["counted_decoder"].sum(1) for batch in batches])
    assert float((losses * counts).sum() / counts.sum()) == pytest.approx(metrics_of(run)["loss"], rel=1e-5)
    for batch in batches:
        source, target = batch["inputs"]["source"], batch["inputs"]["target"]
        assert batch["counted"].shape == source.shape
        for row, texts in zip(source, batch["tokens"], strict=True):
            assert len(texts) == int((row != 0).sum())
        for row, texts in zip(target, batch["tokens_decoder"], strict=True):
            assert len(texts) == int((row != 0).sum())
            assert texts[0] == "[BOS]"


def test_use_translates_and_scores_the_test(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task, model = common.load_run(Translation, TranslationOptions, run)
    translation.use(task, model, UseOptions())
    *lines, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [one["source"] for one in lines] == [pair.source for pair in task.splits["test"]]
    assert last["bleu"] == pytest.approx(metrics_of(run)["bleu"], rel=1e-6)
    assert "tok:13a" in last["signature"]
    sentence = lines[0]["source"]
    translation.use(task, model, UseOptions(sentences=[sentence], beam=4, length_power=0.0))
    (beam,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert beam["log_probability"] >= lines[0]["log_probability"] - 1e-4
    with pytest.raises(InputError, match="empty"):
        translation.use(task, model, UseOptions(sentences=[" "]))


NUMBERS = torch.tensor([[7, 12, 9, END], [8, END, 0, 0]]), torch.tensor([[BEGIN, 11, 6], [BEGIN, 9, 0]])


def small(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    told = TranslationOptions(width=16, **options)
    if told.model == "transformer":
        return translation.TransformerTranslator(told, (40, 50)).eval()
    return translation.LSTMTranslator(told, (40, 50), 0.9).eval()


KINDS = [
    {"query": "paper"},
    {"query": "paper", "score": "additive", "preference": "location"},
    {"query": "bahdanau", "score": "additive", "preference": "context", "depth": 2},
    {"query": "bahdanau", "context": "mean"},
    {"query": "luong", "score": "dot", "preference": "predicted", "depth": 2, "head": "add"},
    {"query": "luong", "score": "general", "preference": "relative", "order": 1.5},
    {"context": "last"},
    {"model": "transformer", "depth": 2},
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(map(str, kind.values())))
def test_words_said_one_by_one_have_the_scores_of_training(kind: dict[str, Any]) -> None:
    model: Any = small(**kind)
    source, target = NUMBERS
    with torch.no_grad():
        expected, found = model(source=source, target=target), one_by_one(model, source, target)
        alone = model(source=source[1:, :2], target=target[1:, :2])
    real = target != 0
    torch.testing.assert_close(found[real], expected[real], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(alone[0], expected[1, :2], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS[4:6] + KINDS[7:], ids=("luong", "sparse", "transformer"))
def test_the_weights_that_are_drawn_are_those_of_attention_to_the_source(kind: dict[str, Any]) -> None:
    model, (source, target) = small(**kind), NUMBERS
    weights = weights_of(model, source=source, target=target)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3))
    assert (weights[1, :, 2:] == 0).all()
    with pytest.raises(InputError, match="no attention"):
        weights_of(small(context="mean"), source=source, target=target)


def test_pairs_come_from_two_columns_of_a_folder(tmp_path: Path) -> None:
    data = parquet(tmp_path, fr=["un chien court"] * 20, it=["un cane corre"] * 20, other=[1] * 20)
    task = Translation(TranslationOptions(data=data, source="fr", target="it", out=str(tmp_path / "run")))
    assert {name: len(split) for name, split in task.splits.items()} == {
        "train": 16,
        "validation": 2,
        "test": 2,
    }
    assert task.splits["test"][0][:2] == ("un chien court", "un cane corre")
    assert task.tokenizers[1].decode(task.splits["test"][0].labels) == "un cane corre"
    again = Translation(TranslationOptions(data=data, source="fr", target="it"))
    assert [one.to_str() for one in again.tokenizers] == [one.to_str() for one in task.tokenizers]


def test_what_cannot_be_trained_on_is_refused_in_one_line(tmp_path: Path) -> None:
    hollow = parquet(tmp_path / "hollow", en=["a dog"] * 19 + [" "], de=["ein Hund"] * 20)
    good = parquet(tmp_path / "good", en=["a dog"] * 20, de=["ein Hund"] * 20)
    refuses(
        lambda **told: Translation(TranslationOptions(**told)),
        [
            ({"data": hollow, "target": "nl"}, "no column nl; it has en, de"),
            ({"data": hollow}, r"row \d.*not empty"),
            ({"data": good, "longest": 1}, r"no pair has at most 1 pieces.*--longest"),
            *(({"width": wrong}, "expected") for wrong in (15, 18)),
            ({"dropout": 1.0}, "expected"),
            ({"score": "additive", "estimator": "exact"}, "Leave|expected"),
        ],
    )


def test_pairs_of_a_batch_are_about_as_long_and_all_are_seen(tmp_path: Path) -> None:
    task = Translation(TranslationOptions(out=str(tmp_path)))
    lengths = [len(pair.labels) for pair in task.splits["train"]]
    first, second = (list(task.batches("train", 64, epoch)) for epoch in (0, 1))
    assert sorted(one for batch in first for one in batch) == [*range(len(lengths))]
    assert first != second
    assert first == list(task.batches("train", 64, 0))
    spread = [max(lengths[one] for one in batch) - min(lengths[one] for one in batch) for batch in first]
    assert sum(spread) / len(spread) < (max(lengths) - min(lengths)) / 4


def test_the_loss_is_that_of_torch(tmp_path: Path) -> None:
    task = Translation(TranslationOptions(out=str(tmp_path)))
    torch.manual_seed(0)
    model = task.model()
    batch = task.batch(task.splits["test"][:9], training=True)
    loss, count = task.loss(model, batch)
    scores: Tensor = model(source=batch["source"], target=batch["target"])
    kept = {"ignore_index": 0, "label_smoothing": 0.1, "reduction": "sum"}
    torch.testing.assert_close(loss, nn.functional.cross_entropy(scores.mT, batch["labels"], **kept))
    assert count == int((batch["labels"] != 0).sum())


LIMIT = 4
WORDS = (4, 5)  # what can be said before END


def chain(seed: int, rows: int = 3) -> tuple[Tensor, State]:
    """Log probabilities of each word after each other word (rows, 6, 6), of a model that forgets all but the last."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(rows, 6, 6, generator=generator, dtype=torch.float64)
    return scores, (scores, torch.zeros(rows, 1))


def step(words: Tensor, state: State) -> tuple[Tensor, State]:
    scores, count = state
    assert (count.squeeze(1) == words.shape[1] - 1).all(), "the state does not belong to the words"
    return scores[torch.arange(len(words)), words[:, -1]], (scores, count + 1)


def log_probability(scores: Tensor, said: tuple[int, ...], limit: int) -> float:
    """Of some words and END, when nothing but END is said at the limit."""
    allowed = torch.tensor([END, *WORDS])
    found, last = 0.0, BEGIN
    for place, word in enumerate((*said, END)):
        if place + 1 < limit:
            found += float(scores[last, word] - scores[last, allowed].logsumexp(0))
        last = word
    return found


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_a_beam_that_holds_everything_finds_the_best_and_one_word_the_likeliest(power: float) -> None:
    scores, state = chain(0)
    limits = torch.tensor([2, 3, LIMIT])
    found, greedy = (search(step, state, limits, beam=beam, length_power=power) for beam in (16, 1))
    for own, limit, answer, other in zip(scores, limits.tolist(), found, greedy, strict=True):
        everything = [said for length in range(limit) for said in itertools.product(WORDS, repeat=length)]
        best = max(everything, key=lambda said: log_probability(own, said, limit) / (len(said) + 1) ** power)
        assert tuple(answer.words) == best
        assert answer.log_probability == pytest.approx(log_probability(own, best, limit))
        said, last = [], BEGIN
        while len(said) < limit - 1:
            last = max((END, *WORDS), key=lambda word: own[last, word])
            if last == END:
                break
            said.append(last)
        assert other.words == said
        assert other.log_probability == pytest.approx(log_probability(own, tuple(said), limit))
    assert decoding.SearchOptions(beam=3).arguments()["beam"] == 3
    wrongs: list[dict[str, Any]] = [{"beam": 0}, {"temperature": -1.0}, {"beam": 2, "temperature": 1.0}]
    refuses(
        lambda **told: decoding.SearchOptions(**told).arguments(), [(one, "temperature") for one in wrongs]
    )


def test_drawn_words_are_as_frequent_as_they_are_likely() -> None:
    scores, _ = chain(3, rows=1)
    many = scores.expand(4000, -1, -1).contiguous()
    torch.manual_seed(0)
    limits = torch.full((4000,), LIMIT)
    found = search(step, (many, torch.zeros(4000, 1)), limits, temperature=2.0)
    expected = (scores[0, BEGIN, [END, *WORDS]] / 2).softmax(0)
    first = torch.tensor([one.words[0] if one.words else END for one in found])
    shares = torch.stack([(first == word).double().mean() for word in (END, *WORDS)])
    torch.testing.assert_close(shares, expected, atol=0.04, rtol=0)
    cold = search(step, (many[:5], torch.zeros(5, 1)), limits[:5], temperature=1e-4)
    assert cold[0].words == search(step, (scores, torch.zeros(1, 1)), limits[:1])[0].words


def test_attention_is_that_of_the_functional_form_and_can_be_watched() -> None:
    torch.manual_seed(0)
    states, z = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 3, 8, dtype=torch.float64)
    mask = torch.ones(2, 1, 1, 5, dtype=torch.bool)
    mask[1, ..., 3:] = False
    layer = Attention("exact", 0.7)
    h, weights = layer(states, z, mask, scale=0.5, need_weights=True)
    asked = {"log_preference": mask, "alpha": 0.7, "scale": 0.5, "estimator": "exact"}
    expected = attention_weights(z[:, None], states[:, None], **asked)[:, 0]
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(h, expected @ states)


def test_the_measures_of_swaps_are_means_of_real_pieces() -> None:
    scores = torch.zeros(2, 3, 8)
    scores[0, 0, 5] = 50.0
    labels = torch.tensor([[5, 6, 0], [7, 4, 3]])
    found = {name: measure(scores) for name, measure in decoding.measures(labels).items()}
    torch.testing.assert_close(found["loss"], torch.tensor([math.log(8) / 2, math.log(8)]))
    torch.testing.assert_close(found["score"], torch.tensor([0.5, 0.0]))
