"""The files as they are published, where FENCHEL_DATA has them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fenchel.data import load
from fenchel.data.locate import named
from fenchel.errors import InputError

ROOT = os.environ.get("FENCHEL_DATA")
LOSSLESS = Path(ROOT or ".") / "cifar10" / "cifar10_first4000_lossless.npz"


def needs(name: str) -> pytest.MarkDecorator:
    try:
        named(name, ROOT)
    except InputError as error:
        return pytest.mark.skip(reason=str(error))
    return pytest.mark.skipif(False, reason="")


@needs("fashion-mnist")
def test_fashion_mnist():
    start = time.perf_counter()
    train = load("fashion-mnist")
    seconds = time.perf_counter() - start
    test = load("fashion-mnist", split="test")
    assert train.images.shape == (60_000, 1, 28, 28)
    assert test.images.shape == (10_000, 1, 28, 28)
    assert train.class_counts == (6_000,) * 10
    assert test.class_counts == (1_000,) * 10
    assert train.labels[:10].tolist() == [9, 0, 0, 3, 0, 2, 7, 2, 5, 5]
    assert (train.note, test.note) == ("", "")
    assert test.mean == pytest.approx([0.28604], abs=1e-5)
    assert test.std == pytest.approx([0.35302], abs=1e-5)
    assert seconds < 6  # a third of a second on an idle core


@needs("cifar10")
def test_cifar10():
    train = load("cifar10")
    assert train.images.shape == (50_000, 3, 32, 32)
    assert train.class_counts == (5_000,) * 10
    assert [255 * mean for mean in train.mean] == pytest.approx([125.3, 122.95, 113.87], abs=0.1)
    if train.note != "JPEG, lossy" or not LOSSLESS.exists():
        return
    lossless = load(LOSSLESS)
    # Both are in the official order within each class.
    ratios = []
    for label in range(10):
        ours = train.images[train.labels == label].float()
        exact = lossless.images[lossless.labels == label].float()
        error = (ours[: len(exact)] - exact).square().mean(dim=(1, 2, 3))
        ratios.extend((10 * (255**2 / error).log10()).tolist())
    assert sum(ratios) / len(ratios) == pytest.approx(30.5, abs=0.1)
