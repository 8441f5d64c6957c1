"""IDX files: read back as written; every way of being damaged is told apart."""

from __future__ import annotations

import gzip
import shutil
import struct
from pathlib import Path

import pytest
import torch

from fenchel.data import load
from fenchel.data.idx import read_idx
from fenchel.errors import InputError
from tests.data.image_files import drawn_images, drawn_labels, write_idx, write_idx_folder

TRAIN = drawn_images(40, channels=1, side=28), torch.arange(40) % 10
TEST = drawn_images(20, channels=1, side=28, seed=1), torch.arange(20) % 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_idx_folder(tmp_path / "fashion_mnist", TRAIN, TEST)
    return tmp_path


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize(("split", "expected"), [("train", TRAIN), ("test", TEST)])
def test_what_was_written_is_read(tmp_path, end, split, expected):
    folder = write_idx_folder(tmp_path / "digits", TRAIN, TEST, end)
    found = load(folder, split=split)
    assert found.images.equal(expected[0])
    assert found.images.dtype == torch.uint8
    assert found.labels.equal(expected[1])
    assert found.labels.dtype == torch.int64
    assert found.name == str(folder)


def test_a_name_has_the_names_of_its_classes_and_a_path_does_not_claim_them(root):
    named = load("fashion-mnist", root=root)
    assert named.class_names[9] == "Ankle boot"
    assert named.note == "40 images, not the official 60,000"
    assert load(root / "fashion_mnist").class_names[9] == "9"


def test_other_images_of_the_official_number_are_refused(root, monkeypatch):
    monkeypatch.setattr(
        "fenchel.data.idx_folder._OFFICIAL", {"train": (40, "0" * 64), "test": (20, "0" * 64)}
    )
    with pytest.raises(InputError, match=r"train files have the sha256 \w{12}\.\.\.; expected 000000000000"):
        load("fashion-mnist", root=root)
    assert len(load(root / "fashion_mnist")) == 40


def test_the_official_images_are_known_in_any_compression(root, monkeypatch):
    digest = load(root / "fashion_mnist").digest
    monkeypatch.setattr("fenchel.data.idx_folder._OFFICIAL", {"train": (40, digest), "test": (20, "0" * 64)})
    assert load("fashion-mnist", root=root).note == ""
    plain = write_idx_folder(root / "plain", TRAIN, TEST, end="")
    assert load(plain).class_names[9] == "Ankle boot"


@pytest.mark.parametrize("place", ["fashion-mnist", "FashionMNIST/raw", "."])
def test_other_folders_in_which_it_is_found(root, place):
    other = root / "other"
    shutil.copytree(root / "fashion_mnist", other / place, dirs_exist_ok=True)
    assert load("fashion-mnist", root=other).images.equal(TRAIN[0])


def test_truncated_gzip(root):
    file = root / "fashion_mnist" / "train-images-idx3-ubyte.gz"
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.raises(
        InputError, match=rf"train-images-idx3-ubyte.gz is truncated: its {len(content) // 2} bytes"
    ):
        load("fashion-mnist", root=root)


def test_every_corrupted_byte_of_a_gzip_is_noticed(root):
    file = root / "fashion_mnist" / "train-labels-idx1-ubyte.gz"
    content = file.read_bytes()
    for place in (0, 2, 12, len(content) // 2, len(content) - 6, len(content) - 2):
        file.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        with pytest.raises(InputError, match=r"train-labels-idx1-ubyte.gz (is corrupt|is truncated)"):
            load("fashion-mnist", root=root)


def test_not_gzip_at_all(root):
    (root / "fashion_mnist" / "train-images-idx3-ubyte.gz").write_bytes(b"<html>not found</html>")
    with pytest.raises(InputError, match="corrupt: Not a gzipped file"):
        load("fashion-mnist", root=root)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "truncated: 0 bytes, and the header alone is 8"),
        (struct.pack(">II", 2051, 4) + bytes(4), "magic number 2051; expected 2049"),
        (struct.pack(">II", 0x0D01, 4) + bytes(4), "magic number 3329; expected 2049"),
        (
            struct.pack(">II", 2049, 5) + bytes(4),
            "holds 12 bytes; expected 13, as its header says 5. It is truncated",
        ),
        (struct.pack(">II", 2049, 3) + bytes(4), "holds 12 bytes; expected 11, .* too long"),
        (struct.pack(">II", 2049, 0), "is empty"),
        (struct.pack(">II", 2049, 0xFFFFFFFF), "expected 4294967303"),
    ],
)
def test_damaged_headers(tmp_path, content, message):
    file = tmp_path / "labels"
    file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_idx(file, 1)


def test_labels_of_another_split(root):
    folder = root / "fashion_mnist"
    shutil.copy(folder / "t10k-labels-idx1-ubyte.gz", folder / "train-labels-idx1-ubyte.gz")
    with pytest.raises(InputError, match=r"40 images and .* 20 labels"):
        load("fashion-mnist", root=root)


def test_a_missing_file_is_named(root):
    (root / "fashion_mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert len(load("fashion-mnist", root=root)) == 40
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte.gz does not exist"):
        load("fashion-mnist", split="test", root=root)


def test_test_images_need_the_training_images_for_their_statistics(root):
    (root / "fashion_mnist" / "train-images-idx3-ubyte.gz").unlink()
    message = r"the training images are wanted for their mean .*train-images-idx3-ubyte.gz does not exist"
    with pytest.raises(InputError, match=message):
        load("fashion-mnist", split="test", root=root)


@pytest.mark.parametrize("given", ["name", "path"])
def test_a_label_without_a_class(root, given):
    folder = root / "fashion_mnist"
    write_idx(folder / "train-labels-idx1-ubyte.gz", TRAIN[1].clone().index_fill_(0, torch.tensor([7]), 10))
    with pytest.raises(
        InputError, match=r"train-labels.*: label 10 of image 7 is out of range; expected 0 to 9"
    ):
        load("fashion-mnist" if given == "name" else folder, root=root)


def test_statistics_are_of_the_training_images(root):
    test, train = load("fashion-mnist", split="test", root=root), load("fashion-mnist", root=root)
    pixels = TRAIN[0].double() / 255
    assert train.mean == pytest.approx([float(pixels.mean())], abs=1e-12)
    assert train.std == pytest.approx([float(pixels.std(correction=0))], abs=1e-12)
    assert (test.mean, test.std) == (train.mean, train.std)


def test_statistics_follow_files_that_change(root):
    before = load("fashion-mnist", split="test", root=root).mean
    folder = root / "fashion_mnist"
    write_idx(folder / "train-images-idx3-ubyte.gz", drawn_images(40, channels=1, side=28, seed=9)[:, 0])
    assert load("fashion-mnist", split="test", root=root).mean != before


def test_a_compressed_file_that_holds_a_wrong_file(tmp_path):
    file = tmp_path / "labels.gz"
    file.write_bytes(gzip.compress(struct.pack(">II", 2051, 1) + bytes(1)))
    with pytest.raises(InputError, match="magic number 2051"):
        read_idx(file, 1)


def test_drawn_labels_have_every_class():
    assert set(drawn_labels(200, 10).tolist()) == set(range(10))
