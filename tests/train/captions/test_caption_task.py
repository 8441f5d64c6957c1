"""Captions: what is trained, validated and tested on, what a step descends, and that every option counts."""

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
from fenchel.data.captioned_images import CaptionedImages, as_input, parted
from fenchel.errors import FenchelError
from fenchel.models import Captioner
from fenchel.train import CaptionOptions, TrainResult, load_model, train
from fenchel.train.bleu import BLEU_SUMS, bleu_of_sums, bleu_signature, bleu_sums
from fenchel.train.captions import Captioning
from fenchel.train.captions.objective import cross_entropies, doubly_stochastic_penalty
from fenchel.train.captions.task import NEVER_SAID
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.files import read_file
from fenchel.train.workers import Workers
from tests.train.captions.small_captions import CAPTIONS, captioned, captions, options, write_coco_mini
from tests.train.small_trainings import Recorder

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")


def task(rank: int = 0, count: int = 1, data: CaptionedImages | None = None, **changes: object) -> Captioning:
    return Captioning(options(**changes).resolved(), data or captions(), Workers(rank, count, CPU))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    return {
        attention: captioned(tmp_path_factory.mktemp(attention), attention=attention, epochs=1)
        for attention in ("soft", "hard", "mean")
    }


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a captioner that knows its images by heart."""
    folder = tmp_path_factory.mktemp("fitted")
    captioned(folder, epochs=60, held_out=0.0, coverage=0.0, width=16, size=12, evaluate_every=20)
    return folder


def test_it_learns_by_heart_and_says_that_it_does(fitted):
    result = TrainResult.read(fitted)
    assert result.headline is not None
    assert result.headline < 0.6
    assert (result.last("test_bleu") or 0) > 80
    written = json.loads((fitted / "results.json").read_text())
    assert (written["task"], written["finished"]) == ("captions", True)
    assert written["data"]["train_images"] == written["data"]["test_images"] == 12
    assert written["data"]["train_captions"] == 24
    assert any("what was measured is memory" in note for note in written["notes"])
    assert any(bleu_signature(lower=True, references=2) in note for note in written["notes"])
    assert result.description["model"]["files"].keys() == {"tokenizer.json"}


def test_the_saved_model_and_tokenizer_reproduce_the_test(fitted):
    import sacrebleu

    model, result = load_model(fitted), TrainResult.read(fitted)
    assert isinstance(model, Captioner)
    subwords = Subwords(read_file(fitted, "tokenizer.json", result.description["model"]["files"]))
    data = captions(12)
    begin, end = subwords.number("[BOS]"), subwords.number("[EOS]")
    found = model.captions(as_input(data.images, 8), begin=begin, end=end, longest=40, never=NEVER_SAID)
    said = [subwords.decoded(one.words) for one in found]
    assert said[0] in ("the top left is red.", "red, top left")
    references = [list(one) for one in zip(*data.captions, strict=True)]
    score = sacrebleu.corpus_bleu(said, references, lowercase=True).score
    assert result.last("test_bleu") == pytest.approx(score, abs=1e-6)
    nats, words = 0.0, 0
    for image, texts in zip(data.images, data.captions, strict=True):
        for row in subwords.encoded(texts):
            pieces = torch.tensor([[begin, *row, end]])
            with torch.no_grad():
                logits = model(images=as_input([image], 8), words=pieces[:, :-1])["logits"]
            nats += cross_entropies(logits, pieces[:, 1:]).sum().item()
            words += len(row) + 1
    assert result.headline == pytest.approx(nats / words, rel=1e-4)


def test_bleu_out_of_sums_is_sacrebleu_of_all():
    import sacrebleu

    said = ["a dog runs on the grass .", "two men sit", "a plate of food on a table"]
    wanted = [
        ["A dog runs on grass .", "the dog"],
        ["Two men sit down", "men"],
        ["food on a table", "a plate"],
    ]
    sums = dict.fromkeys(BLEU_SUMS, 0.0)
    for one, texts in zip(said, wanted, strict=True):
        for name, value in bleu_sums([one], [texts], lower=True).items():
            sums[name] += value
    references = [list(texts) for texts in zip(*wanted, strict=True)]
    expected = sacrebleu.corpus_bleu(said, references, lowercase=True)
    assert bleu_of_sums(sums) == pytest.approx(expected.score)
    assert bleu_of_sums(bleu_sums(said, wanted)) != pytest.approx(expected.score)
    with pytest.raises(FenchelError, match="expected a list that is not empty"):
        bleu_sums(said, [["a"], [], ["b"]])


def test_whole_images_are_held_out_the_same_for_every_seed():
    one, other = task(seed=0), task(seed=1)
    assert one.fingerprints() == other.fingerprints()
    parts = parted(captions(), 0.1)
    assert {name: len(part) for name, part in parts.items()} == {"train": 20, "validation": 2, "test": 2}
    ids = [one for part in parts.values() for one in part.ids]
    assert sorted(ids) == sorted(captions().ids)
    fewer = task(train_images=10)._splits
    assert {name: len(part) for name, part in fewer.items()} == {"train": 10, "validation": 2, "test": 2}
    assert all(fewer[name].ids == parts[name].ids for name in ("validation", "test"))
    assert {len(part) for part in parted(captions(), 0.0, 5).values()} == {5}
    held = [text for name in ("validation", "test") for texts in parts[name].captions for text in texts]
    unseen = set(" ".join(held).split()) - set(" ".join(sum(parts["train"].captions, ())).split())
    assert all(piece not in one.tokenizer.text for piece in unseen)


def test_processes_share_the_batch_that_one_would_have_and_the_images():
    whole = list(task().batches(3, 0))
    shares = [list(task(rank, 2).batches(3, 0)) for rank in range(2)]
    assert len(whole) == task().steps_per_epoch == 5
    for batch, *parts in zip(whole, *shares, strict=True):
        assert (
            batch.step_words == parts[0].step_words == parts[1].step_words == int((batch.targets != 0).sum())
        )
        rows = [[number for number in row if number] for row in batch.words.tolist()]
        assert rows == [[number for number in row if number] for part in parts for row in part.words.tolist()]
    counted = [sum(batch.count for batch in task(rank, 2).examples("test")) for rank in range(2)]
    assert sum(counted) == 4
    seen = [batch.references for rank in range(2) for batch in task(rank, 2).examples("test")]
    assert sorted(texts for references in seen for texts in (references or {}).values()) == sorted(
        parted(captions(), 0.1)["test"].captions
    )


@pytest.mark.parametrize("attention", ["soft", "hard"])
def test_shares_of_a_step_average_to_its_gradient(attention):
    model: Any = task(attention=attention).model()
    wanted = task(attention=attention)
    (batch,) = list(wanted.batches(0, 4))
    if attention == "hard":  # whose average is of all processes, which there are none of here
        model.baseline.begun.fill_(1.0)
        model.baseline.average.fill_(-2.0)
        model.baseline.decay = 1.0
    gradient = torch.autograd.grad(
        wanted.loss(wanted.predicted(model, batch), batch).mean, model.head.weight
    )[0]
    shares, sums = [], 0.0
    for rank in range(2):
        of = task(rank, 2, attention=attention)
        (part,) = list(of.batches(0, 4))
        loss = of.loss(of.predicted(model, part), part)
        shares.append(torch.autograd.grad(loss.mean, model.head.weight)[0])
        sums += loss.sums["loss"].item()
    torch.testing.assert_close(sum(shares) / 2, gradient)
    assert sums == pytest.approx(
        wanted.loss(wanted.predicted(model, batch), batch).sums["loss"].item(), rel=1e-5
    )


def test_a_step_descends_cross_entropy_and_penalty_a_word():
    of = task(coverage=0.5)
    model = of.model()
    (batch,) = list(of.batches(0, 4))
    said = of.predicted(model, batch)
    words = int((batch.targets != 0).sum())
    nats = cross_entropies(said["logits"], batch.targets).sum()
    penalty = doubly_stochastic_penalty(said["weights"], batch.targets != 0).sum()
    loss = of.loss(said, batch)
    torch.testing.assert_close(loss.mean, (nats + 0.5 * penalty) / words)
    torch.testing.assert_close(loss.sums["loss"], nats.detach() / words * batch.count)


@pytest.mark.parametrize(
    ("attention", "changes"),
    [
        ("soft", {"estimator": "exact"}),
        ("soft", {"estimator": "second_order"}),
        ("soft", {"preference": "context"}),
        ("soft", {"alpha": 8.0}),
        ("soft", {"closeness": "sparsemax"}),
        ("soft", {"gate": False}),
        ("soft", {"coverage": 0.0}),
        ("soft", {"train_images": 16}),
        ("soft", {"held_out": 0.2}),
        ("soft", {"image_size": 16}),
        ("soft", {"depth": 2}),
        ("soft", {"words": 30}),
        ("soft", {"longest": 3}),
        ("soft", {"dropout": 0.5}),
        ("hard", {"gradient": "straight_through"}),
        ("hard", {"entropy": 1.0}),
        ("hard", {"baseline_decay": 0.0}),
        ("hard", {"estimator": "exact"}),
        ("mean", {"gate": False}),
        ("mean", {"seed": 1}),
    ],
    ids=str,
)
def test_each_option_changes_the_numbers(tmp_path, plain, attention, changes):
    result = captioned(tmp_path, attention=attention, epochs=1, **changes)
    ours, theirs = (
        [(epoch["train_loss"], epoch["validation_loss"]) for epoch in one.epochs]
        for one in (result, plain[attention])
    )
    assert ours != theirs


def test_captions_that_were_cut_are_counted(tmp_path):
    result = captioned(tmp_path, longest=3, epochs=1)
    assert any("longer than 3 pieces were cut there: " in note for note in result.description["notes"])


@pytest.mark.parametrize("changes", [{"attention": "hard"}, {"preference": "context"}], ids=str)
def test_an_interrupted_training_goes_on_bit_for_bit(tmp_path, changes):
    captioned(tmp_path / "a", **changes)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        captioned(tmp_path / "b", observer=Recorder(6, interrupt), **changes)
    captioned(tmp_path / "b", resume=True, **changes)
    one, other = Checkpoint.read(tmp_path / "a"), Checkpoint.read(tmp_path / "b")
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())
    if "attention" in changes:
        assert one.weights["baseline.average"] < 0


def test_a_killed_training_goes_on_bit_for_bit(tmp_path):
    captioned(tmp_path / "a", attention="hard")
    program = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from tests.train.captions.small_captions import captioned\n"
        "from tests.train.small_trainings import Recorder\n"
        "kill = lambda: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"captioned(Path({str(tmp_path / 'b')!r}), attention='hard', checkpoint_seconds=0, "
        "observer=Recorder(7, kill))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "src")))}
    done = subprocess.run([sys.executable, "-c", program], env=environment, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    captioned(tmp_path / "b", attention="hard", resume=True)
    one, other = Checkpoint.read(tmp_path / "a"), Checkpoint.read(tmp_path / "b")
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention": "loud"}, "attention is 'loud'; expected one of soft, hard, mean"),
        ({"attention": "hard", "coverage": 1.0}, "coverage is 1.0 for attention that is 'hard'"),
        (
            {"attention": "hard", "closeness": "sparsemax"},
            "closeness is 'tsallis:2' for attention that is 'hard'",
        ),
        ({"attention": "mean", "estimator": "exact"}, "estimator is 'exact' for attention that is 'mean'"),
        (
            {"attention": "mean", "preference": "context"},
            "preference is 'context' for attention that is 'mean'",
        ),
        ({"attention": "mean", "alpha": 2.0}, "alpha is 2.0 for attention that is 'mean'"),
        ({"gradient": "reinforce"}, "gradient is 'reinforce' for attention that is 'soft'"),
        ({"entropy": 0.1}, "entropy is 0.1 for attention that is 'soft'"),
        (
            {"attention": "hard", "gradient": "straight_through", "baseline_decay": 0.5},
            "baseline decay is 0.5 for attention that is 'straight_through'",
        ),
        ({"preference": "position"}, "preference is 'position'; expected one of uniform, context"),
        ({"closeness": "near"}, "closeness is 'near'; expected tsallis"),
        ({"image_size": 6, "depth": 2}, "image size is 6 and depth is 2"),
        ({"held_out": 0.5}, "held out is 0.5; expected"),
        ({"entropy": -1.0, "attention": "hard"}, "entropy is -1.0; expected"),
    ],
    ids=str,
)
def test_wrong_options_are_named(changes, said):
    with pytest.raises(FenchelError, match=said):
        options(**changes)


def test_data_that_do_not_do_are_named():
    with pytest.raises(FenchelError, match="21 images to train on were asked for and there are 20"):
        task(train_images=21)
    with pytest.raises(FenchelError, match="leave none to train on"):
        task(data=captions().taken(range(2)))
    with pytest.raises(FenchelError, match="data is 3; expected CaptionedImages"):
        Captioning(options().resolved(), 3, Workers(0, 1, CPU))  # pyright: ignore[reportArgumentType]
    with pytest.raises(FenchelError, match="batch size is 8 for 3 processes"):
        task(0, 3)


def test_options_are_written_and_read():
    given = options(attention="hard", gradient="straight_through")
    assert type(given).from_json(given.to_json()) == given
    assert given.resolved().model_title == "captioner (hard by straight_through, first_order)"
    assert options(closeness="softmax").closeness is None
    assert CAPTIONS["data"] == given.data


def test_what_is_said_of_single_captions_adds_up(tmp_path):
    of = task()
    model = of.model().eval()
    (batch,) = of.examples("test")
    with torch.no_grad():
        said = of.predicted(model, batch)
    judged, sums = of.judged(said, batch), of.measured(said, batch)
    words = (batch.targets != 0).sum(1)
    torch.testing.assert_close((judged["loss"] * words).sum(), sums["nats"])
    assert judged["score"].shape == (batch.count,)
    assert bool(((judged["score"] >= 0) & (judged["score"] <= 1)).all())
    some = batch.taken(torch.tensor([2, 0]))
    assert some.words.tolist() == [batch.words[2].tolist(), batch.words[0].tolist()]


def test_a_training_can_be_audited_and_swapped(tmp_path, monkeypatch):
    from fenchel.auditing import audit
    from fenchel.swap import swap

    write_coco_mini(tmp_path / "captions_coco_mini")
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    given = {**CAPTIONS, "data": "coco-mini", "epochs": 1, "preference": "context"}
    train(CaptionOptions(**given), tmp_path / "run", device="cpu")
    report = audit(str(tmp_path / "run"))
    (batch,) = Captioning(
        CaptionOptions(**given).resolved(), Captioning.read("coco-mini"), Workers(0, 1, CPU)
    ).examples("test")
    assert report.heads[0]["queries"] == int((batch.words != 0).sum())
    swapped = swap(str(tmp_path / "run"), bootstrap=100)
    assert "cross-entropy a piece of a word" in str((swapped.manifest, swapped.finding, swapped.results))
