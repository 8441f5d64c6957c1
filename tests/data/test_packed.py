"""Images packed into npz files: pixels, and JPEG files that are decoded once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fenchel.data import load
from fenchel.errors import InputError, MissingExtraError
from tests.data.image_files import drawn_images, write_jpeg_npz

CLASSES = tuple(f"kind {n}" for n in range(10))
# Smooth, so that JPEG is near them.
SMOOTH = torch.nn.functional.interpolate(drawn_images(12, side=3).float(), (32, 32), mode="bilinear").to(
    torch.uint8
)
TRAIN = SMOOTH[:8], torch.arange(8)
TEST = SMOOTH[8:], torch.arange(4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_jpeg_npz(tmp_path / "cifar10" / "cifar10_jpeg.npz", {"train": TRAIN, "test": TEST}, CLASSES)
    return tmp_path


def changed(root: Path, **arrays: object) -> None:
    file = root / "cifar10" / "cifar10_jpeg.npz"
    with np.load(file) as archive:
        content = {name: archive[name] for name in archive.files}
    content.update(arrays)
    np.savez(file, **{name: array for name, array in content.items() if array is not None})


@pytest.mark.parametrize("given", ["cifar10", "cifar10/", "cifar10/cifar10_jpeg.npz"])
def test_jpeg_is_decoded_and_said_to_be_lossy(root, given):
    found = load(given, root=root) if given == "cifar10" else load(root / given)
    assert found.note == "JPEG, lossy"
    assert found.class_names == CLASSES
    assert found.labels.equal(TRAIN[1])
    assert found.images.shape == TRAIN[0].shape
    assert found.images.is_contiguous()
    difference = (found.images.float() - TRAIN[0].float()).abs().mean(dim=(1, 2, 3))
    assert float(difference.max()) < 6
    assert not found.images.equal(TRAIN[0])


def test_statistics_are_of_the_training_images_and_computed_once(root, monkeypatch):
    train = load("cifar10", root=root)
    calls: list[object] = []
    monkeypatch.setattr("fenchel.data.source.channel_statistics", calls.append)
    test = load("cifar10", split="test", root=root)
    assert test.mean == train.mean
    assert calls == []


def test_official_batches_come_before_jpeg(root):
    (root / "cifar10" / "data_batch_1").write_bytes(b"")
    with pytest.raises(InputError, match="has no data_batch_2"):
        load("cifar10", root=root)


@pytest.mark.parametrize("grey", [False, True])
def test_pixels_of_training_images_alone(tmp_path, grey):
    pixels = TRAIN[0].permute(0, 2, 3, 1).numpy()
    file = tmp_path / "part.npz"
    np.savez_compressed(
        file, images=pixels[..., 0] if grey else pixels, labels=np.arange(8), class_names=CLASSES
    )
    found = load(file)
    assert found.images.equal(TRAIN[0][:, :1] if grey else TRAIN[0])
    assert found.note == ""
    with pytest.raises(
        InputError, match=r"has no test images: neither 'test_jpeg' nor 'test_images'; it has 'images'"
    ):
        load(file, split="test")


def test_pixels_of_both_splits(tmp_path):
    file = tmp_path / "both.npz"
    parts = {"train": TRAIN, "test": TEST}
    arrays = {f"{split}_images": images.permute(0, 2, 3, 1).numpy() for split, (images, _) in parts.items()}
    labels = {f"{split}_labels": labels.numpy() for split, (_, labels) in parts.items()}
    np.savez(file, class_names=np.array(CLASSES), **arrays, **labels)  # pyright: ignore[reportArgumentType]
    assert load(file).images.equal(TRAIN[0])
    assert load(tmp_path, split="test").images.equal(TEST[0])


def test_truncated_and_corrupt_archives(root):
    file = root / "cifar10" / "cifar10_jpeg.npz"
    content = file.read_bytes()
    for damaged in (b"", content[: len(content) // 2], b"not an archive"):
        file.write_bytes(damaged)
        with pytest.raises(InputError, match=r"cifar10_jpeg.npz is truncated or corrupt"):
            load("cifar10", root=root)
    # One byte of one picture: JPEG would often not mind, the archive does.
    place = content.index(b"train_jpeg") + 1000
    file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(InputError, match=r"'train_jpeg' is truncated or corrupt: Bad CRC-32"):
        load("cifar10", root=root)


def test_pickles_inside_are_refused(root):
    changed(root, train_labels=np.array([object()], dtype=object))
    with pytest.raises(
        InputError, match=r"'train_labels' is truncated or corrupt: Object arrays cannot be loaded"
    ):
        load("cifar10", root=root)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"train_labels": None}, r"has no 'train_labels'; it has"),
        ({"class_names": None}, r"has no 'class_names'"),
        ({"train_offsets": np.arange(9)}, r"the offsets do not run from 0 up to its \d+ bytes"),
        (
            {"train_offsets": np.arange(9.0)},
            r"'train_offsets' has shape \(9,\) and type float64; expected integers",
        ),
        ({"train_labels": np.arange(7)}, r"8 train images and 7 labels"),
        ({"train_labels": np.arange(8) + 5}, r"label 10 of image 5 is out of range; expected 0 to 9"),
        ({"train_jpeg": np.zeros(8, np.uint8), "train_offsets": np.arange(9)}, r"image 0 is corrupt"),
        (
            {"train_jpeg": None, "train_images": np.zeros((8, 4))},
            r"'train_images' has shape \(8, 4\) and type float64",
        ),
    ],
)
def test_wrong_content(root, arrays, message):
    changed(root, **arrays)
    with pytest.raises(InputError, match=message):
        load("cifar10", root=root)


def test_pictures_of_two_sizes(tmp_path):
    small = torch.zeros(3, 16, 16, dtype=torch.uint8)
    images = [TRAIN[0][0], small]
    file = write_jpeg_npz(tmp_path / "two.npz", {"train": (images, torch.arange(2))}, CLASSES)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match=r"image 1 has shape \(16, 16, 3\) and image 0 \(32, 32, 3\)"):
        load(file)


def test_a_file_of_a_single_array_and_a_folder_of_several_archives(tmp_path):
    with (tmp_path / "one.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(InputError, match="is a single array"):
        load(tmp_path / "one.npz")
    np.savez(tmp_path / "two.npz", labels=np.arange(3))
    with pytest.raises(InputError, match=r"has one.npz, two.npz; expected one"):
        load(tmp_path)


@pytest.mark.parametrize(("module", "named"), [("numpy", "numpy"), ("PIL", "PIL")])
def test_a_missing_package_is_named(root, monkeypatch, module, named):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(
        MissingExtraError, match=rf"{named} is not installed. Run: pip install 'fenchel\[train\]'"
    ):
        load("cifar10", root=root)
