"""A checkpoint: comes back as it was, and is refused when it is damaged, of another model or another training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from fenchel.errors import InputError
from fenchel.storage import read_tensors, write_tensors
from fenchel.train.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FORM, Checkpoint, differences
from fenchel.train.optimiser import adamw
from fenchel.train.state import EpochSums, TrainState

MODEL = {"name": "vit", "configuration": {}}
EPOCH = {
    "epoch": 1,
    "step": 2,
    "learning_rate": 0.1,
    "train_loss": 1.5,
    "train_accuracy": 0.25,
    "test_loss": None,
    "test_accuracy": 0.5,
    "seconds": 1.0,
    "images_per_second": 8.0,
}


def stepped(seed: int = 0, width: int = 3) -> tuple[nn.Module, torch.optim.Optimizer]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(width, 4), nn.LayerNorm(4))
    optimiser = adamw(model, 0.1, 0.1)
    for _ in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimiser.step()
    return model, optimiser


def saved(directory: Path) -> Checkpoint:
    state = TrainState(step=3, sums=EpochSums(0.1, 2.0, 8.0, 0.5), epochs=[EPOCH])
    checkpoint = Checkpoint.of({"seed": 0}, MODEL, state, *stepped())
    checkpoint.write(directory)
    return checkpoint


def test_it_comes_back_as_it_was(tmp_path):
    written = saved(tmp_path)
    read = Checkpoint.read(tmp_path)
    assert (read.configuration, read.model, read.state) == ({"seed": 0}, MODEL, written.state)
    model, optimiser = stepped(seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    read.restore(model, optimiser)
    assert not all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    again = Checkpoint.of({}, {}, TrainState(), model, optimiser)
    assert again.tensors.keys() == written.tensors.keys()
    assert all(torch.equal(again.tensors[name], value) for name, value in written.tensors.items())
    assert any(name.endswith("exp_avg_sq") for name in written.tensors)


def test_a_restored_optimiser_takes_the_same_step(tmp_path):
    model, optimiser = stepped()
    Checkpoint.of({}, MODEL, TrainState(), model, optimiser).write(tmp_path)
    other, restored = stepped(seed=1)
    Checkpoint.read(tmp_path).restore(other, restored)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        ours.grad = torch.ones_like(ours)
        theirs.grad = torch.ones_like(theirs)
    optimiser.step()
    restored.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_one_changed_bit_is_noticed(tmp_path):
    saved(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(
        InputError, match=r"checkpoint\.safetensors is damaged or was changed .*start anew with --over"
    ):
        Checkpoint.read(tmp_path)


def test_a_cut_file_and_a_missing_one_are_named(tmp_path):
    with pytest.raises(
        InputError, match=r"checkpoint\.safetensors cannot be read: there is no such file\. .* start anew"
    ):
        Checkpoint.read(tmp_path)
    saved(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        InputError, match=r"checkpoint\.safetensors is damaged or was changed .* start anew with --over"
    ):
        Checkpoint.read(tmp_path)


def test_another_version_is_refused(tmp_path):
    saved(tmp_path)
    tensors, description = read_tensors(tmp_path / CHECKPOINT_FILE, CHECKPOINT_FORM)
    write_tensors(tmp_path / CHECKPOINT_FILE, replace(CHECKPOINT_FORM, version=99), tensors, description)
    with pytest.raises(InputError, match="has schema 99 of a training checkpoint, of a later version"):
        Checkpoint.read(tmp_path)


def test_weights_of_another_shape_are_refused(tmp_path):
    checkpoint = saved(tmp_path)
    with pytest.raises(
        InputError, match=r"does not fit .* 0.weight is of shape \(4, 3\); expected \(4, 5\)"
    ) as caught:
        checkpoint.restore(*stepped(width=5))
    assert "\n" not in str(caught.value)


def test_what_is_not_finite_is_found(tmp_path):
    model, optimiser = stepped()
    assert Checkpoint.of({}, {}, TrainState(), model, optimiser).first_not_finite() is None
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    assert Checkpoint.of({}, {}, TrainState(), model, optimiser).first_not_finite() == "model/0.weight"


def test_differences_name_both_sides():
    assert differences({"a_b": 1, "c": 2}, {"a_b": 1, "c": 3, "d": None}) == ["c: 2 there, 3 asked for"]
    assert differences({"a_b": 1}, {"a_b": 2}) == ["a b: 1 there, 2 asked for"]
