"""The weights of the best epoch are kept, tested and read back, and files lie beside them; resuming changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fenchel.errors import InputError
from fenchel.train import Metric, TrainResult, load_model, registered, train
from fenchel.train.checkpoint import Checkpoint
from fenchel.train.files import read_file
from fenchel.train.selected import SelectedWeights
from tests.train.line_task import LINE, Line, LineOptions, Points
from tests.train.small_trainings import Recorder


class WanderingOptions(LineOptions):
    """Of their own type, which tells tasks apart."""


@registered
class Wandering(Line):
    """A line whose error is best in the middle of a training; what it says has two parts."""

    name = "wandering"
    options_type = WanderingOptions
    watched = "validation"
    selects = "error"

    def examples(self, split: str) -> Any:
        half = self.data.count // 2
        yield self.data.taken(slice(0, half) if split == "validation" else slice(half, None))

    def predicted(self, model: nn.Module, batch: Points) -> Any:
        return {"y": model(batch.x), "count": torch.tensor(batch.count)}

    def loss(self, predicted: Any, batch: Points) -> Any:
        assert predicted["y"].dtype == torch.float32
        assert predicted["count"].dtype == torch.int64
        return super().loss(predicted["y"], batch)

    def measured(self, predicted: Any, batch: Points) -> dict[str, torch.Tensor]:
        return super().measured(predicted["y"], batch)

    def files(self) -> Mapping[str, str]:
        return {"rule.txt": f"y = 2x + 1, {self.data.count} points\n"}


def wandered(directory: Path, **given: Any) -> TrainResult:
    passed = {name: given.pop(name) for name in ("resume", "observer") if name in given}
    # So noisy that epochs differ, at a rate that overshoots.
    options = WanderingOptions(**{**LINE, "epochs": 6, "noise": 3.0, "learning_rate": 0.8, **given})
    return train(options, directory, device="cpu", **passed)


def test_the_weights_of_the_best_epoch_are_tested_and_read_back(tmp_path):
    result = wandered(tmp_path)
    errors = [epoch["validation_error"] for epoch in result.epochs]
    assert result.best_epoch == 1 + errors.index(min(errors)) < len(errors)
    kept = load_model(tmp_path)
    with torch.no_grad():
        points = Wandering.read("line")
        half = points.count // 2
        difference = kept(points.x[half:]) - points.y[half:]
    assert result.headline == pytest.approx(difference.square().mean().sqrt().item(), rel=1e-5)
    checkpoint = Checkpoint.read(tmp_path)
    assert not torch.equal(checkpoint.selected["weight"], checkpoint.weights["weight"])


@pytest.mark.parametrize("stop_at", [3, 17, 26])
def test_an_interrupted_choice_goes_on_bit_for_bit(tmp_path, stop_at):
    whole = wandered(tmp_path / "a")

    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wandered(tmp_path / "b", observer=Recorder(stop_at, interrupt))
    again = wandered(tmp_path / "b", resume=True)
    assert again.headline == whole.headline
    one, other = Checkpoint.read(tmp_path / "a"), Checkpoint.read(tmp_path / "b")
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(value, other.tensors[name]) for name, value in one.tensors.items())


def test_files_lie_beside_the_weights_and_are_seen_to_be_damaged(tmp_path):
    wandered(tmp_path)
    digests = Checkpoint.read(tmp_path).model["files"]
    assert read_file(tmp_path, "rule.txt", digests) == "y = 2x + 1, 22 points\n"
    (tmp_path / "rule.txt").write_text("y = 2x + 2")
    with pytest.raises(InputError, match=r"rule\.txt is not what the training wrote"):
        read_file(tmp_path, "rule.txt", digests)
    wandered(tmp_path, resume=True)
    assert read_file(tmp_path, "rule.txt", digests)
    (tmp_path / "rule.txt").unlink()
    with pytest.raises(InputError, match=r"rule\.txt cannot be read"):
        read_file(tmp_path, "rule.txt", digests)


@pytest.mark.parametrize(("higher", "kept"), [(True, 2.0), (False, 1.0)])
def test_the_first_of_the_best_is_kept_and_its_own_weights_come_back(higher, kept):
    model = nn.Linear(1, 1, bias=False)
    selected = SelectedWeights(Metric("m", "", higher), "validation_m")
    for value in (1.5, 1.0, 2.0, 2.0, 1.0):
        nn.init.constant_(model.weight, value)
        selected.offer(model, value)
        with torch.no_grad():
            model.weight.add_(0.25)  # a copy, and not what goes on to be trained
    with selected.in_place(model):
        assert model.weight.item() == kept
    assert model.weight.item() == 1.25
    again = SelectedWeights(selected.metric, "validation_m")
    again.restore(selected.tensors, [{"validation_m": value} for value in (1.5, 1.0, 2.0)])
    again.offer(model, kept)
    assert again.tensors["weight"].item() == kept
