"""The translator learns a toy language by attention, and says of itself what can be computed anew."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from sacrebleu.metrics.bleu import BLEU
from torch import Tensor, nn

import common
import decoding
import translation
from decoding import BEGIN, END, State, search, weights_of
from fenchel.errors import InputError
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
    said = [one["translation"] for one in records]
    expected = BLEU().corpus_score(said, [[one["reference"] for one in records]])
    assert metrics_of(run)["bleu"] == pytest.approx(expected.score, rel=1e-6)


def test_batches_for_audits_have_the_loss_of_the_test(run: Path) -> None:
    losses = check_run(translation, run, ["cross"], space="key")["loss"]
    _, batches = translation.load(run)
    counts = torch.cat([batch["counted_decoder"].sum(1) for batch in batches])
    assert float((losses * counts).sum() / counts.sum()) == pytest.approx(metrics_of(run)["loss"], rel=1e-5)
    for batch in batches:
        for name, side in (("source", "tokens"), ("target", "tokens_decoder")):
            for row, texts in zip(batch["inputs"][name], batch[side], strict=True):
                assert len(texts) == int((row != 0).sum())


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
    assert [len(task.splits[name]) for name in ("train", "validation", "test")] == [16, 2, 2]
    assert task.splits["test"][0][:2] == ("un chien court", "un cane corre")
    assert task.tokenizers[1].decode(task.splits["test"][0].labels) == "un cane corre"


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
def test_a_beam_that_holds_everything_finds_the_best(power: float) -> None:
    scores, state = chain(0)
    limits = torch.tensor([2, 3, LIMIT])
    found = search(step, state, limits, beam=16, length_power=power)
    for own, limit, answer in zip(scores, limits.tolist(), found, strict=True):
        everything = [said for length in range(limit) for said in itertools.product(WORDS, repeat=length)]
        best = max(everything, key=lambda said: log_probability(own, said, limit) / (len(said) + 1) ** power)
        assert tuple(answer.words) == best
        assert answer.log_probability == pytest.approx(log_probability(own, best, limit))
    assert decoding.SearchOptions(beam=3).arguments()["beam"] == 3
    wrongs: list[dict[str, Any]] = [{"beam": 0}, {"temperature": -1.0}, {"beam": 2, "temperature": 1.0}]
    refuses(
        lambda **told: decoding.SearchOptions(**told).arguments(), [(one, "temperature") for one in wrongs]
    )
