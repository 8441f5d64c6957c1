"""The curves: drawn from the records alone, and told apart without colour."""

from __future__ import annotations

import dataclasses
import errno
import os

import pytest

from fenchel import storage
from fenchel.errors import OutputError
from fenchel.train import TrainResult
from fenchel.train.figure import _STYLE, write_curves
from fenchel.train.state import TrainState
from tests.train.small_trainings import options


@pytest.fixture
def result() -> TrainResult:
    epochs = [
        {
            "epoch": number,
            "step": 10 * number,
            "train_loss": 2.0 / number,
            "train_accuracy": 1 - 1 / (number + 1),
            "test_loss": None if number % 2 else 2.1 / number,
            "test_accuracy": None if number % 2 else 1 - 1.1 / (number + 1),
            "seconds": 1.0,
            "images_per_second": 100.0,
        }
        for number in range(1, 5)
    ]
    description = {"model": {}, "data": {"name": "small", "note": "JPEG", "train_images": 40}, "machine": {}}
    return TrainResult.of(options(epochs=4), description, TrainState(step=40, epochs=epochs))


def test_the_same_training_gives_the_same_bytes_and_another_one_others(result, tmp_path):
    first = write_curves(result, tmp_path).read_bytes()
    assert first.startswith(b"\x89PNG")
    assert write_curves(result, tmp_path).read_bytes() == first
    changed = [{**record, "test_loss": record["test_loss"] and 1.0} for record in result.epochs]
    other = dataclasses.replace(result, epochs=tuple(changed))
    assert write_curves(other, tmp_path).read_bytes() != first


def lightness(colour: str) -> float:
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def test_lines_differ_in_lightness_marker_and_line():
    train, test = _STYLE["train"], _STYLE["test"]
    assert abs(lightness(train["color"]) - lightness(test["color"])) > 0.25
    assert train["marker"] != test["marker"]
    assert train["linestyle"] != test["linestyle"]


def test_a_training_without_tests_is_drawn(result, tmp_path):
    untested = [{**record, "test_loss": None, "test_accuracy": None} for record in result.epochs]
    assert write_curves(dataclasses.replace(result, epochs=tuple(untested)), tmp_path).exists()


def test_a_full_disk_leaves_the_old_figure(result, tmp_path, monkeypatch):
    first = write_curves(result, tmp_path).read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(storage.os, "fsync", full)
    with pytest.raises(OutputError, match=r"curves\.png: the disk is full"):
        write_curves(dataclasses.replace(result, epochs=result.epochs[:2]), tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "curves.png").read_bytes() == first
