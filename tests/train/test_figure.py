"""The curves: drawn from the records alone, and told apart without colour."""

from __future__ import annotations

import dataclasses
import errno
import os

import pytest

from fenchel.errors import OutputError
from fenchel.train import TrainResult
from fenchel.train.figure import _STYLE, _draw, _title, write_curves
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


def test_nothing_is_cut_off(result):
    # Ticks of three decimals and more need room, and so does what is known of the data.
    narrow = [
        {**record, "train_loss": 0.1231 + 0.0002 * record["epoch"], "test_loss": None}
        for record in result.epochs
    ]
    result.description["data"]["name"] = "a/folder/of/which/the/name/is/long"
    figure = _draw(dataclasses.replace(result, epochs=tuple(narrow)))
    figure.draw_without_rendering()
    width, height = figure.bbox.width, figure.bbox.height
    texts = [text for axes in figure.axes for text in (axes.yaxis.label, axes.xaxis.label)]
    for text in [*texts, *figure.texts]:
        box = text.get_window_extent()
        assert 0 <= box.x0 <= box.x1 <= width, text
        assert 0 <= box.y0 <= box.y1 <= height, text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "ot-vit"}, "ot-vit (u = 0 on further templates) on 40 images"),
        (
            {"model": "ot-vit", "extra_preference": "shared"},
            "ot-vit (u shared with further templates) on 40 images",
        ),
        ({"model": "vit"}, "vit on 40 images"),
    ],
)
def test_the_title_says_what_was_trained(result, changes, words):
    assert _title(dataclasses.replace(result, options=options(**changes).resolved())).startswith(words)


def test_dollars_in_the_name_of_the_data_are_no_mathematics(result, tmp_path):
    result.description["data"]["name"] = r"data/$\alpha_{$"
    assert write_curves(result, tmp_path).exists()


def test_one_epoch_is_not_several(result):
    assert _title(dataclasses.replace(result, epochs=result.epochs[:2])).endswith("after 2 epochs")
    tested = [{**result.epochs[1], "epoch": 1}]
    assert _title(dataclasses.replace(result, epochs=tuple(tested))).endswith("after 1 epoch")


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

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"curves\.png: the disk is full"):
        write_curves(dataclasses.replace(result, epochs=result.epochs[:2]), tmp_path)
    monkeypatch.undo()
    assert (tmp_path / "curves.png").read_bytes() == first
