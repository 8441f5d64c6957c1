"""A checkpoint: comes back as it was, and is refused when it is damaged, of another model or another training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fenchel.auditing.state import STATE_FORM
from fenchel.errors import InputError
from fenchel.storage import read_tensors, write_tensors
from fenchel.train.checkpoint import CHECKPOINT_FILE, CHECKPOINT_FORM, Checkpoint, trained_task
from fenchel.train.optimiser import adamw
from fenchel.train.state import EpochSums, TrainState
from tests.damage import refuses, refuses_every_damage

Change = Callable[[dict[str, torch.Tensor], Any], None]

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
    state = TrainState(step=3, sums=EpochSums(8.0, 0.5, {"loss": 0.1, "accuracy": 2.0}), epochs=[EPOCH])
    checkpoint = Checkpoint.of("images", {"seed": 0}, MODEL, state, *stepped())
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
    again = Checkpoint.of("images", {}, {}, TrainState(), model, optimiser)
    assert again.tensors.keys() == written.tensors.keys()
    assert all(torch.equal(again.tensors[name], value) for name, value in written.tensors.items())
    assert any(name.endswith("exp_avg_sq") for name in written.tensors)


def test_a_restored_optimiser_takes_the_same_step(tmp_path):
    model, optimiser = stepped()
    Checkpoint.of("images", {}, MODEL, TrainState(), model, optimiser).write(tmp_path)
    other, restored = stepped(seed=1)
    Checkpoint.read(tmp_path).restore(other, restored)
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        ours.grad = torch.ones_like(ours)
        theirs.grad = torch.ones_like(theirs)
    optimiser.step()
    restored.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def with_one_bit_changed(folder):
    saved(folder)
    path = folder / CHECKPOINT_FILE
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(bytes(content))


def test_one_changed_bit_is_noticed(tmp_path):
    with_one_bit_changed(tmp_path)
    with pytest.raises(
        InputError,
        match=r"checkpoint\.safetensors is damaged or was changed .*train anew with fenchel train --over",
    ):
        Checkpoint.read(tmp_path)


def test_its_task_is_known_without_its_weights(tmp_path):
    with_one_bit_changed(tmp_path)
    assert trained_task(tmp_path) == "images"
    replace(saved(tmp_path), task="weather").write(tmp_path)
    with pytest.raises(InputError, match=r"checkpoint\.safetensors is of the task 'weather'"):
        trained_task(tmp_path)


def test_a_cut_file_and_a_missing_one_are_named(tmp_path):
    with pytest.raises(
        InputError, match=r"checkpoint\.safetensors cannot be read: No such file or directory\. .* train anew"
    ):
        Checkpoint.read(tmp_path)
    saved(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(
        InputError,
        match=r"checkpoint\.safetensors is damaged or was changed .* train anew with fenchel train --over",
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


def test_any_damage_is_refused(tmp_path):
    saved(tmp_path)
    refuses_every_damage(tmp_path / CHECKPOINT_FILE, lambda: Checkpoint.read(tmp_path))


def _entry(name: str, value: float) -> Change:
    def apply(tensors: dict[str, torch.Tensor], described: Any) -> None:
        tensors[name] = tensors[name].clone()
        tensors[name].view(-1)[0] = value

    return apply


def _field(*path: str | int, to: Any) -> Change:
    def apply(tensors: dict[str, torch.Tensor], described: Any) -> None:
        found = described
        for name in path[:-1]:
            found = found[name]
        if to is KeyError:
            del found[path[-1]]
        else:
            found[path[-1]] = to

    return apply


WRONG: dict[str, Change] = {
    "a weight that is no number": _entry("model/0.weight", float("nan")),
    "an infinite average": _entry("optimiser/0/exp_avg", float("inf")),
    "a tensor of neither": lambda tensors, described: tensors.update({"elsewhere": torch.zeros(1)}),
    "a parameter without a number": lambda tensors, described: tensors.update(
        {"optimiser/x/step": torch.zeros(1)}
    ),
    "no model": _field("model", "name", to=KeyError),
    "a configuration of nothing": _field("model", "configuration", to=None),
    "a negative step": _field("state", "step", to=-1),
    "half a step": _field("state", "step", to=0.5),
    "a step before the epoch's": _field("state", "step", to=1),
    "an epoch left out": _field("state", "epochs", 0, "epoch", to=2),
    "an accuracy above 1": _field("state", "epochs", 0, "test_accuracy", to=1.5),
    "a loss in words": _field("state", "epochs", 0, "train_loss", to="low"),
    "no sums": _field("state", "sums", to=KeyError),
    "negative images": _field("state", "sums", "count", to=-8),
    "sums of something else": _field("state", "sums", "values", to={"loss": 0.1}),
    "an accuracy above 1 in training": _field("state", "epochs", 0, "train_accuracy", to=1.5),
    "no speed": _field("state", "epochs", 0, "images_per_second", to=KeyError),
    "an unknown task": _field("task", to="sounds"),
    "no task": _field("task", to=KeyError),
    "sessions of nothing": _field("state", "sessions", to=[None]),
    "more": _field("more", to=1),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_what_no_training_can_have_saved_is_refused_though_it_is_sealed(tmp_path, change):
    saved(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    tensors, described = read_tensors(path, CHECKPOINT_FORM)
    change(tensors, described)
    write_tensors(path, CHECKPOINT_FORM, tensors, described)
    refuses(path, lambda: Checkpoint.read(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("model/0.bias"), r"tensor 0\.bias is missing"),
        (lambda tensors: tensors.update({"model/2.bias": torch.zeros(1)}), r"tensor 2\.bias is there"),
        (
            lambda tensors: tensors.update({"model/0.bias": torch.zeros(4).double()}),
            r"tensor 0\.bias is of float64; expected float32",
        ),
        (lambda tensors: tensors.pop("optimiser/1/exp_avg"), "not alike for all parameters"),
        (
            lambda tensors: tensors.update({"optimiser/0/exp_avg": torch.zeros(3)}),
            r"optimiser/0/exp_avg is torch.float32 of shape \(3,\)",
        ),
        (
            lambda tensors: tensors.update(
                {f"optimiser/9/{name}": torch.zeros(()) for name in ("step", "exp_avg", "exp_avg_sq")}
            ),
            "optimiser/9 is there; expected those of 4 parameters",
        ),
    ],
)
def test_tensors_of_another_model_are_refused_and_nothing_is_put_back(tmp_path, change, message):
    checkpoint = saved(tmp_path)
    change(checkpoint.tensors)
    model, optimiser = stepped(seed=1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(InputError, match=message):
        checkpoint.restore(model, optimiser)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_an_audit_is_no_checkpoint(tmp_path):
    saved(tmp_path)
    path = tmp_path / CHECKPOINT_FILE
    write_tensors(path, STATE_FORM, *read_tensors(path, CHECKPOINT_FORM))
    assert "holds a saved audit, not a training checkpoint" in refuses(
        path, lambda: Checkpoint.read(tmp_path)
    )


def test_what_is_not_finite_is_found(tmp_path):
    model, optimiser = stepped()
    assert Checkpoint.of("images", {}, {}, TrainState(), model, optimiser).first_not_finite() is None
    with torch.no_grad():
        next(model.parameters())[0, 0] = torch.nan
    assert (
        Checkpoint.of("images", {}, {}, TrainState(), model, optimiser).first_not_finite() == "model/0.weight"
    )
