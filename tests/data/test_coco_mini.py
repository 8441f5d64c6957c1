"""Captioned images: read as they are packed, and what is missing or damaged is said in one line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fenchel.data import CaptionedImages, load_captions
from fenchel.data.captioned_images import as_input, parted
from fenchel.errors import InputError
from tests.train.captions.small_captions import captions, write_coco_mini


def changed(folder: Path, **arrays: object) -> None:
    file = folder / "images_128.npz"
    with np.load(file) as archive:
        content = {name: archive[name] for name in archive.files}
    content.update(arrays)
    np.savez(file, **{name: array for name, array in content.items() if array is not None})


def arrays(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / "images_128.npz") as archive:
        return {name: archive[name] for name in archive.files}


def test_a_folder_is_read(tmp_path, monkeypatch):
    found = load_captions(write_coco_mini(tmp_path / "captions_coco_mini"))
    drawn = captions()
    assert found.captions == drawn.captions
    assert found.ids == tuple(str(100 + place) for place in range(24))
    for image, wanted in zip(found.images, drawn.images, strict=True):
        assert image.shape == wanted.shape
        assert (image.float() - wanted.float()).abs().mean() < 20
    assert "24 images: enough to learn them by heart" in found.note
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    assert (
        load_captions("coco-mini").digest == found.digest == load_captions("coco-mini", root=tmp_path).digest
    )
    assert found.taken([0]).digest != found.taken([1]).digest


def test_a_damaged_image_is_named(tmp_path):
    write_coco_mini(tmp_path)
    there = arrays(tmp_path)
    jpeg, offsets = there["jpeg"].copy(), there["offsets"]
    jpeg[offsets[3] : offsets[3] + 40] = 0
    changed(tmp_path, jpeg=jpeg)
    with pytest.raises(InputError, match=r"image 3 \(103\) is corrupt: cannot identify"):
        load_captions(tmp_path)
    cut = offsets.copy()
    cut[4:] -= 60
    short = np.concatenate([there["jpeg"][: cut[4]], there["jpeg"][offsets[4] :]])
    changed(tmp_path, jpeg=short, offsets=cut)
    with pytest.raises(InputError, match=r"image 3 \(103\) is corrupt: .*truncated"):
        load_captions(tmp_path)
    changed(tmp_path, jpeg=there["jpeg"], offsets=offsets[:-1])
    with pytest.raises(InputError, match="the offsets do not run from 0 up to its"):
        load_captions(tmp_path)


def test_files_that_do_not_fit_each_other_are_named(tmp_path):
    write_coco_mini(tmp_path)
    file = tmp_path / "captions.json"
    listed = json.loads(file.read_text())
    for wrong, said in (
        (listed[:-1], "has 24 images with 24 names, and captions.json 23 entries"),
        ([listed[1], listed[0], *listed[2:]], "where the images have 100; expected an entry for each image"),
        ([{**listed[0], "captions": []}, *listed[1:]], "image 100 has no captions"),
        ([{**listed[0], "captions": [" "]}, *listed[1:]], r"the captions of image 100 are \[' '\]"),
        ({"a": 1}, "expected a list with an entry for each image"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=said):
            load_captions(tmp_path)
    file.write_text("[{")
    with pytest.raises(InputError, match=r"captions\.json is no list of captions"):
        load_captions(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"captions\.json is no list of captions"):
        load_captions(tmp_path)


def test_what_is_missing_is_said(tmp_path, monkeypatch):
    monkeypatch.delenv("FENCHEL_DATA", raising=False)
    with pytest.raises(
        InputError, match="'coco-mini' is read from files, and neither FENCHEL_DATA nor a root"
    ):
        load_captions("coco-mini")
    with pytest.raises(
        InputError, match=r"captions_coco_mini is no folder\. Put images_128\.npz and captions\.json"
    ):
        load_captions("coco-mini", root=tmp_path)
    with pytest.raises(InputError, match=r"has no captions\.json"):
        load_captions(tmp_path)
    write_coco_mini(tmp_path)
    changed(tmp_path, jpeg=None)
    with pytest.raises(InputError, match="has no 'jpeg'; it has 'offsets', 'ids'"):
        load_captions(tmp_path)
    (tmp_path / "images_128.npz").write_bytes(b"PK")
    with pytest.raises(InputError, match=r"images_128\.npz is truncated or corrupt"):
        load_captions(tmp_path)
    np.save(tmp_path / "images_128.npz", np.zeros(3), allow_pickle=False)
    (tmp_path / "images_128.npz").write_bytes((tmp_path / "images_128.npz.npy").read_bytes())
    with pytest.raises(InputError, match="is a single array"):
        load_captions(tmp_path)


def test_nothing_is_unpickled(tmp_path):
    write_coco_mini(tmp_path)
    changed(tmp_path, ids=np.array([{"a": 1}] * 24, dtype=object))
    with pytest.raises(InputError, match="'ids' is truncated or corrupt: Object arrays cannot be loaded"):
        load_captions(tmp_path)


def test_a_dataset_of_the_library_is_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    from PIL import Image

    drawn = captions(6)
    pictures = [Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()) for image in drawn.images]
    rows = datasets.Dataset.from_dict(
        {"image": pictures, "captions": [list(one) for one in drawn.captions]},
        features=datasets.Features(
            {"image": datasets.Image(), "captions": datasets.Sequence(datasets.Value("string"))}
        ),
    )
    rows.save_to_disk(str(tmp_path / "whole"))
    found = load_captions(f"hf:{tmp_path / 'whole'}")
    assert found.captions == drawn.captions
    assert all(torch.equal(one, other) for one, other in zip(found.images, drawn.images, strict=True))
    rows.remove_columns("captions").save_to_disk(str(tmp_path / "bare"))
    with pytest.raises(InputError, match=r"expected one of images \(Image\) and one of captions"):
        load_captions(f"hf:{tmp_path / 'bare'}")


def test_images_are_stretched_to_a_square():
    image = torch.zeros(3, 4, 8, dtype=torch.uint8)
    image[:, :, 4:] = 255
    square = as_input([image, image[:, :, :4]], 4)
    assert square.shape == (2, 3, 4, 4)
    assert square[0, 0, 0].tolist() == pytest.approx([-1.0, -0.75, 0.75, 1.0], abs=0.2)
    assert square[1].unique().tolist() == [-1.0]


def test_wrong_images_are_named():
    grey = torch.zeros(3, 4, 4, dtype=torch.uint8)
    wrong: tuple[tuple[Any, str], ...] = (
        (((), (), ()), "there are no images"),
        (([grey], (("a",),), ("1",)), r"images is .*; expected a tuple"),
        (((grey,), ("a",), ("1",)), "image 1 has no captions; expected at least one"),
        (((grey,), (("a",), ("b",)), ("1",)), "1 images, 2 lists of captions and 1 names"),
        (((grey.float(),), (("a",),), ("1",)), "image 1 is a Tensor; expected a tensor of pixels, uint8"),
        (((grey[:1],), (("a",),), ("1",)), r"image 1 has shape \(1, 4, 4\)"),
        (((grey,), ((),), ("1",)), "image 1 has no captions"),
        (((grey,), (("",),), ("1",)), "a caption of image 1 is ''"),
    )
    for arguments, said in wrong:
        with pytest.raises(InputError, match=said):
            CaptionedImages(*arguments, name="mine")
    with pytest.raises(InputError, match="leave none to train on"):
        parted(CaptionedImages((grey,) * 2, (("a",),) * 2, ("1", "2"), "mine"), 0.1)


@pytest.mark.skipif(
    "FENCHEL_DATA" not in os.environ, reason="FENCHEL_DATA does not say where the published files are"
)
def test_the_published_folder_is_read():
    found = load_captions("coco-mini")
    assert (len(found), sum(map(len, found.captions))) == (154, 770)
    assert found.captions[0][0] == "a family is sitting down at a table to have cake"
    assert {name: len(part) for name, part in parted(found, 0.1).items()} == {
        "train": 124,
        "validation": 15,
        "test": 15,
    }
