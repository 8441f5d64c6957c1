"""CIFAR's python and binary batches, in small; pickles that ask for more are refused."""

from __future__ import annotations

import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fenchel.data import batch_pickle, load
from fenchel.data.batch_pickle import read_batch_pickle
from fenchel.data.cifar_format import CIFAR10, CIFAR100
from fenchel.errors import InputError
from tests.data.image_files import drawn_images, drawn_labels, write_cifar_binary, write_cifar_python

BATCHES = {f"data_batch_{n}": (drawn_images(6, seed=n), drawn_labels(6, 10, seed=n)) for n in range(1, 6)}
TEST = {"test_batch": (drawn_images(4, seed=6), drawn_labels(4, 10, seed=6))}
HUNDRED = {
    "train": (drawn_images(30, seed=7), drawn_labels(30, 100, seed=7)),
    "test": (drawn_images(10, seed=8), drawn_labels(10, 100, seed=8)),
}
META10 = "batches.meta", {b"label_names": [name.encode() for name in CIFAR10.class_names], b"num_vis": 3072}
META100 = (
    "meta",
    {b"fine_label_names": [name.encode() for name in CIFAR100.class_names], b"coarse_label_names": []},
)


def joined(batches: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> tuple[torch.Tensor, torch.Tensor]:
    images, labels = zip(*batches.values(), strict=True)
    return torch.cat(images), torch.cat(labels)


def write(root: Path, name: str, version: str, protocol: int = 2) -> Path:
    if name == "cifar10":
        batches, key, meta = {**BATCHES, **TEST}, "labels", META10
    else:
        batches, key, meta = HUNDRED, "fine_labels", META100
    form = CIFAR10 if name == "cifar10" else CIFAR100
    if version == "python":
        return write_cifar_python(
            root / name / form.python_folder, batches, label_key=key, meta=meta, protocol=protocol
        )
    binary = {f"{batch}.bin": content for batch, content in batches.items()}
    folder = write_cifar_binary(root / name / form.binary_folder, binary, coarse=name == "cifar100")
    (folder / form.binary_meta).write_text("\n".join(form.class_names) + "\n\n")
    return folder


@pytest.mark.parametrize("version", ["python", "binary"])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("by", ["name", "outer path", "inner path", "root of batches"])
def test_what_was_written_is_read(tmp_path, name, version, by):
    folder = write(tmp_path, name, version)
    given: dict[str, Any] = {
        "name": {"name_or_path": name, "root": tmp_path},
        "outer path": {"name_or_path": tmp_path / name},
        "inner path": {"name_or_path": folder},
        "root of batches": {"name_or_path": name, "root": folder.parent},
    }[by]
    train, test = load(split="train", **given), load(split="test", **given)
    expected = {"cifar10": (joined(BATCHES), joined(TEST)), "cifar100": (HUNDRED["train"], HUNDRED["test"])}[
        name
    ]
    for found, (images, labels) in zip((train, test), expected, strict=True):
        assert found.images.equal(images)
        assert found.labels.equal(labels)
        assert (
            found.note == f"{len(images)} images, not the official {50_000 if found is train else 10_000:,}"
        )
    assert len(train.class_names) == {"cifar10": 10, "cifar100": 100}[name]
    assert len(train.mean) == len(train.std) == 3
    assert train.mean == test.mean


def test_both_versions_have_the_same_digest(tmp_path):
    write(tmp_path / "a", "cifar10", "python")
    write(tmp_path / "b", "cifar10", "binary")
    one, other = (load("cifar10", root=tmp_path / part) for part in "ab")
    assert one.digest == other.digest
    assert one.digest != load("cifar10", split="test", root=tmp_path / "a").digest


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_is_read(tmp_path, protocol):
    write(tmp_path, "cifar100", "python", protocol)
    assert load("cifar100", root=tmp_path).images.equal(HUNDRED["train"][0])


def python_2_pickle(pixels: bytes) -> bytes:
    """What Python 2 and its numpy wrote for two images: text and bytes are one type, modules have their old names."""
    shape = b"K\x02M\x00\x0c\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    content = b"T" + struct.pack("<I", len(pixels)) + pixels
    array = empty + b"(K\x01" + shape + dtype + b"\x89" + content + b"tb"
    return b"\x80\x02}(U\x04data" + array + b"U\x0bfine_labels](K\x01K\x02eu."


def test_pickles_of_python_2_are_read(tmp_path):
    pixels = drawn_images(2)
    file = tmp_path / "train"
    file.write_bytes(python_2_pickle(pixels.numpy().tobytes()))
    found = read_batch_pickle(file)
    assert found["data"].equal(pixels.reshape(2, -1))
    assert found["fine_labels"] == [1, 2]
    file.write_bytes(python_2_pickle(pixels.numpy().tobytes()[:-1]))
    with pytest.raises(InputError, match=r"array of shape \(2, 3072\) with 6143 bytes; expected 6144"):
        read_batch_pickle(file)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.uint8).reshape(2, 3),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.arange(6, dtype=np.int32)[::2],
        np.zeros((0, 3), dtype=np.uint8),
    ],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_arrays_of_integers_are_rebuilt(tmp_path, array, protocol):
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps({"data": array}, protocol=protocol))
    assert read_batch_pickle(file)["data"].equal(torch.from_numpy(np.ascontiguousarray(array)))


@pytest.mark.parametrize("array", [np.zeros(3), np.zeros(3, dtype=">i4")])
def test_other_arrays_are_refused(tmp_path, array):
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps({"data": array}))
    with pytest.raises(InputError, match=r"holds an array of type (<f8|>i4); expected integers"):
        read_batch_pickle(file)


class Runs:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (Runs(os.system, "touch {}"), r"(posix|nt)\.system"),
        (Runs(eval, "open({!r}, 'w')"), r"builtins\.eval"),
        (Runs(np.load, "{}"), r"numpy\.load"),
    ],
)
def test_what_a_batch_does_not_need_is_refused_by_name_and_not_run(tmp_path, call, named):
    made = tmp_path / "made"
    call.call = call.call[0], tuple(argument.format(str(made)) for argument in call.call[1])
    folder = write(tmp_path, "cifar100", "python")
    (folder / "train").write_bytes(pickle.dumps({b"data": call}))
    with pytest.raises(InputError, match=rf"asks for {named}, which no CIFAR batch needs"):
        load("cifar100", root=tmp_path)
    assert not made.exists()


def test_an_object_outside_the_file_is_refused(tmp_path):
    file = tmp_path / "batch"
    file.write_bytes(b"Pelsewhere\n.")
    with pytest.raises(InputError, match="asks for the object 'elsewhere' outside the file"):
        read_batch_pickle(file)


def test_a_pickle_cannot_change_the_reader(tmp_path):
    file = tmp_path / "batch"
    attribute = b"X\x0c\x00\x00\x00__defaults__"
    file.write_bytes(b"\x80\x02c_codecs\nencode\nN}" + attribute + b"X\x05\x00\x00\x00wrong\x85s\x86b.")
    before = batch_pickle._encode.__defaults__
    with pytest.raises(InputError, match=r"holds a function; expected a dictionary"):
        read_batch_pickle(file)
    assert batch_pickle._encode.__defaults__ is before


def test_truncated_and_corrupt_pickles(tmp_path):
    file = write(tmp_path, "cifar100", "python") / "train"
    content = file.read_bytes()
    for damaged in (
        b"",
        content[:-1],
        content[: len(content) // 2],
        content[:200],
        b"\x80\x02]q\x00.",
        b"\xff" * 50,
    ):
        file.write_bytes(damaged)
        with pytest.raises(
            InputError, match=r"train (is truncated or corrupt|holds a list; expected a dictionary)"
        ):
            load("cifar100", root=tmp_path)


def test_a_batch_of_the_official_size_must_have_the_published_checksum(tmp_path, monkeypatch):
    folder = write(tmp_path, "cifar100", "python")
    monkeypatch.setitem(CIFAR100.counts, "train", 30)
    with pytest.raises(
        InputError, match=r"train has the md5 \w{32}; expected 16019d7e3df5f24257cddd939b257f8d"
    ):
        load("cifar100", root=tmp_path)
    assert load(folder).note == ""


@pytest.mark.parametrize("version", ["python", "binary"])
def test_missing_and_unequal_batches(tmp_path, version):
    folder = write(tmp_path, "cifar10", version)
    end = "" if version == "python" else ".bin"
    images, labels = BATCHES["data_batch_3"]
    shorter = {f"data_batch_3{end}": (images[:4], labels[:4])}
    if version == "python":
        write_cifar_python(folder, shorter, label_key="labels")
    else:
        write_cifar_binary(folder, shorter)
    with pytest.raises(InputError, match=rf"data_batch_3{end} holds 4 images and data_batch_1{end} 6"):
        load("cifar10", root=tmp_path)
    (folder / f"data_batch_3{end}").unlink()
    with pytest.raises(InputError, match=rf"has no data_batch_3{end}; expected data_batch_1"):
        load("cifar10", root=tmp_path)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("version", ["python", "binary"])
def test_a_label_without_a_class(tmp_path, name, version):
    folder = write(tmp_path, name, version)
    file = "data_batch_1" if name == "cifar10" else "train"
    bad = {file: (drawn_images(6), torch.tensor([0, 1, 2, 200, 4, 5]))}
    if version == "python":
        write_cifar_python(folder, bad, label_key="labels" if name == "cifar10" else "fine_labels")
    else:
        write_cifar_binary(folder, {f"{file}.bin": bad[file]}, coarse=name == "cifar100")
    with pytest.raises(InputError, match=r"label 200 of image 3 is out of range; expected 0 to (9|99)"):
        load(name, root=tmp_path)


def test_truncated_binary_batches(tmp_path):
    file = write(tmp_path, "cifar100", "binary") / "train.bin"
    content = file.read_bytes()
    file.write_bytes(content[:-100])
    with pytest.raises(
        InputError, match=rf"holds {len(content) - 100} bytes; expected a multiple of 3074, and 153700000"
    ):
        load("cifar100", root=tmp_path)
    file.write_bytes(b"")
    with pytest.raises(InputError, match=r"train.bin is empty"):
        load("cifar100", root=tmp_path)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ({b"fine_labels": [1]}, r"has no 'data'; it has 'fine_labels'"),
        ({b"data": np.zeros((1, 3072), np.uint8)}, r"has no 'fine_labels'"),
        ({b"data": np.zeros((1, 3071), np.uint8), b"fine_labels": [1]}, r"an array of shape \(1, 3071\)"),
        (
            {b"data": np.zeros((1, 3072), np.int32), b"fine_labels": [1]},
            r"type torch.int32; expected an array",
        ),
        ({b"data": [1, 2], b"fine_labels": [1]}, r"'data' is a list; expected an array"),
        ({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1]}, r"2 images and 1 labels"),
        (
            {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [b"x"]},
            r"'fine_labels' is a list; expected",
        ),
        (
            {b"data": np.zeros((1, 3072), np.uint8), b"fine_labels": [-1]},
            r"label -1 of image 0 is out of range",
        ),
        ({b"data": np.zeros((0, 3072), np.uint8), b"fine_labels": []}, r"holds no images"),
    ],
)
def test_wrong_content(tmp_path, batch, message):
    folder = write(tmp_path, "cifar100", "python")
    (folder / "train").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(InputError, match=message):
        load("cifar100", root=tmp_path)


def test_class_names_come_from_the_files_and_without_them_are_the_official_ones(tmp_path):
    folder = write(tmp_path, "cifar10", "python")
    names = [f"kind {n}" for n in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}))
    assert load("cifar10", root=tmp_path).class_names == tuple(names)
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names[:9]}))
    with pytest.raises(InputError, match=r"batches.meta names 9 classes; expected 10"):
        load("cifar10", root=tmp_path)
    (folder / "batches.meta").unlink()
    assert load("cifar10", root=tmp_path).class_names[6] == "frog"


def test_python_batches_are_preferred_to_binary_ones(tmp_path):
    write(tmp_path, "cifar10", "binary")
    folder = write(tmp_path, "cifar10", "python")
    other = {name: (255 - images, labels) for name, (images, labels) in BATCHES.items()}
    write_cifar_python(folder, other, label_key="labels")
    assert load("cifar10", root=tmp_path).images[0].equal(other["data_batch_1"][0][0])


def test_an_archive_that_is_still_packed(tmp_path):
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "cifar-10-python.tar.gz").write_bytes(b"")
    with pytest.raises(InputError, match=r"still packed, in .*cifar-10-python.tar.gz.*tar xzf"):
        load("cifar10", root=tmp_path)
