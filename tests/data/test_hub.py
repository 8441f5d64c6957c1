"""Datasets of the ``datasets`` library, from folders here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

from fenchel.data import load
from fenchel.errors import InputError, MissingExtraError
from tests.data.image_files import drawn_images

datasets = pytest.importorskip("datasets")

IMAGES = drawn_images(6, side=8)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr("datasets.config.HF_DATASETS_OFFLINE", True, raising=False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True, raising=False)
    datasets.disable_progress_bars()


def picture(image: torch.Tensor, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(image.permute(1, 2, 0).numpy()).convert(mode)


def image_folder(root: Path, mode: str = "RGB", end: str = "png") -> Path:
    for split, places in {"train": range(4), "test": range(4, 6)}.items():
        for place in places:
            folder = root / split / ("cat", "dog")[place % 2]
            folder.mkdir(parents=True, exist_ok=True)
            picture(IMAGES[place], mode).save(folder / f"{place}.{end}")
    return root


def saved(root: Path, columns: dict[str, object], features: dict[str, object]) -> Path:
    rows = datasets.Dataset.from_dict(columns, features=datasets.Features(features))
    datasets.DatasetDict({"train": rows}).save_to_disk(str(root))
    return root


def test_a_folder_of_images_by_class(tmp_path):
    folder = image_folder(tmp_path / "pets")
    train, test = (load(f"hf:{folder}", split=split) for split in ("train", "test"))
    assert train.class_names == ("cat", "dog")
    assert sorted(train.labels.tolist()) == [0, 0, 1, 1]
    found = {
        tuple(image.flatten().tolist()): int(label)
        for image, label in zip(train.images, train.labels, strict=True)
    }
    assert found == {tuple(IMAGES[place].flatten().tolist()): place % 2 for place in range(4)}
    assert train.note == ""
    assert len(test) == 2
    assert test.mean == train.mean


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("1", 1), ("RGB", 3), ("P", 3)])
def test_modes_that_lose_nothing(tmp_path, mode, channels):
    found = load(f"hf:{image_folder(tmp_path / 'pets', mode)}")
    assert found.images.shape == (4, channels, 8, 8)


def test_modes_that_would_lose_something_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"image 0 has the mode RGBA; expected grey or RGB"):
        load(f"hf:{image_folder(tmp_path / 'pets', 'RGBA')}")


def test_transparency_is_refused(tmp_path):
    folder = image_folder(tmp_path / "pets")
    picture(IMAGES[0], "P").save(folder / "train" / "cat" / "0.png", transparency=b"\x00\x80")
    with pytest.raises(InputError, match=r"image \d has the mode P with transparency"):
        load(f"hf:{folder}")


def test_jpeg_is_said_to_be_lossy(tmp_path):
    assert load(f"hf:{image_folder(tmp_path / 'pets', end='jpg')}").note == "JPEG, lossy"


def test_a_split_that_is_not_there_and_one_of_another_name(tmp_path):
    folder = image_folder(tmp_path / "pets")
    (folder / "test").rename(folder / "validation")
    assert len(load(f"hf:{folder}", split="validation")) == 2
    with pytest.raises(InputError, match=r"has no split 'test'; it has 'train', 'validation'"):
        load(f"hf:{folder}", split="test")


def test_what_save_to_disk_wrote_with_fine_and_coarse_labels(tmp_path):
    columns = {
        "img": [picture(image) for image in IMAGES],
        "fine_label": [0, 1, 2, 0, 1, 2],
        "coarse_label": [0] * 6,
    }
    features = {
        "img": datasets.Image(),
        "fine_label": datasets.ClassLabel(names=["a", "b", "c"]),
        "coarse_label": datasets.ClassLabel(names=["all"]),
    }
    found = load(f"hf:{saved(tmp_path / 'saved', columns, features)}")
    assert found.images.equal(IMAGES)
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 2]
    assert found.class_names == ("a", "b", "c")


def test_columns_that_are_not_there(tmp_path):
    folder = saved(tmp_path / "saved", {"text": ["x"]}, {"text": datasets.Value("string")})
    with pytest.raises(InputError, match=r"has the columns 'text' \(Value\); expected one of images"):
        load(f"hf:{folder}")


def test_a_label_that_is_missing(tmp_path):
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    columns = {"image": [picture(image) for image in IMAGES[:2]], "label": [1, None]}
    with pytest.raises(InputError, match="label -1 of image 1 is out of range; expected 0 to 1"):
        load(f"hf:{saved(tmp_path / 'saved', columns, features)}")


def test_images_of_two_sizes(tmp_path):
    folder = image_folder(tmp_path / "pets")
    picture(drawn_images(1, side=9)[0]).save(folder / "train" / "cat" / "0.png")
    with pytest.raises(InputError, match=r"\(9, 9, 3\).*expected images of one size and kind"):
        load(f"hf:{folder}")


def test_an_image_that_cannot_be_decoded(tmp_path):
    folder = image_folder(tmp_path / "pets")
    file = folder / "train" / "dog" / "3.png"
    file.write_bytes(file.read_bytes()[:60])
    with pytest.raises(InputError, match=r"image \d cannot be decoded"):
        load(f"hf:{folder}")


def test_a_name_that_cannot_be_opened(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"dataset 'nobody/nothing' cannot be opened: .*Check the spelling"):
        load("hf:nobody/nothing:plain")
    with pytest.raises(InputError, match="names no dataset; expected hf:NAME"):
        load("hf:")


def test_without_the_library(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(
        MissingExtraError, match=r"datasets is not installed. Run: pip install 'fenchel\[hf\]'"
    ):
        load("hf:mnist")


def test_an_image_that_is_missing(tmp_path):
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b"])}
    columns = {"image": [picture(IMAGES[0]), None], "label": [1, 0]}
    with pytest.raises(InputError, match="image 1 cannot be decoded"):
        load(f"hf:{saved(tmp_path / 'saved', columns, features)}")
