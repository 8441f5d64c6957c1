"""What docs/data.md shows is what happens."""

from __future__ import annotations

import pytest
import torch

from fenchel.data.locate import _KNOWN
from tests.data.image_files import drawn_images, write_idx_folder
from tests.pages import page, run_blocks

PAGE = "docs/data.md"


def test_blocks_run(tmp_path, monkeypatch: pytest.MonkeyPatch):
    train, test = (
        (drawn_images(count, channels=1, side=28), torch.arange(count) % 10) for count in (2_000, 500)
    )
    write_idx_folder(tmp_path / "fashion_mnist", train, test)
    monkeypatch.setenv("FENCHEL_DATA", str(tmp_path))
    names = run_blocks(PAGE)
    assert names["train"].images.equal(train[0])
    assert names["small"].class_counts == (100,) * 10
    assert names["labels"][0::2].equal(names["labels"][1::2])
    assert names["images"].dtype == torch.float32
    assert names["augmented"].shape == names["images"].shape


def test_the_page_says_where_files_are_published():
    text = page(PAGE)
    for name, known in _KNOWN.items():
        assert f"`{name}`" in text
        assert known.address in text
        assert f"`{known.folders[0]}`" in text
