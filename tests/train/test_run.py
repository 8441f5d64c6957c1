"""A training from options to results: every option changes the numbers, and what cannot be trained is said."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch

from fenchel.data import ImageDataset
from fenchel.errors import ConvergenceError, InputError, OutputError
from fenchel.train import TrainOptions, TrainResult, load_model, train
from fenchel.train.checkpoint import CHECKPOINT_FILE, Checkpoint
from fenchel.train.task import StepLoss
from tests.train.small_trainings import Recorder, images, options, trained, weights


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrainResult]:
    """Each model trained with nothing but what makes it small."""
    return {model: trained(tmp_path_factory.mktemp(model), model=model) for model in ("vit", "ot-vit")}


@pytest.mark.parametrize("model", ["vit", "ot-vit"])
def test_it_learns_and_writes_what_came_of_it(tmp_path, model):
    observer = Recorder()
    result = trained(tmp_path, model=model, epochs=12, size=100, observer=observer)
    assert result.finished
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.5
    assert result.epochs[-1]["train_loss"] < 0.7 * result.epochs[0]["train_loss"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "checkpoint.safetensors",
        "curves.png",
        "results.json",
    ]
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert TrainResult.read(tmp_path) == result
    written = json.loads((tmp_path / "results.json").read_text())
    assert written["finished"] is True
    assert written["test_accuracy"] == result.test_accuracy == result.epochs[-1]["test_accuracy"]
    assert written["best_test_accuracy"] == max(epoch["test_accuracy"] for epoch in result.epochs)
    assert written["options"] == options(model=model, epochs=12).resolved().to_json()
    assert written["machine"]["processes"] == 1
    assert written["model"]["parameters"] == result.parameters
    assert bool(written["notes"]) == (model == "ot-vit")
    assert observer.told == ["started", *(["advanced"] * 11 + ["epoch"]) * 12, "finished"]
    assert [record["step"] for record in observer.records] == [12 * epoch for epoch in range(1, 13)]


def test_results_leave_nothing_open(tmp_path):
    result = trained(tmp_path, model="ot-vit", precision="auto")
    assert [name for name, value in result.options.to_json().items() if value is None] == [
        "train_images",
        "test_images",
    ]
    assert result.options.precision == result.description["machine"]["precision"] != "auto"
    assert isinstance(result.options, TrainOptions)
    assert result.options.gamma == 4.0
    assert trained(tmp_path, model="ot-vit", precision="auto", gamma=4.0, resume=True) == result


def test_a_folder_without_a_model_is_said(tmp_path):
    with pytest.raises(InputError, match=r"holds no trained model \(checkpoint\.safetensors is not there\)"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 32}, r"tensor .* is of shape .*; expected"),
        ({"width": 1 << 16, "mlp_width": 1 << 18}, r"tensor .* is of shape .*; expected"),
        ({"depth": 1}, r"tensor .* is there; expected no tensor of that name"),
        ({"heads": "two"}, ""),
        ({"beauty": 1}, "beauty"),
    ],
)
def test_a_model_that_is_not_that_of_its_weights_is_refused_before_memory_is_taken(
    tmp_path, changes, message
):
    trained(tmp_path, epochs=1)
    checkpoint = Checkpoint.read(tmp_path)
    checkpoint.model["configuration"].update(changes)
    checkpoint.write(tmp_path)
    with pytest.raises(InputError, match=f"describes another model than its weights are of: .*{message}"):
        load_model(tmp_path)


def test_test_accuracy_is_that_of_the_saved_model(tmp_path):
    result = trained(tmp_path, epochs=4)
    model = load_model(tmp_path)
    assert not model.training
    data = images(20, seed=1)
    pixels = (data.images.float() / 255 - 0.13) / 0.15
    with torch.no_grad():
        logits = model(pixels)
    assert (logits.argmax(-1) == data.labels).float().mean().item() == pytest.approx(result.test_accuracy)
    loss = torch.nn.functional.cross_entropy(logits, data.labels).item()
    assert loss == pytest.approx(result.test_loss, rel=1e-4)


def test_the_same_seed_gives_the_same_weights_and_leaves_torchs_generator_alone(tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    trained(tmp_path / "a", model="ot-vit")
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    trained(tmp_path / "b", model="ot-vit")
    ours, theirs = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("vit", {"seed": 1}),
        ("vit", {"recipe": "strong"}),
        ("vit", {"weight_decay": 0.5}),
        ("vit", {"warmup_fraction": 0.5}),
        ("vit", {"label_smoothing": 0.1}),
        ("vit", {"gradient_clip": 0.01}),
        ("vit", {"flip": True}),
        ("vit", {"precision": "bfloat16"}),
        ("vit", {"learning_rate": 1e-3}),
        ("vit", {"batch_size": 4}),
        ("vit", {"width": 32}),
        ("vit", {"depth": 1}),
        ("vit", {"heads": 4}),
        ("vit", {"mlp_width": 32}),
        ("vit", {"dropout": 0.0}),
        ("vit", {"patch_size": 2}),
        ("vit", {"train_images": 20}),
        ("vit", {"test_images": 10}),
        ("vit", {"extra_preference": "shared"}),
        ("ot-vit", {"extra_preference": "shared"}),
        ("ot-vit", {"extra_preference": "none"}),
        ("ot-vit", {"join_probability": 1.0}),
        ("ot-vit", {"gamma": 0.5}),
        ("ot-vit", {"alpha": 4.0}),
        ("ot-vit", {"cost": "squared_euclidean"}),
    ],
    ids=str,
)
def test_each_option_changes_the_numbers(tmp_path, plain, model, changes):
    result = trained(tmp_path, model=model, **changes)
    measures = ("train_loss", "test_loss")
    ours = [[epoch[name] for name in measures] for epoch in result.epochs]
    theirs = [[epoch[name] for name in measures] for epoch in plain[model].epochs]
    assert ours != theirs
    assert all(math.isfinite(value) for row in ours for value in row)


def test_tests_are_as_rare_as_asked_for_and_there_is_one_at_the_end(tmp_path):
    result = trained(tmp_path, epochs=5, evaluate_every=2)
    assert [epoch["epoch"] for epoch in result.epochs if epoch["test_accuracy"] is not None] == [2, 4, 5]


def test_an_odd_image_size_and_one_image_of_a_class_are_said(tmp_path):
    with pytest.raises(ValueError, match=r"patch.size"):
        trained(tmp_path, patch_size=3)
    data = images(39)
    alone = ImageDataset(
        data.images[:11], data.labels[:11], data.class_names, "small", mean=data.mean, std=data.std
    )
    with pytest.raises(InputError, match="another image of its class is wanted"):
        train(options(), tmp_path, data=(alone, images(20)))
    assert not (tmp_path / CHECKPOINT_FILE).exists()


def test_splits_that_do_not_belong_together_are_refused(tmp_path):
    wide = images(20, size=12)
    with pytest.raises(InputError, match=r"differ in their shape, \(1, 8, 8\) and \(1, 12, 12\)"):
        train(options(), tmp_path, data=(images(), wide))
    data = images()
    tall = ImageDataset(data.images[:, :, :4], data.labels, data.class_names, "tall", mean=(0.1,), std=(0.1,))
    with pytest.raises(InputError, match="images are 4 x 8 pixels; expected square ones"):
        train(options(), tmp_path, data=(tall, tall))


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu?", r"device is 'gpu\?', which torch does not know"),
        ("cuda:99", r"device is 'cuda:99', which is not here"),
    ],
)
def test_unknown_devices_are_named(tmp_path, device, message):
    with pytest.raises(InputError, match=message):
        trained(tmp_path, device=device)


def test_a_loss_that_is_no_number_ends_the_training_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    from fenchel.train.vision import ImageClassification

    calls = 0
    plain_loss = ImageClassification.loss

    def breaking(self, predicted, batch):
        nonlocal calls
        calls += 1
        loss = plain_loss(self, predicted, batch)
        if calls != 4:
            return loss
        return StepLoss(loss.mean * torch.nan, {name: value * torch.nan for name, value in loss.sums.items()})

    monkeypatch.setattr(ImageClassification, "loss", breaking)
    with pytest.raises(
        ConvergenceError, match=r"training loss became nan at step 4 of 10 .*Lower --learning-rate"
    ):
        trained(tmp_path, checkpoint_seconds=0)
    saved = weights(tmp_path)
    assert all(value.isfinite().all() for value in saved.values())
    monkeypatch.undo()
    assert trained(tmp_path, resume=True).finished


def test_a_training_that_diverges_before_a_checkpoint_is_due_has_one_as_it_says(tmp_path):
    with pytest.raises(ConvergenceError, match=r"The last checkpoint in .* is from before and intact"):
        trained(tmp_path, checkpoint_seconds=1e9, learning_rate=1e38, epochs=20)
    assert all(value.isfinite().all() for value in weights(tmp_path).values())


def test_a_learning_rate_that_blows_up_never_reaches_the_checkpoint(tmp_path):
    with pytest.raises(ConvergenceError, match="--learning-rate"):
        trained(tmp_path, checkpoint_seconds=0, learning_rate=1e38, epochs=20)
    assert all(value.isfinite().all() for value in weights(tmp_path).values())


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    fsync, calls = os.fsync, 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise OSError(28, os.strerror(28))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"checkpoint\.safetensors: the disk is full\. Free some space"):
        trained(tmp_path, checkpoint_seconds=0)
    monkeypatch.undo()
    trained(tmp_path / "whole")
    resumed = trained(tmp_path, resume=True)
    assert resumed.sessions[1]["step"] == 3
    ours, theirs = weights(tmp_path), weights(tmp_path / "whole")
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_too_little_room_is_said_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr("fenchel.train.run._BYTES_PER_PARAMETER", 1 << 60)
    with pytest.raises(OutputError, match="bytes free and at least"):
        trained(tmp_path)


def test_results_that_are_none_are_refused(tmp_path: Path):
    with pytest.raises(InputError, match=r"results\.json cannot be read: No such file"):
        TrainResult.read(tmp_path)
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(
        InputError, match=r"results\.json is no results file of a training that fenchel wrote"
    ):
        TrainResult.read(tmp_path)


@pytest.mark.skipif(
    "FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA names no folder with Fashion-MNIST"
)
@pytest.mark.parametrize("model", ["vit", "ot-vit"])
def test_fashion_mnist_is_learnt(tmp_path, model):
    asked = options(
        data="fashion-mnist", model=model, epochs=8, batch_size=32, train_images=1000, test_images=500,
        width=32, mlp_width=32, patch_size=7, dropout=0.0,
    )  # fmt: skip
    result = train(asked, tmp_path, device="cpu")
    assert result.test_accuracy is not None
    assert result.test_accuracy > 0.6, result.epochs
    assert result.description["data"]["train_images"] == 1000
    assert result.description["data"]["note"] == ""
